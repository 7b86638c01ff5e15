"""D21 and D23: greedy in any company, and what can never fit."""

import random
import threading

import pytest
from client import error_of, wait_for
from devices import chain_text

PROMPT = [(11 * i) % 250 for i in range(40)]
GREEDY = [
    {"temperature": 0}, {"temperature": 0, "top_p": 0}, {"temperature": 0, "top_p": 0.5, "top_k": 5}, {"temperature": 1, "top_k": 1}, {"temperature": 1e-6},
    {"temperature": 1e-30}, {"temperature": 1, "top_p": 1e-9}, {"temperature": 1, "top_p": 0}, {"temperature": 1, "min_p": 1},
]


def test_d21_greedy_is_greedy_in_any_company(rand):
    fields = {"max_tokens": 24, "ignore_eos": True}
    alone = rand.text(PROMPT, **fields)
    rng = random.Random(3)
    answers = {}

    def one(key, prompt, **f):
        answers[key] = rand.text(prompt, **{**fields, **f})

    work = [threading.Thread(target=one, args=(i, PROMPT), kwargs=f) for i, f in enumerate(GREEDY)]
    work += [threading.Thread(target=one, args=(f"x{i}", [rng.randrange(250) for _ in range(rng.randrange(1, 60))]), kwargs={"temperature": 1.5, "seed": i}) for i in range(12)]
    rng.shuffle(work)
    for w in work:
        w.start()
    for w in work:
        w.join()
    assert {answers[i] for i in range(len(GREEDY))} == {alone}


def test_a_seed_gives_the_same_text_in_any_company(rand):
    fields = {"max_tokens": 24, "ignore_eos": True, "temperature": 1.2, "seed": 42, "n": 3}
    first = [c["text"] for c in rand.complete(PROMPT, **fields)["choices"]]
    assert len(set(first)) == 3
    held = [rand.open_completion(prompt=[i], max_tokens=200, temperature=1, ignore_eos=True, stream=True) for i in range(8)]
    assert [c["text"] for c in rand.complete(PROMPT, **fields)["choices"]] == first
    for s in held:
        s.close()
    texts = {rand.text(PROMPT, **{**fields, "seed": None, "n": 1}) for _ in range(4)}
    assert len(texts) > 1


def test_a_fair_coin_is_fair(start):
    d = start("chain", coins=((0x71, 0x72),))  # q -> <eos> or r
    answer = d.complete("q", n=128, max_tokens=1, temperature=1, seed=5)
    heads = sum(c["text"] == "r" for c in answer["choices"])
    assert 40 < heads < 88
    assert answer["usage"]["prompt_tokens"] == 1


@pytest.fixture(scope="module")
def tiny(checkpoints):
    import client
    d = client.Daemon(checkpoints("chain"), "--max-total-tokens", "64")
    yield d
    d.flush_and_check()
    assert d.stop()[0] == 0


def test_d23_what_never_fits_is_refused_at_once(tiny):
    status, answer, _ = tiny.post("/v1/completions", {"prompt": "a" * 100, "max_tokens": 1})
    error = error_of(answer)
    assert status == 400 and "100" in error["message"] and "64" in error["message"] or "63" in error["message"], error
    assert tiny.text("AAAAA", max_tokens=3) == "BCD"


def test_d23_the_pools_end_is_a_length(tiny):
    answer = tiny.complete("a" * 40, max_tokens=100)
    assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 25  # the last one needs no slot
    tiny.wait_idle(2)


def test_d23_many_that_fit_one_at_a_time_all_end(tiny):
    texts = [None] * 20

    def one(i):
        prompt = chr(0x62 + i) * 29 + chr(0x41 + i % 20)
        texts[i] = (tiny.text(prompt, max_tokens=5), chain_text(prompt, 5))

    work = [threading.Thread(target=one, args=(i,)) for i in range(20)]
    for w in work:
        w.start()
    for w in work:
        w.join(60)
    assert all(t and t[0] == t[1] for t in texts), texts
    tiny.wait_idle(2)
