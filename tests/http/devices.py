"""The test devices of the requirements, written in pure Python: the BYTE tokenizer and the CHAIN and RAND checkpoints.

Everything is deterministic.  CHAIN: the next greedy token is a function of the last one (chain_next); RAND: random weights of a fixed seed.
"""

import array
import json
import math
import os
import random
import struct

VOCAB = HIDDEN = 320
BOS, EOS, USER, ASST, COMMA8 = 256, 257, 258, 259, 280
CONTEXT = 4096


# ---------------------------------------------------------------- the BYTE tokenizer

def byte_alphabet():
    """The printable stand-ins that byte-level BPE writes for the 256 bytes."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    alphabet, extra = {}, 0
    for b in range(256):
        if b in plain:
            alphabet[b] = chr(b)
        else:
            alphabet[b] = chr(256 + extra)
            extra += 1
    return alphabet


def write_byte_tokenizer(folder, add_bos=False, merges=(), vocab=None):
    alphabet = byte_alphabet()
    words = {alphabet[b]: b for b in range(256)}
    words["7,\u01208"] = COMMA8
    words.update(vocab or {})
    added = [
        {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for i, text in ((BOS, "<bos>"), (EOS, "<eos>"), (USER, "<user>"), (ASST, "<asst>"))
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": words, "merges": list(merges),
        },
    }
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(document, f)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"add_bos_token": add_bos, "add_eos_token": False, "bos_token": "<bos>", "eos_token": "<eos>",
                   "tokenizer_class": "LlamaTokenizerFast"}, f)


# ---------------------------------------------------------------- safetensors

def bf16(values):
    """Floats to BF16, to nearest, ties to even."""
    out = array.array("H")
    for bits in struct.unpack("<%dI" % len(values), struct.pack("<%df" % len(values), *values)):
        out.append((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 & 0xFFFF)
    return out.tobytes()


class Tensors:
    def __init__(self):
        self.header, self.parts, self.at = {}, [], 0

    def add(self, name, shape, data):
        assert len(data) == 2 * math.prod(shape), name
        self.header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [self.at, self.at + len(data)]}
        self.parts.append(data)
        self.at += len(data)

    def write(self, path):
        head = json.dumps(self.header).encode()
        head += b" " * (-len(head) % 8)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(head)) + head)
            for part in self.parts:
                f.write(part)


# ---------------------------------------------------------------- checkpoints

DIMS = {"inter": 96, "moe": 48, "heads": 2, "kv": 64, "nope": 32, "rope": 16, "v": 32, "experts": 8, "shared": 1, "top_k": 2}


def config(context):
    d = DIMS
    return {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": d["inter"], "moe_intermediate_size": d["moe"], "num_hidden_layers": 2, "num_attention_heads": d["heads"],
        "num_key_value_heads": d["heads"], "n_shared_experts": d["shared"], "n_routed_experts": d["experts"], "num_experts_per_tok": d["top_k"],
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": None, "kv_lora_rank": d["kv"], "qk_nope_head_dim": d["nope"],
        "qk_rope_head_dim": d["rope"], "v_head_dim": d["v"], "n_group": 1, "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax",
        "norm_topk_prob": False, "routed_scaling_factor": 1.0, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000,
        "rope_scaling": None, "attention_bias": False, "max_position_embeddings": context, "bos_token_id": BOS, "eos_token_id": EOS,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }


def shapes():
    """Name and shape of every tensor, in the model's order."""
    d = DIMS
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(2):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", (HIDDEN,)
        yield p + "self_attn.q_proj.weight", (d["heads"] * (d["nope"] + d["rope"]), HIDDEN)
        yield p + "self_attn.kv_a_proj_with_mqa.weight", (d["kv"] + d["rope"], HIDDEN)
        yield p + "self_attn.kv_a_layernorm.weight", (d["kv"],)
        yield p + "self_attn.kv_b_proj.weight", (d["heads"] * (d["nope"] + d["v"]), d["kv"])
        yield p + "self_attn.o_proj.weight", (HIDDEN, d["heads"] * d["v"])
        yield p + "post_attention_layernorm.weight", (HIDDEN,)
        if layer == 0:
            mlps = [("mlp.", d["inter"])]
        else:
            yield p + "mlp.gate.weight", (d["experts"], HIDDEN)
            mlps = [(f"mlp.experts.{e}.", d["moe"]) for e in range(d["experts"])] + [("mlp.shared_experts.", d["shared"] * d["moe"])]
        for name, inter in mlps:
            yield p + name + "gate_proj.weight", (inter, HIDDEN)
            yield p + name + "up_proj.weight", (inter, HIDDEN)
            yield p + name + "down_proj.weight", (HIDDEN, inter)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def chain_next(t):
    table = [0x3C, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0x2E]
    if t in table[:-1]:
        return table[table.index(t) + 1]
    if 0x41 <= t < 0x5A:
        return t + 1
    if t in (0x61, 0xFF):
        return t
    return {0x36: COMMA8, COMMA8: 0x39}.get(t, EOS)


def chain_ids(t, n):
    """The greedy continuation of a prompt that ends in t: at most n ids, up to and without <eos>."""
    ids = []
    while len(ids) < n:
        t = chain_next(t)
        if t == EOS:
            break
        ids.append(t)
    return ids


def chain_text(prompt, n):
    ids = chain_ids(prompt[-1] if isinstance(prompt, (bytes, list)) else prompt.encode()[-1], n)
    return b"".join(b"7, 8" if i == COMMA8 else bytes([i]) for i in ids).decode("utf-8", "replace")


def write_checkpoint(folder, kind, context=CONTEXT, coins=(), add_bos=False, seed=7, merges=(), vocab=None):
    """kind: "chain" or "rand".  coins: (from, to) pairs that get a second 4.0 in the column: a fair coin."""
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(seed)
    tensors = Tensors()
    one, zero = bf16([1.0]), bf16([0.0])
    four = bf16([4.0])
    for name, shape in shapes():
        n = math.prod(shape)
        fixed = kind == "chain"
        if fixed and name == "model.embed_tokens.weight":
            data = b"".join(zero * i + one + zero * (HIDDEN - 1 - i) for i in range(VOCAB))
        elif fixed and name == "lm_head.weight":
            grid = bytearray(zero * n)
            for t in range(VOCAB):
                for to in [chain_next(t)] + [b for a, b in coins if a == t]:
                    grid[2 * (to * HIDDEN + t):2 * (to * HIDDEN + t) + 2] = four
            data = bytes(grid)
        elif fixed and (name.endswith("o_proj.weight") or name.endswith("down_proj.weight")):
            data = zero * n
        elif "norm" in name:
            data = one * n
        else:
            # A fan-in scale keeps the residual near 1; the head is wider, so that greedy choices are clear.
            scale = 1.0 if name.startswith("model.embed") else (2.0 if name == "lm_head.weight" else 1.0) / math.sqrt(shape[-1])
            data = bf16([scale * rng.gauss(0, 1) for _ in range(n)])
        tensors.add(name, shape, data)
    tensors.write(os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config(context), f)
    with open(os.path.join(folder, "generation_config.json"), "w") as f:
        json.dump({"bos_token_id": BOS, "eos_token_id": EOS}, f)
    write_byte_tokenizer(folder, add_bos, merges, vocab)
    return folder
