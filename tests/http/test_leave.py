"""D14 to D16: clients that leave, clients that do not read, and storms of both."""

import random
import socket
import threading
import time

import pytest
from client import SANITIZED, SLOW, SOAK, wait_for

LONG = {"context": 131072}
LONG_OPTIONS = ("--max-total-tokens", "150000")


@pytest.fixture(scope="module")
def long_chain(checkpoints):
    import client
    d = client.Daemon(checkpoints("chain", **LONG), *LONG_OPTIONS, "--max-running-requests", "4")
    yield d
    d.flush_and_check()
    assert d.stop()[0] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_d14_in_decode(long_chain, stream):
    d = long_chain
    s = d.open_completion(prompt="a", max_tokens=100000, stream=stream)
    wait_for(lambda: d.stats()["running"] == 1, what="running")
    time.sleep(0.2)
    s.close()
    d.wait_idle(1)


@pytest.mark.parametrize("stream", [False, True])
def test_d14_in_prefill(long_chain, stream):
    d = long_chain
    s = d.open_completion(prompt=[98] * 60000, max_tokens=10, stream=stream, cache_salt=f"x{stream}")
    wait_for(lambda: d.stats()["running"] == 1, what="running")
    s.close()
    d.wait_idle(1.5)


@pytest.mark.parametrize("stream", [False, True])
def test_d14_in_the_queue(long_chain, stream):
    d = long_chain
    held = [d.open_completion(prompt="a", max_tokens=20000, stream=True) for _ in range(4)]
    wait_for(lambda: d.stats()["running"] == 4, what="four running")
    s = d.open_completion(prompt="a", max_tokens=100, stream=stream)
    wait_for(lambda: d.stats()["waiting"] == 1, what="one waiting")
    s.close()
    wait_for(lambda: d.stats()["waiting"] == 0, 1, what="none waiting")
    assert d.stats()["running"] == 4
    for h in held:
        h.close()
    d.wait_idle(1)


def test_d14_half_a_request_and_a_reset(long_chain):
    d = long_chain
    for data in (b"", b"POST", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"):
        s = socket.create_connection(("127.0.0.1", d.port))
        s.sendall(data)
        s.close()
    s = d.open_completion(prompt="a", max_tokens=100000, stream=True)
    s.recv(10)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a reset instead of a close
    s.close()
    d.wait_idle(1)
    assert wait_for(lambda: d.stats()["connections"] == 1, 2, what="connections closed")


def test_d14_several_choices(long_chain):
    s = long_chain.open_completion(prompt=["a", "a"], n=2, max_tokens=100000, stream=True)
    s.recv(10)
    s.close()
    long_chain.wait_idle(1)


# ---------------------------------------------------------------- D15

def rate(d, n=400):
    """Seconds of one neighbour's stream, the best of three."""
    best = 9e9
    for _ in range(3):
        at = time.monotonic()
        d.stream("a", max_tokens=n)
        best = min(best, time.monotonic() - at)
    return best


def test_d15_a_client_that_does_not_read(start):
    d = start("chain", "--max-total-tokens", "220000", "--write-timeout", "2", fake=True, env={"FAKE_CONTEXT": "131072", "FAKE_NO_CHECKS": "1", "FAKE_STEP_US": "1000"})
    rate(d)
    alone = rate(d)
    before = d.rss_bytes()
    s = d.open_completion(rcvbuf=4096, prompt="a", max_tokens=100000, stream=True)
    wait_for(lambda: d.stats()["running"] == 1, what="running")
    beside = rate(d)
    grown = d.rss_bytes() - before
    d.wait_idle(20)  # ended by the write time-out or by the limit of what may be pending, whichever comes first
    assert grown < (64 << 20 if SANITIZED else 4 << 20), grown
    assert beside < alone * 1.1 * (2 if SANITIZED else 1), (alone, beside)  # paced by the fake's steps
    s.settimeout(5)
    got = 0
    try:
        while part := s.recv(65536):
            got += len(part)
    except OSError:
        pass
    assert got < 2 << 20
    s.close()


def test_d15_a_reader_that_pauses_loses_nothing(start):
    d = start("chain", fake=True)
    s = d.open_completion(rcvbuf=4096, prompt="a", max_tokens=2000, stream=True)
    time.sleep(1)
    got = b""
    while b"[DONE]" not in got:
        part = s.recv(65536)
        assert part, got[-300:]
        got += part
    s.close()
    import json
    text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in unchunk(got).split(b"\n\n") if line.startswith(b"data: {"))
    assert text == "a" * 2000


