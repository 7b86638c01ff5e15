#!/usr/bin/env python3
"""Serving on one machine, over HTTP: start time, memory, tokens a second and latencies of a checkpoint; standard library only.

  tests/bench/bench_serving.py                      the bundled checkpoint
  tests/bench/bench_serving.py --reference          random weights at the shape of the CPU reference in RESULTS.md (17.5 M parameters, hidden 256)
  tests/bench/bench_serving.py --model DIR --levels 1:16,16:64 --prompt 64 --out 64

Each of C workers sends one streamed request after another (random token ids, greedy, eos ignored).  TTFT: from before connect() to the first frame.
The floor of decoding at batch 1 is the bytes of the weights that a token touches over the bandwidth of one large copy (read side), measured in the same
run; weights that stay in a cache can be read faster than that.
"""

import argparse
import array
import asyncio
import json
import math
import os
import random
import statistics
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))

# Layers and widths chosen to come to the reference's 17.5 million parameters at its hidden size and vocabulary.
REFERENCE = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 1024,
    "moe_intermediate_size": 216, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4, "n_shared_experts": 1,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": None, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "topk_method": "greedy", "scoring_func": "softmax", "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "rope_scaling": None, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    "bos_token_id": 0, "eos_token_id": 1,
}


def shapes(c):
    h, heads, lora = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    yield "model.embed_tokens.weight", (c["vocab_size"], h)
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", (h,)
        yield p + "post_attention_layernorm.weight", (h,)
        yield p + "self_attn.q_proj.weight", (heads * (nope + rope), h)
        yield p + "self_attn.kv_a_proj_with_mqa.weight", (lora + rope, h)
        yield p + "self_attn.kv_a_layernorm.weight", (lora,)
        yield p + "self_attn.kv_b_proj.weight", (heads * (nope + v), lora)
        yield p + "self_attn.o_proj.weight", (h, heads * v)
        if layer < c["first_k_dense_replace"]:
            mlps = [("mlp.", c["intermediate_size"])]
        else:
            yield p + "mlp.gate.weight", (c["n_routed_experts"], h)
            m = c["moe_intermediate_size"]
            mlps = [(f"mlp.experts.{e}.", m) for e in range(c["n_routed_experts"])] + [("mlp.shared_experts.", c["n_shared_experts"] * m)]
        for name, inter in mlps:
            yield p + name + "gate_proj.weight", (inter, h)
            yield p + name + "up_proj.weight", (inter, h)
            yield p + name + "down_proj.weight", (h, inter)
    yield "model.norm.weight", (h,)
    yield "lm_head.weight", (c["vocab_size"], h)


def active_bytes(c):
    """bf16 bytes of the weights that one token touches, the embedding's row not counted."""
    total = 0
    for name, shape in shapes(c):
        n = math.prod(shape)
        if ".experts." in name:
            n = n * c["num_experts_per_tok"] / c["n_routed_experts"]
        if "embed_tokens" not in name:
            total += 2 * n
    return total


def write_reference(folder):
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(1)
    noise = array.array("H", [int.from_bytes(struct.pack("<f", rng.gauss(0, 1) / 16)[2:], "little") for _ in range(65521)]).tobytes() * 2
    header, parts, at = {}, [], 0
    for name, shape in shapes(REFERENCE):
        n = 2 * math.prod(shape)
        if "norm" in name:
            data = b"\x80\x3f" * shape[0]
        else:
            data = b""
            while len(data) < n:
                start = 2 * rng.randrange(65521)
                data += noise[start:start + 131042]
            data = data[:n]
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + n]}
        parts.append(data)
        at += n
    head = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + b"".join(parts))
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(REFERENCE, f)
    sys.path.insert(0, os.path.join(TOP, "tests", "http"))
    import devices
    # every id has text, so that every token is a frame
    devices.write_byte_tokenizer(folder, vocab={f"w{i}": i for i in range(260, REFERENCE["vocab_size"]) if i != devices.COMMA8})
    return folder


