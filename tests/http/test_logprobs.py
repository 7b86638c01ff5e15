"""D12, D13's completions half: echo, log-probabilities, frames."""

import json

import pytest
from client import error_of, joined


def test_d12_echo_without_new_tokens(idle):
    answer = idle.complete("ABCD", max_tokens=0, echo=True, logprobs=1)
    choice = answer["choices"][0]
    lp = choice["logprobs"]
    assert choice["text"] == "ABCD" and choice["finish_reason"] == "length"
    assert lp["tokens"] == list("ABCD") and lp["text_offset"] == [0, 1, 2, 3]
    assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
    assert len(lp["token_logprobs"]) == 4 and all(x > -0.001 for x in lp["token_logprobs"][1:])
    assert answer["usage"]["completion_tokens"] == 0 and answer["usage"]["total_tokens"] == 4
    assert idle.complete([65, 66, 67, 68], max_tokens=0, echo=True, logprobs=1)["choices"][0] == choice


def test_d12_echo_streamed(idle):
    whole = idle.complete("ABCD", max_tokens=3, echo=True, logprobs=2)["choices"][0]
    frames = idle.stream("ABCD", max_tokens=3, echo=True, logprobs=2)
    assert joined(frames) == whole["text"] == "ABCDEFG"
    parts = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for f in frames[:-1]:
        for key in parts:
            parts[key] += f["choices"][0]["logprobs"][key] if f["choices"][0]["logprobs"] else []
    assert parts == whole["logprobs"]
    assert joined(idle.stream("ABCD", max_tokens=0, echo=True)) == "ABCD"


@pytest.mark.parametrize("n", [1, 64, 65, 300])
def test_d12_prompt_scores_are_whole_at_every_length(rand, n):
    prompt = [(7 * i) % 250 for i in range(n)]
    lp = rand.complete(prompt, max_tokens=0, echo=True, logprobs=3)["choices"][0]["logprobs"]
    assert {len(lp[k]) for k in lp} == {n}
    assert lp["token_logprobs"][0] is None
    for value, top in zip(lp["token_logprobs"][1:], lp["top_logprobs"][1:]):
        assert value <= 0 and 3 <= len(top) <= 4 and max(top.values()) >= value
    again = rand.complete(prompt, max_tokens=0, echo=True, logprobs=3)["choices"][0]["logprobs"]
    assert again == lp


def test_d11_logprobs_of_generated_tokens(idle):
    lp = idle.complete("A", max_tokens=3, logprobs=2)["choices"][0]["logprobs"]
    assert lp["tokens"] == ["B", "C", "D"] and lp["text_offset"] == [0, 1, 2]
    assert all(-0.001 < x <= 0 for x in lp["token_logprobs"])
    assert all(len(t) == 2 and list(t)[0] == k for t, k in zip(lp["top_logprobs"], "BCD"))
    none = idle.complete("A", max_tokens=3, logprobs=0)["choices"][0]["logprobs"]
    assert [list(t) for t in none["top_logprobs"]] == [["B"], ["C"], ["D"]]
    assert idle.complete("A", max_tokens=3)["choices"][0]["logprobs"] is None


def test_d11_a_lone_byte_is_shown_as_bytes(idle):
    lp = idle.complete("<", max_tokens=20, logprobs=0)["choices"][0]["logprobs"]
    assert lp["tokens"][:3] == ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"]
    assert lp["tokens"][-1] in (".", "<eos>") and lp["text_offset"][:8] == [0, 0, 0, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("value", [-1, 21, 1.5, True, "2"])
def test_bad_logprobs(chain, value):
    status, answer, _ = chain.post("/v1/completions", {"prompt": "A", "logprobs": value})
    assert status == 400 and error_of(answer)["param"] == "logprobs"


def test_a_large_answer_is_written_while_it_is_sent(rand):
    n = 400
    _, answer, headers = rand.post("/v1/completions", {"prompt": list(range(1, n + 1 - 200)) * 2, "max_tokens": 100, "temperature": 0, "ignore_eos": True,
                                                       "logprobs": 20, "echo": True})
    lp = answer["choices"][0]["logprobs"]
    assert {len(v) for v in lp.values()} == {n - 1 - 1 + 100 + 2 - 0} or len({len(v) for v in lp.values()}) == 1
    assert len(json.dumps(answer)) > 64 << 10 and headers.get("Transfer-Encoding") == "chunked"


# ---------------------------------------------------------------- D13

def test_d13_usage_frames(idle):
    frames = idle.stream("A", max_tokens=3, stream_options={"include_usage": True})
    assert frames[-1] == "[DONE]" and frames.count("[DONE]") == 1
    assert frames[-2]["choices"] == [] and frames[-2]["usage"]["completion_tokens"] == 3
    assert "cached_tokens" in frames[-2]["usage"]["prompt_tokens_details"]
    assert all(f["usage"] is None and f["choices"] for f in frames[:-2])
    for fields in ({}, {"stream_options": None}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}):
        assert all("usage" not in f for f in idle.stream("A", max_tokens=3, **fields)[:-1])


def test_d13_every_frame_is_one_object_of_one_answer(idle):
    frames = idle.stream("A", max_tokens=5)[:-1]
    assert len({f["id"] for f in frames}) == 1 and frames[0]["id"].startswith("cmpl-")
    assert all(f["object"] == "text_completion" and f["model"] == "test" and f["created"] > 1.7e9 and f["system_fingerprint"] for f in frames)
    assert all(len(f["choices"]) == 1 for f in frames)
    assert frames[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("fields", [{"stream_options": {"include_usage": True}}, {"stream": False, "stream_options": {}}, {"stream": True, "stream_options": []},
                                    {"stream": True, "stream_options": {"continuous_usage_stats": True}}, {"stream": True, "stream_options": {"include_usage": 1}}])
def test_d13_stream_options_without_stream(chain, fields):
    status, answer, _ = chain.post("/v1/completions", {"prompt": "A", **fields})
    assert status == 400 and error_of(answer)["param"] in ("stream_options", "include_usage")


def test_d13_keep_alive_is_a_comment(start):
    d = start("chain", "--sse-ping-interval", "1", "--max-running-requests", "1")
    d.request("GET", "/live")
    blocker = d.open_completion(prompt="a", max_tokens=3000, stream=True)
    s = d.open_completion(prompt="A", max_tokens=2, stream=True)
    import threading
    sleeper = threading.Thread(target=lambda: d.debug("sleep?ms=2600"))
    sleeper.start()
    s.settimeout(20)
    got = b""
    while b"[DONE]" not in got:
        part = s.recv(65536)
        assert part, got
        got += part
    sleeper.join()
    s.close()
    blocker.close()
    assert b": ping\n\n" in got and got.count(b"data: [DONE]") == 1
    d.wait_idle(5)
