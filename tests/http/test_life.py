"""D39 and D40: starting, being ready, ending."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time

import client
import pytest
from client import SLOW, error_of, wait_for


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_d39_a_signal_ends_it_when_idle(start, sig):
    d = start("chain")
    assert d.text("A", max_tokens=3) == "BCD"
    code, took = d.stop(sig)
    assert code == 0 and took < 2 * SLOW


def test_d39_what_runs_is_finished(start):
    d = start("chain")
    s = d.open_completion(prompt="a", max_tokens=600, stream=True)
    s.recv(10)
    keep = d.connect()
    keep.request("GET", "/live")
    keep.getresponse().read()
    d.process.send_signal(signal.SIGTERM)
    wait_for(lambda: any("event=signal" in line for line in d.log), what="signal seen")
    keep.request("POST", "/v1/completions", json.dumps({"prompt": "A"}), {"Content-Type": "application/json"})
    r = keep.getresponse()
    error = error_of(json.loads(r.read()))
    assert r.status == 503 and error["code"] == "shutting_down" and r.getheader("Retry-After") and r.getheader("Connection") == "close"
    assert d.get("/ready")[0] == 0  # no new connections
    got = b""
    while part := s.recv(65536):
        got += part
    assert b"[DONE]" in got and b'"finish_reason":"length"' in got
    assert d.process.wait(10 * SLOW) == 0


def test_d39_the_shutdown_timeout_cuts_off(start):
    d = start("chain", "--shutdown-timeout", "1", "--max-total-tokens", "140000", context=131072)
    s = d.open_completion(prompt="a", max_tokens=100000, stream=True)
    whole = d.open_completion(prompt="a", max_tokens=100000)
    wait_for(lambda: (lambda x: x["running"] + x["waiting"] == 2)(d.stats()), what="both with the engine")
    got = []
    reader = threading.Thread(target=lambda: [got.append(part) for part in iter(lambda: s.recv(65536), b"")])
    reader.start()
    code, took = d.stop()
    assert code == 0 and took < 4 * SLOW
    reader.join(5)
    got = b"".join(got)
    assert b'"error"' in got and b"shutting_down" in got and b"[DONE]" not in got
    assert b" 503 " in whole.recv(100)


def test_d39_a_second_signal_ends_it_at_once(start):
    d = start("chain", "--max-total-tokens", "140000", context=131072)
    s = d.open_completion(prompt="a", max_tokens=100000, stream=True)
    s.recv(10)
    d.process.send_signal(signal.SIGTERM)
    wait_for(lambda: any("event=signal" in line for line in d.log), what="signal seen")
    assert d.process.poll() is None
    code, took = d.stop(signal.SIGINT)
    assert code == 0 and took < 1 * SLOW
    s.close()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
def test_d39_as_pid_1(checkpoints, tmp_path):
    log = open(tmp_path / "log", "w")
    p = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", client.BIN, "--model", checkpoints("chain"), "--port", "0"], stderr=log, env=client.ENV)
    try:
        wait_for(lambda: "event=ready" in open(tmp_path / "log").read() or p.poll() is not None, what="ready")
        if p.poll() is not None:
            pytest.skip("no PID namespace here")
        with open(f"/proc/{p.pid}/task/{p.pid}/children") as f:
            child = int(f.read().split()[0])
        assert "pid=1 " in open(tmp_path / "log").read()
        at = time.monotonic()
        os.kill(child, signal.SIGTERM)
        assert p.wait(10) == 0 and time.monotonic() - at < 2 * SLOW
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()


# ---------------------------------------------------------------- D40

def test_d40_ready_means_ready(checkpoints):
    """Polls from the very start: refused, or 503, until a completion works."""
    folder = checkpoints("chain")
    for _ in range(3):
        d = client.Daemon(folder, wait="listening")
        seen, end = [], time.monotonic() + 20
        while time.monotonic() < end:
            health, models = d.get("/health")[0], d.get("/v1/models")[0]
            ready = d.get("/ready")[0]
            status = d.post("/v1/completions", {"prompt": "A", "max_tokens": 1, "temperature": 0})[0]
            seen.append((health, models, ready, status))
            assert d.get("/live")[0] == 200
            assert {health, models, ready, status} <= {200, 503}
            assert not (health == 200 or ready == 200) or status == 200
            if health == 200:
                break
        assert seen[-1][0] == 200
        assert d.stop()[0] == 0


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_d39_d40_while_loading(start, sig):
    d = start("chain", fake=True, wait="listening", env={"FAKE_OPEN_MS": "60000"})
    assert d.get("/live")[0] == 200 and d.get("/version")[0] == 200
    for path in ("/health", "/ready", "/v1/models"):
        status, answer, headers = d.get(path)
        assert status == 503 and error_of(answer)["code"] == "loading" and headers["Retry-After"]
    for path in ("/v1/completions", "/tokenize"):
        status, answer, _ = d.post(path, {"prompt": "A" * 100000})
        assert status == 503 and error_of(answer)["code"] == "loading"
    code, took = d.stop(sig)
    assert code == 0 and took < 10


def test_d40_serving_begins_when_loading_ends(start):
    d = start("chain", fake=True, wait="listening", env={"FAKE_OPEN_MS": "700"})
    seen = []
    while d.get("/ready")[0] != 200:
        seen.append(d.post("/v1/completions", {"prompt": "A", "max_tokens": 1})[0])
    assert seen[0] == 503 and set(seen[:-1]) == {503}, seen
    assert d.text("A", max_tokens=3) == "BCD"


def test_d40_an_engine_fault_ends_streams_and_the_process(start):
    d = start("chain", fake=True, env={"FAKE_STEP_US": "2000", "FAKE_FAIL_STEP": "100"})
    stream = d.open_completion(prompt="a", max_tokens=3000, stream=True)
    whole = d.open_completion(prompt="a", max_tokens=3000)
    got = b""
    while not got.endswith(b"\r\n0\r\n\r\n"):
        part = stream.recv(65536)
        assert part, got[-300:]
        got += part
    at = time.monotonic()
    assert b'data: {"error":' in got and b"[DONE]" not in got and b'"finish_reason":"length"' not in got
    assert b" 500 " in whole.recv(1000).split(b"\r\n")[0]
    seen = set()
    while d.process.poll() is None and time.monotonic() - at < 5:
        for path in ("/health", "/ready"):
            seen.add(d.get(path)[0])
        try:
            seen.add(d.post("/v1/completions", {"prompt": "A"})[0])
        except OSError:
            pass
    assert d.process.wait(5) == 1 and time.monotonic() - at < 2 * SLOW
    assert 503 in seen and 200 not in seen, seen
    assert any("event=engine_failed" in line for line in d.log)


# ---------------------------------------------------------------- time limits

def test_the_request_time_limit_ends_it(start):
    d = start("chain", "--request-timeout", "1", fake=True, env={"FAKE_STEP_US": "5000"})
    for stream in (False, True):
        at = time.monotonic()
        if stream:
            frames = d.stream("a", max_tokens=4000)
            assert frames[-1] == "[DONE]"
            choice = frames[-2]["choices"][0]
        else:
            choice = d.complete("a", max_tokens=4000)["choices"][0]
            assert 10 < len(choice["text"]) < 1000
        assert choice["finish_reason"] == "abort" and 0.8 < time.monotonic() - at < 2 * SLOW
    d.wait_idle(1)


def test_the_queue_time_limit_answers_503(start):
    d = start("chain", "--queue-timeout", "1", "--max-running-requests", "1", fake=True, env={"FAKE_STEP_US": "5000"})
    s = d.open_completion(prompt="a", max_tokens=4000, stream=True)
    s.recv(10)
    for stream in (False, True):
        status, answer, headers = d.post("/v1/completions", {"prompt": "A", "stream": stream})
        assert status == 503 and error_of(answer)["code"] == "timeout" and headers["Retry-After"]
    s.close()
    d.wait_idle(2)


def test_a_pause_longer_than_the_write_timeout_is_no_timeout(start):
    d = start("chain", "--write-timeout", "1", "--idle-timeout", "1", "--sse-ping-interval", "0")
    threading.Timer(0.2, lambda: d.debug("sleep?ms=2500")).start()
    at = time.monotonic()
    frames = d.stream("a", max_tokens=3000)
    assert time.monotonic() - at > 2 and frames[-1] == "[DONE]"
    assert sum(len(c["text"]) for f in frames[:-1] for c in f["choices"]) == 3000
    threading.Timer(0.2, lambda: d.debug("sleep?ms=2500")).start()
    assert len(d.text("a", max_tokens=3000)) == 3000


def test_bad_starts_are_one_clear_line(checkpoints, tmp_path):
    folder = checkpoints("chain")

    def run(*options):
        p = subprocess.run([client.BIN, *options], capture_output=True, text=True, timeout=60, env=client.ENV)
        return p.returncode, p.stdout, [line for line in p.stderr.splitlines() if line.startswith("latentd: ")]

    code, _, errors = run("--model", str(tmp_path / "nowhere"), "--port", "0")
    assert code == 1 and len(errors) == 1 and "nowhere" in errors[0]
    code, _, errors = run("--model", folder, "--port", "0", "--max-n", "no")
    assert code == 1 and len(errors) == 1 and "max-n" in errors[0]
    code, _, errors = run("--model", folder, "--no-such-option")
    assert code == 1 and len(errors) == 1 and "no-such-option" in errors[0]
    code, _, errors = run("--model", folder, "--port", "0", "--host", "256.1.1.1")
    assert code == 1 and len(errors) == 1
    code, out, errors = run("--model", folder, "--check-config")
    assert code == 0 and not errors
    d = client.Daemon(folder)
    code, _, errors = run("--model", folder, "--port", str(d.port))
    assert code == 1 and len(errors) == 1 and str(d.port) in errors[0]
    assert d.stop()[0] == 0


def test_perplexity_is_one_json_line(checkpoints, tmp_path):
    text = tmp_path / "text"
    text.write_text("A sentence. " * 20)
    p = subprocess.run([client.BIN, "--model", checkpoints("rand"), "--perplexity", str(text)], capture_output=True, text=True, timeout=60, env=client.ENV)
    assert p.returncode == 0, p.stderr
    answer = json.loads(p.stdout)
    assert answer["tokens"] > 200 and 1 < answer["perplexity"] < 1e6
