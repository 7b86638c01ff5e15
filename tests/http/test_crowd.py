"""200 requests of random lengths, 64 at a time, a third cancelled at random moments: every survivor's greedy text equals what it gets alone."""

import json
import random
import threading
import time

from client import joined, parse_frames


def test_survivors_of_a_crowd_get_the_text_they_get_alone(start):
    d = start("rand", "--max-running-requests", "64", "--chunked-prefill-size", "64")
    rng = random.Random(11)
    shared = [rng.randrange(250) for _ in range(300)]
    jobs = []
    for i in range(200):
        head = shared[:rng.choice((0, 0, 30, 100, 200))]
        jobs.append({"prompt": head + [rng.randrange(250) for _ in range(rng.randrange(1, 80))], "max_tokens": rng.randrange(1, 60), "ignore_eos": True,
                     "stream": rng.random() < 0.5, "cancel": i % 3 == 0 and rng.random() * 0.4 or None})
    texts, gate = {}, threading.Semaphore(64)

    def ask(i, job):
        fields = {k: v for k, v in job.items() if k not in ("cancel", "prompt", "stream")}
        with gate:
            if job["cancel"] is not None:
                s = d.open_completion(prompt=job["prompt"], stream=job["stream"], **fields)
                time.sleep(job["cancel"])
                s.close()
            elif job["stream"]:
                texts[i] = joined(d.stream(job["prompt"], **fields))
            else:
                texts[i] = d.text(job["prompt"], **fields)

    work = [threading.Thread(target=ask, args=x) for x in enumerate(jobs)]
    for w in work:
        w.start()
    for w in work:
        w.join()
    d.wait_idle(5)
    wrong = []
    for i, job in enumerate(jobs):
        if job["cancel"] is None:
            alone = d.text(job["prompt"], max_tokens=job["max_tokens"], ignore_eos=True)
            if alone != texts[i]:
                wrong.append((i, alone, texts[i]))
    assert len(texts) >= 130 and not wrong, wrong[:3]
    s = d.wait_idle(5)
    assert s["cached_tokens"] > 0
    d.flush_and_check()


def test_cached_tokens_are_counted(rand):
    prompt = [(3 * i + 1) % 250 for i in range(129)]
    first = rand.complete(prompt, max_tokens=2, ignore_eos=True, cache_salt="count")
    again = rand.complete(prompt, max_tokens=2, ignore_eos=True, cache_salt="count")
    other = rand.complete(prompt, max_tokens=2, ignore_eos=True, cache_salt="other")
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (first, again, other)]
    assert cached[0] == 0 and 0 < cached[1] <= 128 and cached[2] == 0, cached
    assert first["choices"][0]["text"] == again["choices"][0]["text"] == other["choices"][0]["text"]
    assert again["usage"]["prompt_tokens"] == 129
