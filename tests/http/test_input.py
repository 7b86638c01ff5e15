"""D17 to D20: bad and hostile input, numbers, lengths, costs; what is not served yet; the rules of HTTP."""

import http.client
import json
import socket
import threading
import time

import pytest
from client import error_of
from devices import CONTEXT, VOCAB


def refused(d, body, param=None, status=400, **k):
    got, answer, headers = d.post("/v1/completions", body, **k)
    assert got == status, answer
    error = error_of(answer)
    if param:
        assert error["param"] == param, error
    return error, headers


def good(d):
    assert d.text("A", max_tokens=3) == "BCD"


# ---------------------------------------------------------------- D17

BODIES = [
    b"", b"{", b"{:", b"[]", b"null", b'"x"', b"5", b'{"messages":"hi"}', b'{"messages":[5]}', b'{"prompt":{"a":1}}', b'{"prompt":["a",1]}', b'{"prompt":[1,"a"]}',
    b'{"prompt":[[1],"a"]}', b'{"prompt":[[]]}', b'{"prompt":5}', b'{"prompt":true}', b'{"prompt":null}', b'{"prompt":"a","stop":5}',
    b'{"prompt":"a","stream":"yes"}', b'{"prompt":"a","max_tokens":"ten"}', b'{"prompt":"a","top_k":0.01}', b'{"prompt":"a","stream":true,"stream_options":[]}',
    b'{"prompt":"a"}x', b'{"prompt":"a"}{}', b'{"prompt":"\xc3\x28"}', b"[" * 100000, b'{"prompt":"a","prompt":"b"}', b'{"prompt":"a\\u0000b"}', b'{"prompt":"\\ud800"}',
    b'{"prompt":"a\tb"}', b'{"prompt":"a","n":01}', b"\xff\xfe", b"\x00", b'{"prompt":"a",}', b"{'prompt':'a'}", b'{"prompt":"a","model":5}',
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_d17_no_body_ends_the_process(chain, body):
    refused(chain, body)
    good(chain)


def test_d17_unknown_model_path_and_method(chain):
    error, _ = refused(chain, {"model": "nope", "prompt": "a"}, "model", 404)
    assert error["code"] == "model_not_found" and error["type"] == "not_found_error"
    for path in ("/", "/nope", "/v1", "/v1/completions/", "/v1/completions/x", "/V1/completions", "/debug/nope"):
        status, answer, _ = chain.get(path)
        assert status == 404, path
        error_of(answer)
    for method, path, allow in (("GET", "/v1/completions", "POST"), ("PUT", "/v1/completions", "POST"), ("DELETE", "/v1/models", "GET, HEAD"), ("POST", "/health", "GET, HEAD")):
        status, answer, headers = chain.request(method, path, b"{}" if method != "GET" else None)
        assert status == 405 and headers["Allow"] == allow
        error_of(answer)
    good(chain)


def test_chat_is_named_as_not_served(chain):
    status, answer, _ = chain.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    assert status == 404 and "not served" in error_of(answer)["message"]


# ---------------------------------------------------------------- D18

NUMBERS = [
    ("temperature", "NaN"), ("temperature", "Infinity"), ("temperature", "-Infinity"), ("temperature", "1e999"), ("temperature", "-1"), ("temperature", "2.1"),
    ("temperature", '"1"'), ("top_p", "-0.1"), ("top_p", "1.5"), ("min_p", "2"), ("top_k", "-2"), ("top_k", "1.5"), ("n", "0"), ("n", "-1"), ("n", "1.5"),
    ("max_tokens", "-1"), ("max_tokens", "1.5"), ("max_tokens", "1e40"), ("seed", "1e40"), ("seed", "0.5"), ("logit_bias", '{"5":1e9}'), ("logit_bias", "5"),
    ("prompt", "[-1]"), ("prompt", f"[{VOCAB}]"), ("prompt", "[9223372036854775808]"), ("prompt", "[1.5]"), ("prompt", "[[1],[-1]]"), ("prompt", "[NaN]"),
    ("presence_penalty", "3"), ("frequency_penalty", "NaN"), ("repetition_penalty", "-1"), ("best_of", "0"), ("priority", "1e30"), ("min_tokens", "-1"),
    ("stop_token_ids", "[-1]"), ("stop_token_ids", f"[{VOCAB}]"), ("stop_token_ids", "5"), ("cache_salt", '""'), ("cache_salt", "5"), ("request_id", '"a b"'),
    ("echo", "1"), ("stream", "1"), ("ignore_eos", '"x"'),
]


@pytest.mark.parametrize("field, value", NUMBERS)
def test_d18_numbers_are_checked_before_queueing(chain, field, value):
    before = chain.stats()["groups"]
    body = f'{{"{field}":{value}}}' if field == "prompt" else f'{{"prompt":"A","{field}":{value}}}'
    refused(chain, body, field)
    assert chain.stats()["groups"] == before


@pytest.mark.parametrize("field, value", [("temperature", 0), ("temperature", 2), ("top_p", 0), ("top_p", 1), ("top_k", -1), ("top_k", 0), ("top_k", 1000000), ("min_p", 0), ("seed", -1),
                                          ("seed", 9223372036854775807), ("max_tokens", 3.0), ("n", None), ("stop", None), ("stop", []), ("user", "me"), ("metadata", {}), ("store", True),
                                          ("service_tier", "auto"), ("best_of", 1), ("suffix", None), ("suffix", ""), ("logit_bias", {}), ("presence_penalty", 0), ("frequency_penalty", 0.0),
                                          ("repetition_penalty", 1), ("min_tokens", 0), ("response_format", {"type": "text"}), ("tools", []), ("priority", 5), ("cache_salt", "x"),
                                          ("return_token_ids", False), ("skip_special_tokens", True), ("some_vendor_extra", {"a": [1]})])
def test_good_and_neutral_values_are_accepted(chain, field, value):
    status, answer, _ = chain.post("/v1/completions", {"prompt": "A", "max_tokens": 3, "temperature": 0, field: value})
    assert status == 200, answer
    assert answer["choices"][0]["text"] == "BCD"


@pytest.mark.parametrize("field, value", [("best_of", 2), ("suffix", "x"), ("logit_bias", {"5": 1}), ("presence_penalty", 0.5), ("frequency_penalty", -1), ("repetition_penalty", 1.1),
                                          ("min_tokens", 1), ("response_format", {"type": "json_object"}), ("tools", [{"type": "function"}]), ("return_token_ids", True), ("timings", True)])
def test_what_is_not_served_yet_says_so(chain, field, value):
    error, _ = refused(chain, {"prompt": "A", field: value}, field)
    assert field in error["message"]


# ---------------------------------------------------------------- D19

def test_d19_a_prompt_is_never_cut(chain):
    refused(chain, {"prompt": ""}, "prompt")
    refused(chain, {"prompt": []}, "prompt")
    refused(chain, {"prompt": ["a", ""]}, "prompt")
    for n, fields in ((CONTEXT + 1, {}), (CONTEXT, {}), (CONTEXT, {"max_tokens": 1}), (CONTEXT - 10, {"max_tokens": 11})):
        for prompt in ("b" * n, [98] * n):
            error, _ = refused(chain, {"prompt": prompt, **fields})
            assert str(CONTEXT) in error["message"] and (str(n) in error["message"] or n > CONTEXT), error
            assert error["param"] in ("prompt", "max_tokens")
    answer = chain.complete("a" * (CONTEXT - 1), max_tokens=1)
    assert answer["usage"] ["completion_tokens"] == 1 and answer["choices"][0]["finish_reason"] == "length"
    answer = chain.complete("a" * (CONTEXT - 1))  # the default of 16 is clamped
    assert answer["usage"]["completion_tokens"] == 1 and answer["choices"][0]["finish_reason"] == "length"


def test_d19_default_max_tokens_is_sixteen(chain):
    assert chain.complete("a")["usage"]["completion_tokens"] == 16
    refused(chain, {"prompt": "a", "max_tokens": 0}, "max_tokens")


# ---------------------------------------------------------------- D20

def test_d20_costs_are_bounded_before_they_are_paid(chain):
    before = chain.rss_bytes()
    refused(chain, {"prompt": "a", "n": 1000000}, "n")
    refused(chain, {"prompt": "a", "best_of": 1000000}, "best_of")
    refused(chain, {"prompt": "a", "max_tokens": 2147483647}, "max_tokens")
    refused(chain, {"prompt": [[1]] * 3000}, "prompt")
    refused(chain, {"prompt": ["a"] * 200, "n": 100})
    assert chain.rss_bytes() - before < 32 << 20


def test_d20_a_declared_length_over_the_limit_is_refused_unread(chain):
    got = chain.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10737418240\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 413 ") and b'"error"' in got


def chunks(d, total, part=b"x" * 65536, end=True):
    """A chunked body of `total` bytes; the answer (b"" if the connection was cut without one)."""
    s = socket.create_connection(("127.0.0.1", d.port), timeout=30)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    sent = 0
    try:
        while sent < total:
            s.sendall(b"%x\r\n" % len(part) + part + b"\r\n")
            sent += len(part)
        if end:
            s.sendall(b"0\r\n\r\n")
    except OSError:
        pass
    out = b""
    try:
        s.settimeout(5)
        while b"}}" not in out:
            got = s.recv(65536)
            if not got:
                break
            out += got
    except OSError:
        pass
    s.close()
    return out, sent


def test_d20_an_endless_chunked_body_is_cut_off(chain):
    before = chain.rss_bytes()
    out, sent = chunks(chain, 64 << 20, end=False)
    assert sent < 40 << 20 and (out == b"" or b" 413 " in out)
    assert chain.rss_bytes() - before < 24 << 20
    out, _ = chunks(chain, 5 << 20)  # over the limit of 4 MiB, under twice it: a whole answer at its end
    assert b" 413 " in out.split(b"\r\n")[0] and b"body_too_large" in out
    good(chain)


def test_d20_legal_large_bodies_are_not_refused(chain):
    error, _ = refused(chain, {"prompt": "b" * (1 << 20)}, "prompt")
    assert str(CONTEXT) in error["message"]
    body = '{"max_tokens":1,"prompt":"%s"}' % ("\\u0062" * (CONTEXT - 1))
    status, answer, _ = chain.post("/v1/completions", body)
    assert status == 200 and answer["usage"]["prompt_tokens"] == CONTEXT - 1
    error, _ = refused(chain, "[" + "1," * 1500000 + "1]")
    assert "values" in error["message"] or "JSON" in error["message"]


def test_a_body_of_the_size_limit_and_one_more(start):
    d = start("chain", "--max-body-bytes", "70000")
    fill = 70000 - len('{"prompt":"A","max_tokens":1,"user":""}')
    assert d.post("/v1/completions", '{"prompt":"A","max_tokens":1,"user":"%s"}' % ("x" * fill))[0] == 200
    try:
        status = d.post("/v1/completions", '{"prompt":"A","max_tokens":1,"user":"%s"}' % ("x" * (fill + 1)))[0]
    except ConnectionError:
        status = 413  # the connection was closed while we still wrote
    assert status == 413


# ---------------------------------------------------------------- D05

class Gaps:
    """A stream beside the test, and the longest time between two of its frames."""

    def __init__(self, d):
        self.socket = d.open_completion(prompt="a", max_tokens=CONTEXT - 1, stream=True)
        self.socket.recv(1000)
        self.gaps, self.thread = [], threading.Thread(target=self.read)

    def read(self):
        last = time.monotonic()
        try:
            while self.socket.recv(65536):
                now = time.monotonic()
                self.gaps.append(now - last)
                last = now
        except OSError:
            pass

    def longest(self, wait):
        time.sleep(wait)
        gaps, self.gaps = self.gaps, []
        assert gaps, "no frame in this time: nothing was measured"
        return max(gaps)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.socket.close()


def test_d05_encoding_is_near_linear_and_does_not_block_the_loop(start):
    merges, vocab = [], {}
    for i in range(6):
        half = "a" * (1 << i)
        merges.append(f"{half} {half}")
        vocab[2 * half] = 260 + i
    d = start("chain", merges=tuple(merges), vocab=tuple(vocab.items()))
    from client import SLOW
    took, grown = [], []
    for _ in range(3):  # the best of three: the machine has other things to do as well
        with Gaps(d) as gaps:
            quiet = gaps.longest(0.1)
            at = time.monotonic()
            error, _ = refused(d, {"prompt": "a" * (1 << 20)}, "prompt")
            took.append(time.monotonic() - at)
            grown.append(gaps.longest(0.02) - quiet)
        assert str(CONTEXT) in error["message"]
    assert min(took) < 2 * SLOW and min(grown) < 0.1 * SLOW, (took, grown)

    def seconds(n):
        best = 9e9
        for _ in range(3):
            at = time.monotonic()
            status, answer, _ = d.post("/tokenize", {"prompt": "a" * n})
            best = min(best, time.monotonic() - at)
            assert status == 200 and answer["count"] == n // 64
        return best

    assert seconds(512 << 10) < 3 * seconds(256 << 10) + 0.01


# ---------------------------------------------------------------- HTTP itself

def test_content_types(chain):
    body = json.dumps({"prompt": "A", "max_tokens": 1})
    for kind in (None, "application/json", "application/json; charset=utf-8", "Application/JSON", "application/json ;x=y"):
        c = chain.connect()
        c.putrequest("POST", "/v1/completions")
        c.putheader("Content-Length", str(len(body)))
        if kind:
            c.putheader("Content-Type", kind)
        c.endheaders(body.encode())
        assert c.getresponse().status == 200, kind
        c.close()
    for kind in ("text/plain", "application/jsonx", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        status, answer, _ = chain.post("/v1/completions", body, headers={"Content-Type": kind})
        assert status == 415
        error_of(answer)


def test_early_errors_keep_the_connection(chain):
    c = chain.connect()
    for path, kind, want in (("/nope", "application/json", 404), ("/v1/models", "application/json", 405), ("/v1/completions", "text/plain", 415), ("/v1/completions", "application/json", 200)):
        c.request("POST", path, json.dumps({"prompt": "A", "max_tokens": 1, "user": "x" * 100000}), {"Content-Type": kind})
        r = c.getresponse()
        r.read()
        assert r.status == want
    sock = c.sock
    assert sock is not None
    c.close()


@pytest.mark.parametrize("head", [
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /live HTTP/1.1\r\n\r\n",
    b"GET /live HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5x\r\n\r\n",
    b"BOGUS\r\n\r\n",
    b"GET /live HTTP/9.9\r\nHost: x\r\n\r\n",
])
def test_ambiguous_heads_are_refused(chain, head):
    got = chain.raw(head, timeout=5)
    assert got == b"" or got.split(b" ")[1] in (b"400", b"413", b"505"), got[:100]
    good(chain)


def test_a_huge_head_is_refused(chain):
    got = chain.raw(b"GET /live HTTP/1.1\r\nHost: x\r\nX-Big: " + b"y" * 200000 + b"\r\n\r\n", timeout=5)
    assert got == b"" or got.split(b" ")[1] in (b"431", b"413", b"400"), got[:100]
    good(chain)


def test_http_1_0_and_pipelining(chain):
    got = chain.raw(b"GET /live HTTP/1.0\r\n\r\n", timeout=5)
    assert b" 200 " in got.split(b"\r\n")[0]
    got = chain.raw(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\nGET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", timeout=5)
    assert got.count(b"HTTP/1.1 200 ") == 2
    body = b'{"prompt":"A","max_tokens":3,"temperature":0,"stream":true}'
    got = b""
    with socket.create_connection(("127.0.0.1", chain.port), timeout=10) as s:
        s.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        while part := s.recv(65536):
            got += part
    assert b"data: [DONE]\n\n" in got and b"chunked" not in got.lower()


def test_expect_continue(chain):
    body = b'{"prompt":"A","max_tokens":3,"temperature":0}'
    with socket.create_connection(("127.0.0.1", chain.port), timeout=10) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert s.recv(1000).startswith(b"HTTP/1.1 100 ")
        s.sendall(body)
        assert b" 200 " in s.recv(100000).split(b"\r\n")[0]


def test_request_ids(chain):
    _, answer, headers = chain.post("/v1/completions", {"prompt": "A", "max_tokens": 1})
    assert headers["X-Request-Id"] and answer["id"] == "cmpl-" + headers["X-Request-Id"]
    _, answer, headers = chain.post("/v1/completions", {"prompt": "A", "max_tokens": 1}, headers={"X-Request-Id": "mine-1"})
    assert headers["X-Request-Id"] == "mine-1" and answer["request_id"] == "mine-1"
    _, answer, headers = chain.post("/v1/completions", {"prompt": "A", "max_tokens": 1, "request_id": "mine-2"}, headers={"X-Request-Id": "mine-1"})
    assert headers["X-Request-Id"] == "mine-2" and answer["request_id"] == "mine-2"
    _, _, headers = chain.get("/live", headers={"X-Request-Id": "x" * 5000})
    assert len(headers["X-Request-Id"]) == 32
    assert chain.get("/nope", headers={"X-Request-Id": "abc"})[2]["X-Request-Id"] == "abc"
    assert any("id=mine-2" in line and "prompt_tokens=1" in line for line in chain.log)
    assert not any('"A"' in line for line in chain.log)


def test_models_and_version(chain):
    _, answer, _ = chain.get("/v1/models")
    assert answer["object"] == "list" and answer["data"][0]["id"] == "test" and answer["data"][0]["max_model_len"] == CONTEXT
    assert chain.get("/v1/models/test")[1] == answer["data"][0]
    status, answer, _ = chain.get("/v1/models/nope%2Fx")
    assert status == 404 and error_of(answer)["code"] == "model_not_found" and "nope/x" in answer["error"]["message"]
    assert chain.get("/version")[1]["version"]
    assert chain.request("HEAD", "/health")[0] == 200
    for path in ("/live", "/health", "/ready"):
        assert chain.get(path)[0] == 200


def test_tokenize_and_back(chain):
    text = "h€llo <eos> 😀"
    for prefix in ("", "/v1"):
        _, answer, _ = chain.post(prefix + "/tokenize", {"prompt": text, "model": "test"})
        assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == CONTEXT and 257 in answer["tokens"]
        assert chain.post(prefix + "/detokenize", {"tokens": answer["tokens"]})[1] == {"prompt": text}
    for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": 5}), ("/tokenize", {"messages": []}), ("/detokenize", {}), ("/detokenize", {"tokens": [VOCAB]}), ("/detokenize", {"tokens": ["a"]})):
        status, answer, _ = chain.post(path, body)
        assert status == 400
        error_of(answer)


def test_debug_endpoints_are_off_by_default(start):
    d = start("chain", "--debug-endpoints", "no")
    for path in ("check", "dump", "flush", "stats", "sleep?ms=1", "fail_take?n=1"):
        assert d.get("/debug/" + path)[0] == 404


def test_connections_over_the_limit_are_told(start):
    d = start("chain", "--max-connections", "5")
    held = [socket.create_connection(("127.0.0.1", d.port)) for _ in range(5)]
    time.sleep(0.1)
    status, answer, headers = d.get("/live")
    assert status == 503 and headers["Retry-After"] and headers["Connection"] == "close"
    error_of(answer)
    for s in held:
        s.close()
    time.sleep(0.2)
    assert d.get("/live")[0] == 200


def test_a_slow_head_and_a_slow_body_are_cut_off(start):
    d = start("chain", "--header-timeout", "1")
    for text in (b"GET /live HTTP/1.1\r\nHost: xxxxxxxxxxxxxxxxxxxxxx\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\n\r\n" + b"x" * 59):
        s = socket.create_connection(("127.0.0.1", d.port), timeout=10)
        begin, ended = time.monotonic(), False
        if text.startswith(b"POST"):
            s.sendall(text[:-59])
            text = text[-59:]
        for i in range(len(text) - 1):
            try:
                s.sendall(text[i:i + 1])
                s.settimeout(0.3)
                ended = s.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
            if ended:
                break
        s.close()
        assert ended and time.monotonic() - begin < 4


def test_an_idle_connection_is_closed_after_its_time(start):
    d = start("chain", "--idle-timeout", "1", "--header-timeout", "30")
    c = d.connect(10)
    c.request("GET", "/live")
    c.getresponse().read()
    assert c.sock.recv(1) == b""
    c.close()


def test_a_full_queue_answers_503(start):
    d = start("chain", "--max-running-requests", "1", "--max-queued-requests", "2")
    held = [d.open_completion(prompt="a", max_tokens=4000, stream=True)]
    held[0].recv(100)
    held += [d.open_completion(prompt="a", max_tokens=4000) for _ in range(2)]
    from client import wait_for
    wait_for(lambda: d.stats()["waiting"] == 2, what="two waiting")
    error, headers = refused(d, {"prompt": "A"}, status=503)
    assert headers["Retry-After"] and error["type"] == "server_error"
    for s in held:
        s.close()
    d.wait_idle(2)
    good(d)