def unchunk(raw):
    head, _, rest = raw.partition(b"\r\n\r\n")
    out = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        out += rest[:n]
        rest = rest[n + 2:]
        if n == 0:
            break
    return out


# ---------------------------------------------------------------- D16

def storm(d, seconds, threads=8, connections=200, seed=1):
    """Connections opened and aborted at random, in every state a request can be in."""
    end = time.monotonic() + seconds
    counts = [0] * threads

    def one(k):
        rng = random.Random(seed * 1000 + k)
        held = []
        while time.monotonic() < end:
            if len(held) < connections // threads and rng.random() < 0.6:
                try:
                    kind = rng.random()
                    if kind < 0.15:
                        s = socket.create_connection(("127.0.0.1", d.port), timeout=10)
                        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"[:rng.randrange(70)])
                    elif kind < 0.25:
                        s = d.open_completion(prompt="x" * rng.randrange(1, 200000), max_tokens=5)
                    else:
                        s = d.open_completion(prompt="ab" * rng.randrange(1, 100) + "a", max_tokens=rng.randrange(1, 300), n=rng.choice((1, 1, 1, 3)),
                                              stream=rng.random() < 0.7, echo=rng.random() < 0.2, logprobs=rng.choice((None, None, 2)), ignore_eos=True)
                    held.append(s)
                    counts[k] += 1
                except OSError:
                    pass
            elif held:
                s = held.pop(rng.randrange(len(held)))
                try:
                    how = rng.random()
                    s.settimeout(0.05)
                    if how < 0.4:
                        s.recv(rng.randrange(1, 5000))
                    elif how < 0.6:
                        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                    elif how < 0.7:
                        s.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
                s.close()
            if rng.random() < 0.05:
                time.sleep(rng.random() * 0.02)
        for s in held:
            s.close()

    workers = [threading.Thread(target=one, args=(k,)) for k in range(threads)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    return sum(counts)


def sanitizer_reports(d):
    words = ("ERROR: AddressSanitizer", "WARNING: ThreadSanitizer", "runtime error:", "LeakSanitizer", "check failed")
    return [line for line in d.log if any(w in line for w in words)]


@pytest.mark.parametrize("flavour", ["release", "asan", "tsan"])
def test_d16_connections_opened_and_aborted_at_random(checkpoints, flavour):
    import os
    import client
    binary = client.FAKE if flavour == "release" else os.environ.get(f"LATENTD_FAKE_{flavour.upper()}")
    if not binary:
        pytest.skip(f"LATENTD_FAKE_{flavour.upper()} names no daemon of that flavour")
    d = client.Daemon(checkpoints("chain"), "--max-running-requests", "64", binary=binary, env={"TSAN_OPTIONS": "second_deadlock_stack=1 report_thread_leaks=0", "ASAN_OPTIONS": "detect_leaks=1"})
    n = storm(d, 60 if SOAK else 10)
    assert n > 100
    d.wait_idle(20)
    wait_for(lambda: d.stats()["connections"] == 1, 20, what="connections closed")
    s = d.stats()
    assert s["suspended"] == 0 and s["jobs"] == 0 and s["body_bytes"] == 0 and s["active"] == 1, s
    assert d.text("A", max_tokens=3) == "BCD"
    d.flush_and_check()
    before = d.cpu_seconds()
    quiet = 10 if SOAK else 3
    time.sleep(quiet)
    assert d.cpu_seconds() - before < 0.05 * quiet
    code, _ = d.stop(seconds=60)
    assert not sanitizer_reports(d), "\n".join(sanitizer_reports(d))
    assert code == 0, "\n".join(d.log[-40:])


def test_d16_a_burst_of_messages_is_handled_whole(start):
    """Frames pile up while the loop is busy with a big answer; wake-ups coalesce, and nothing may be lost."""
    d = start("chain", "--max-running-requests", "256", fake=True)
    results = [None] * 100

    def one(i):
        results[i] = "".join(c["text"] for f in d.stream("a", max_tokens=50) if f != "[DONE]" for c in f["choices"])

    workers = [threading.Thread(target=one, args=(i,)) for i in range(100)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert results == ["a" * 50] * 100
    d.wait_idle(5)