class Daemon:
    def __init__(self, binary, model, options):
        self.port = 8970
        t0 = time.perf_counter()
        self.process = subprocess.Popen([binary, "--model", model, "--port", str(self.port), "--log-level", "warn", *options])
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError):
                if self.process.poll() is not None:
                    sys.exit(f"the daemon ended with {self.process.returncode}")
                time.sleep(0.002)
        self.start_s = time.perf_counter() - t0

    def memory_mib(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmRSS"))

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


async def ask(port, ids, n_out):
    body = json.dumps({"prompt": ids, "max_tokens": n_out, "temperature": 0, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}}).encode()
    t0 = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nConnection: close\r\n"
                 + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(status.decode() + (await reader.read(500)).decode())
    times, usage = [], None
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        frame = json.loads(line[6:])
        if frame["choices"]:
            times.append(time.perf_counter())
        usage = frame["usage"] or usage
    writer.close()
    return {"ttft": times[0] - t0, "gaps": [b - a for a, b in zip(times, times[1:])], "out": usage["completion_tokens"],
            "cached": usage["prompt_tokens_details"]["cached_tokens"]}


async def level(port, clients, n, prompt, n_out, vocab, seed):
    rng = random.Random(seed)
    left = [[rng.randrange(3, vocab) for _ in range(prompt)] for _ in range(n)]
    done = []

    async def worker():
        while left:
            done.append(await ask(port, left.pop(), n_out))

    t0 = time.perf_counter()
    await asyncio.gather(*[worker() for _ in range(clients)])
    return done, time.perf_counter() - t0


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p / 100))] * 1e3


def copy_bandwidth():
    """Bytes read per second of the best of five large copies."""
    source = bytearray(os.urandom(1 << 20)) * 256
    target = bytearray(len(source))
    best = 0
    for _ in range(5):
        t0 = time.perf_counter()
        target[:] = source
        best = max(best, len(source) / (time.perf_counter() - t0))
    return best


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", default=os.path.join(TOP, "build", "latentd"))
    ap.add_argument("--model", default=os.path.join(TOP, "tests", "models", "demo"))
    ap.add_argument("--reference", action="store_true")
    ap.add_argument("--levels", default="1:16,16:64")
    ap.add_argument("--prompt", type=int, default=64)
    ap.add_argument("--out", type=int, default=64)
    ap.add_argument("--hit-prompt", type=int, default=1024, help="tokens of the prompt whose first token is timed cold and cached")
    ap.add_argument("--options", default="", help="more options for the daemon, separated by spaces")
    a = ap.parse_args()
    if a.reference:
        a.model = write_reference(os.path.join(TOP, "build", "bench", "reference"))
    with open(os.path.join(a.model, "config.json")) as f:
        config = json.load(f)
    parameters = sum(math.prod(s) for _, s in shapes(config))
    bandwidth = copy_bandwidth()
    floor = bandwidth / active_bytes(config)
    d = Daemon(a.binary, a.model, a.options.split())
    idle = d.memory_mib()
    try:
        asyncio.run(level(d.port, 1, 3, a.prompt, 16, 256, 5))  # warm
        vocab = min(config["vocab_size"], 3000)
        print(f"model {os.path.relpath(a.model, TOP)}: {parameters / 1e6:.2f} M parameters, {active_bytes(config) / 1e6:.2f} MB touched a token; "
              f"copy reads {bandwidth / 1e9:.1f} GB/s: floor {floor:.0f} tok/s at batch 1")
        print(f"start to ready {d.start_s * 1e3:.0f} ms, resident {idle:.0f} MiB idle")
        print(f"| clients | requests | tok/s | TTFT p50 / p99 ms | token gap p50 / p99 ms |\n| ---: | ---: | ---: | ---: | ---: |")
        for i, lv in enumerate(a.levels.split(",")):
            clients, n = map(int, lv.split(":"))
            done, wall = asyncio.run(level(d.port, clients, n, a.prompt, a.out, vocab, 100 + i))
            gaps = [g for r in done for g in r["gaps"]]
            ttft = [r["ttft"] for r in done]
            print(f"| {clients} | {n} | {sum(r['out'] for r in done) / wall:.0f} | {percentile(ttft, 50):.1f} / {percentile(ttft, 99):.1f} "
                  f"| {percentile(gaps, 50):.2f} / {percentile(gaps, 99):.2f} |")
        rng = random.Random(9)
        cold, hit = [], []
        for _ in range(9):
            ids = [rng.randrange(3, vocab) for _ in range(a.hit_prompt)]
            for to in (cold, hit):
                r = asyncio.run(ask(d.port, ids, 2))
                to.append(r["ttft"])
                assert (r["cached"] == len(ids) - 1) == (to is hit), r
        print(f"TTFT of {a.hit_prompt} tokens: cold {statistics.median(cold) * 1e3:.1f} ms, prefix cached {statistics.median(hit) * 1e3:.1f} ms")
        print(f"resident {d.memory_mib():.0f} MiB after")
    finally:
        d.stop()


if __name__ == "__main__":
    main()
