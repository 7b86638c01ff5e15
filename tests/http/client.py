"""A daemon to talk to, and plain ways of talking: http.client for whole answers, sockets for everything impolite."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("LATENTD_BIN", os.path.join(ROOT, "build/release/latentd"))
FAKE = os.environ.get("LATENTD_FAKE", os.path.join(ROOT, "build/release/latentd-fake"))
SOAK = bool(os.environ.get("LATENTD_SOAK"))
SANITIZED = bool(os.environ.get("LATENTD_SANITIZED"))  # the binaries are slow: widen time limits
SLOW = 6 if SANITIZED else 1
# The daemon refuses LATENTD_ names that are no options; ours are for the tests.
ENV = {k: v for k, v in os.environ.items() if not k.startswith("LATENTD_")}
ENV.setdefault("TSAN_OPTIONS", "report_thread_leaks=0")  # a second signal ends the process without joining anybody


def wait_for(condition, seconds=10, every=0.02, what="condition"):
    end = time.monotonic() + seconds * SLOW
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(every)
    raise AssertionError(f"{what}: not within {seconds} s")


class Daemon:
    """One running latentd.  Its log is kept in self.log (lines) and shown when a test fails."""

    def __init__(self, model, *options, binary=None, env=None, wait="ready"):
        binary = binary or BIN
        command = [binary, "--model", str(model), "--port", "0", "--debug-endpoints", "local", "--log-level", "info", "--served-model-name", "test", *options]
        self.log, self.port = [], None
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**ENV, **(env or {})})
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.pid = self.process.pid
        wait_for(lambda: self.port or self.process.poll() is not None, 20, what="listening")
        assert self.port, "\n".join(self.log)
        if wait == "ready":
            wait_for(lambda: self.get("/ready")[0] == 200, 60, what="ready")

    def _read(self):
        for raw in self.process.stderr:
            line = raw.decode("utf-8", "replace").rstrip()
            self.log.append(line)
            found = re.search(r"event=listening.* port=(\d+)", line)
            if found:
                self.port = int(found.group(1))

    def stop(self, sig=signal.SIGTERM, seconds=15):
        """Ends it; returns the exit code and how long it took."""
        start = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(seconds * SLOW)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError("did not end\n" + "\n".join(self.log[-20:]))
        self.reader.join(5)
        return self.process.returncode, time.monotonic() - start

    # ------------------------------------------------------------ talking

    def connect(self, timeout=30):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)

    def request(self, method, path, body=None, headers=None, timeout=30):
        """(status, parsed JSON or text, headers) of one request on a connection of its own."""
        c = self.connect(timeout)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            if isinstance(body, str):
                body = body.encode()
            send = dict(headers or {})
            if body is not None and "Content-Type" not in send:
                send["Content-Type"] = "application/json"
            c.request(method, path, body, {k: v for k, v in send.items() if v is not None})
            r = c.getresponse()
            text = r.read()
            kind = r.getheader("Content-Type") or ""
            return r.status, json.loads(text) if kind.startswith("application/json") and method != "HEAD" else text, dict(r.getheaders())
        finally:
            c.close()

    def get(self, path, **k):
        try:
            return self.request("GET", path, **k)
        except OSError:
            return 0, None, {}

    def post(self, path, body, **k):
        return self.request("POST", path, body, **k)

    def complete(self, prompt, **fields):
        """The whole answer of a completion that must succeed."""
        status, answer, _ = self.post("/v1/completions", {"model": "test", "prompt": prompt, "temperature": 0, **fields})
        assert status == 200, answer
        return answer

    def text(self, prompt, **fields):
        return self.complete(prompt, **fields)["choices"][0]["text"]

    def stream(self, prompt, **fields):
        """The frames of a streamed completion: parsed data frames and then "[DONE]", as they came."""
        c = self.connect()
        body = {"model": "test", "prompt": prompt, "temperature": 0, "stream": True, **fields}
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        raw = r.read()
        c.close()
        assert r.status == 200, raw
        assert r.getheader("Content-Type") == "text/event-stream"
        assert r.getheader("Cache-Control") == "no-cache"
        return parse_frames(raw)

    def raw(self, data, timeout=10, read=True, half_close=False):
        """Sends bytes, returns what comes back until the end of the connection or the time limit."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
            out = b""
            while read:
                try:
                    part = s.recv(65536)
                except (TimeoutError, ConnectionResetError):
                    break
                if not part:
                    break
                out += part
            return out

    def open_completion(self, rcvbuf=None, **fields):
        """A socket on which a completion has been asked for."""
        s = socket.socket()
        if rcvbuf:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        s.settimeout(30 * SLOW)
        s.connect(("127.0.0.1", self.port))
        body = json.dumps({"model": "test", "temperature": 0, **fields}).encode()
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return s

    # ------------------------------------------------------------ looking inside

    def stats(self):
        status, answer, _ = self.get("/debug/stats")
        assert status == 200, answer
        return answer

    def debug(self, path):
        status, answer, _ = self.request("POST", "/debug/" + path, timeout=90)
        assert status == 200, answer
        return answer

    def wait_idle(self, seconds=1):
        """Nothing running or waiting within the time, then the idle check: every slot free or in the tree, no lock held."""
        wait_for(lambda: (lambda s: s["running"] == 0 and s["waiting"] == 0 and s["idle"])(self.stats()), seconds, what=f"idle: {self.stats()}")
        self.debug("check")
        s = self.stats()
        assert s["slots_free"] + s["slots_cached"] == s["slots_total"], s
        assert s["slots_locked"] == 0 and s["double_gives"] == 0, s
        return s

    def flush_and_check(self):
        self.debug("flush")
        s = self.wait_idle()
        assert s["slots_free"] == s["slots_total"], s

    def cpu_seconds(self):
        with open(f"/proc/{self.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self):
        with open(f"/proc/{self.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def parse_frames(raw):
    """Checks the framing as well: only data and comment lines, each followed by an empty one, valid UTF-8."""
    text = raw.decode("utf-8")
    assert text.endswith("\n\n"), text[-200:]
    frames = []
    for block in text[:-2].split("\n\n"):
        assert "\n" not in block, block
        if block.startswith(":"):
            continue
        assert block.startswith("data: ") and len(block) > 6, block
        frames.append("[DONE]" if block == "data: [DONE]" else json.loads(block[6:]))
    return frames


def joined(frames, index=0):
    return "".join(c["text"] for f in frames if f != "[DONE]" for c in f.get("choices", ()) if c["index"] == index)


def error_of(answer):
    error = answer["error"]
    assert set(error) >= {"message", "type", "param", "code"} and error["message"], answer
    return error
