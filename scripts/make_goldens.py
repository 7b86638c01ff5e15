#!/usr/bin/env python3
"""Makes the small random checkpoints of tests/models/ and what transformers computes for them.

    scripts/make_goldens.py tests/models [name ...]        makes all, or those named
    scripts/make_goldens.py tests/models --check           only runs transformers again and compares

Between them the checkpoints switch every field of config.json that the forward pass reads.  Each folder gets
config.json, the weights, generation_config.json, tokenizer.json (one token a byte) and goldens.safetensors:
for the prompts p = 0, 1, 2: `p{p}.ids` I32 [n], `p{p}.logits_f32` F32 [n, vocab] (weights upcast, eager
attention) and `p{p}.logits_bf16` F32 [n, vocab] (everything in bf16, eager attention).

The oracle is transformers' own deepseek_v2 and deepseek_v3.  Releases before 5.16 leave the square of YaRN's
mscale out of V2's softmax scale, so they are refused.  Prompts are drawn token by token so that no token is
near a tie in the router: a golden must not depend on the last bits of a sum.
"""
import json
import math
import os
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

BOS, EOS, VOCAB = 256, 257, 320
MIN_GAP = 1e-3
LENGTHS = (5, 33, 70)

V2 = {"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": BOS,
      "eos_token_id": EOS, "hidden_act": "silu", "max_position_embeddings": 2048, "model_type": "deepseek_v2",
      "moe_layer_freq": 1, "n_group": 1, "norm_topk_prob": False, "q_lora_rank": None, "rms_norm_eps": 1e-6, "rope_scaling": None,
      "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "tie_word_embeddings": False, "topk_group": 1,
      "topk_method": "greedy", "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": VOCAB}
V3 = V2 | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "norm_topk_prob": True,
           "scoring_func": "sigmoid", "topk_method": "noaux_tc", "routed_scaling_factor": 2.5}
REAL = {"hidden_size": 64, "intermediate_size": 128, "kv_lora_rank": 512, "moe_intermediate_size": 32, "num_attention_heads": 2,
        "num_key_value_heads": 2, "num_hidden_layers": 2, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "first_k_dense_replace": 1, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2}
ODD = {"hidden_size": 60, "intermediate_size": 84, "kv_lora_rank": 48, "moe_intermediate_size": 28, "num_attention_heads": 3,
       "num_key_value_heads": 3, "num_hidden_layers": 3, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20,
       "first_k_dense_replace": 1, "n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 2}


def yarn(mscale=None, all_dim=None, factor=40, orig=4096, fast=32, slow=1, key="type"):
    y = {"beta_fast": fast, "beta_slow": slow, "factor": factor, "original_max_position_embeddings": orig, key: "yarn"}
    if mscale is not None:
        y["mscale"] = mscale
    if all_dim is not None:
        y["mscale_all_dim"] = all_dim
    return y


def without(d, *keys):
    return {k: v for k, v in d.items() if k not in keys}


# name: (config, how it is stored, what it switches)
MODELS = {
    "real-lite": (V2 | REAL | {"rope_scaling": yarn(0.707, 0.707)}, {"shards": 2},
                  "V2-Lite: no q_lora, greedy, YaRN with mscale = mscale_all_dim = 0.707, 2 shared experts, two shards"),
    "real-grouped": (V2 | REAL | {
        "q_lora_rank": 48, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "n_routed_experts": 16,
        "num_experts_per_tok": 3, "routed_scaling_factor": 16.0, "n_shared_experts": 2, "moe_intermediate_size": 16,
        "rope_scaling": yarn(1.0, 1.0)}, {"shards": 3, "down": 0.35},
        "V2 and V2.5: q_lora, group_limited_greedy (4 groups, 2 kept), routed_scaling_factor 16, mscale 1, three shards"),
    "real-plain": (V2 | REAL | {"first_k_dense_replace": 0, "n_shared_experts": 1, "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
                                "max_position_embeddings": 4096}, {},
                   "rope_scaling null, rope_theta 50000, rms_norm_eps 1e-5 (the latent's norm keeps 1e-6), no dense layer, 1 shared"),
    "real-v5": (without(V2, "rope_scaling", "rope_theta", "torch_dtype") | REAL | {
        "dtype": "bfloat16", "head_dim": 64, "qk_head_dim": 192, "mlp_bias": False, "pad_token_id": None,
        "rope_parameters": yarn(0.707, 0.707, factor=40.0) | {"rope_type": "yarn", "rope_theta": 10000}}, {"fused": True},
        "as transformers v5 writes it: dtype, rope_parameters, head_dim 64, experts fused into gate_up_proj and down_proj"),
    "real-defaults": (without(V2, "attention_bias", "attention_dropout", "hidden_act", "moe_layer_freq", "n_group", "norm_topk_prob",
                              "rms_norm_eps", "rope_scaling", "rope_theta", "routed_scaling_factor", "scoring_func",
                              "tie_word_embeddings", "topk_group", "topk_method", "use_cache", "max_position_embeddings")
                      | without(REAL, "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_key_value_heads",
                                "first_k_dense_replace"), {},
                      "every field that has a default is left out (head dims, theta, eps, gating, kv heads, first_k_dense_replace)"),
    "real-v3": (V3 | REAL | {"q_lora_rank": 48, "n_group": 4, "topk_group": 2, "n_routed_experts": 16, "num_experts_per_tok": 4,
                             "moe_intermediate_size": 16, "n_shared_experts": 1, "rope_scaling": yarn(1.0, 1.0),
                             "num_nextn_predict_layers": 1}, {"mtp": True},
                "V3: noaux_tc, sigmoid, correction bias, norm_topk_prob, 4 groups, 2 kept, unused tensors of a prediction layer"),
    "odd-mscale": (V2 | ODD | {"rope_scaling": yarn(0.8, 1.3, factor=8, orig=64, fast=16, slow=2, key="rope_type")},
                   {"lengths": (5, 33, 150)},
                   "YaRN with mscale 0.8 and mscale_all_dim 1.3 (so cos and sin are scaled), factor 8, betas 16 and 2, prompts past the "
                   "original length; odd sizes"),
    "odd-nomscale": (V2 | ODD | {"q_lora_rank": 36, "rope_scaling": yarn(factor=4.0, orig=32), "torch_dtype": "float32"},
                     {"dtype": torch.float32}, "YaRN without mscale, q_lora, F32 weights"),
    "odd-attnfactor": (V2 | ODD | {"rope_scaling": yarn(0.707, 0.707, factor=40, orig=256) | {"attention_factor": 1.25, "truncate": False}},
                       {}, "YaRN with attention_factor and truncate false"),
    "odd-tied": (V2 | ODD | {"tie_word_embeddings": True, "first_k_dense_replace": 2, "num_experts_per_tok": 1, "torch_dtype": "float16"},
                 {"dtype": torch.float16}, "tied embeddings, two dense layers, one expert a token, F16 weights"),
    "odd-grouped": (V2 | ODD | {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 1, "n_routed_experts": 12,
                                "num_experts_per_tok": 3, "routed_scaling_factor": 0.7, "num_attention_heads": 5,
                                "num_key_value_heads": 5, "hidden_size": 55}, {},
                    "3 groups, 1 kept, routed_scaling_factor 0.7, 5 heads, hidden 55"),
    "odd-greedygroups": (V2 | ODD | {"n_group": 3, "topk_group": 1, "num_experts_per_tok": 4, "routed_scaling_factor": 1.5,
                                     "n_shared_experts": 3}, {},
                         "greedy with n_group and topk_group set, which greedy ignores; 4 of 6 experts, 3 shared"),
    "odd-dense": (V2 | ODD | {"first_k_dense_replace": 3}, {}, "dense layers only"),
    "odd-v3": (V3 | ODD | {"rms_norm_eps": 1e-5, "rope_theta": 50000.0, "routed_scaling_factor": 2.446, "n_routed_experts": 10,
                           "num_experts_per_tok": 3}, {},
               "Moonlight: V3 gating with one group, no q_lora, plain RoPE with theta 50000, rms_norm_eps 1e-5"),
    "odd-v3nonorm": (V3 | ODD | {"norm_topk_prob": False, "n_group": 2, "topk_group": 1, "rope_scaling": yarn(0.6, 0.9, factor=16, orig=64)},
                     {"shards": 2}, "V3 with norm_topk_prob false, 2 groups, 1 kept, YaRN with two different mscales"),
}


# --- weights -------------------------------------------------------------------------------------------------------

def weights(cfg, opt, seed):
    """Random weights, large enough that scores, routing and logits spread by several units."""
    gen = torch.Generator().manual_seed(seed)
    full = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 0} | cfg
    h, nh, c = full["hidden_size"], full["num_attention_heads"], full["kv_lora_rank"]
    n, r, dv = full["qk_nope_head_dim"], full["qk_rope_head_dim"], full["v_head_dim"]
    m, e = full["moe_intermediate_size"], full["n_routed_experts"]
    t = {}

    def mat(name, o, i, gain):
        t[name + ".weight"] = torch.randn(o, i, generator=gen) * (gain * i ** -0.5)

    def vec(name, o):
        t[name + ".weight"] = 1 + 0.25 * torch.randn(o, generator=gen)

    def bias(name, o):
        if cfg.get("attention_bias"):
            t[name + ".bias"] = 0.3 * torch.randn(o, generator=gen)

    def mlp(name, inter, gain):
        mat(name + "gate_proj", inter, h, 1.5)
        mat(name + "up_proj", inter, h, 1.2)
        mat(name + "down_proj", h, inter, gain)

    tied = cfg.get("tie_word_embeddings")
    t["model.embed_tokens.weight"] = torch.randn(cfg["vocab_size"], h, generator=gen) * (0.4 if tied else 1.0)
    down = opt.get("down", 1.5)
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        a, f = p + "self_attn.", p + "mlp."
        vec(p + "input_layernorm", h)
        vec(p + "post_attention_layernorm", h)
        if cfg["q_lora_rank"]:
            mat(a + "q_a_proj", cfg["q_lora_rank"], h, 1.0)
            bias(a + "q_a_proj", cfg["q_lora_rank"])
            vec(a + "q_a_layernorm", cfg["q_lora_rank"])
            mat(a + "q_b_proj", nh * (n + r), cfg["q_lora_rank"], 1.3)
        else:
            mat(a + "q_proj", nh * (n + r), h, 1.3)
        mat(a + "kv_a_proj_with_mqa", c + r, h, 1.3)
        bias(a + "kv_a_proj_with_mqa", c + r)
        vec(a + "kv_a_layernorm", c)
        mat(a + "kv_b_proj", nh * (n + dv), c, 1.3)
        mat(a + "o_proj", h, nh * dv, 1.3)
        bias(a + "o_proj", h)
        if i < full["first_k_dense_replace"]:
            mlp(f, cfg["intermediate_size"], 1.0)
            continue
        mat(f + "gate", e, h, 1.5)
        if cfg["model_type"] == "deepseek_v3":
            t[f + "gate.e_score_correction_bias"] = 0.3 * torch.randn(e, generator=gen)
        mlp(f + "shared_experts.", m * cfg["n_shared_experts"], 1.0)
        for j in range(e):
            mlp(f"{f}experts.{j}.", m, down)
    vec("model.norm", h)
    if not tied:
        mat("lm_head", cfg["vocab_size"], h, 3.0)
    if opt.get("mtp"):
        p = f"model.layers.{cfg['num_hidden_layers']}."
        mat(p + "eh_proj", h, 2 * h, 1.0)
        vec(p + "enorm", h)
        vec(p + "hnorm", h)
        vec(p + "shared_head.norm", h)
    dtype = opt.get("dtype", torch.bfloat16)
    return {k: v if k.endswith("e_score_correction_bias") else v.to(dtype) for k, v in t.items()}


def fuse(t, cfg):
    out = {k: v for k, v in t.items() if ".experts." not in k}
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}.mlp.experts."
        if p + "0.up_proj.weight" in t:
            def stack(what):
                return torch.stack([t[f"{p}{j}.{what}_proj.weight"] for j in range(cfg["n_routed_experts"])])
            out[p + "gate_up_proj"] = torch.cat((stack("gate"), stack("up")), 1)
            out[p + "down_proj"] = stack("down")
    return out


def write_json(path, obj, **kw):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(obj, f, ensure_ascii=False, indent=2, **kw)
        f.write("\n")


def write_tensors(path, t, meta):
    save_file({k: v.contiguous() for k, v in t.items()}, path, metadata=meta)
    os.chmod(path, 0o644)


def write_weights(folder, t, shards):
    if shards == 1:
        return write_tensors(os.path.join(folder, "model.safetensors"), t, {"format": "pt"})
    names = sorted(t)
    total = sum(v.numel() * v.element_size() for v in t.values())
    files, done = [{} for _ in range(shards)], 0
    for k in names:
        files[min(shards - 1, done * shards // total)][k] = t[k]
        done += t[k].numel() * t[k].element_size()
    index = {}
    for i, f in enumerate(files):
        fn = f"model-{i + 1:05d}-of-{shards:06d}.safetensors"
        write_tensors(os.path.join(folder, fn), f, {"format": "pt"})
        index |= {k: fn for k in f}
    write_json(os.path.join(folder, "model.safetensors.index.json"), {"metadata": {"total_size": total}, "weight_map": index},
               sort_keys=True)


def byte_tokenizer():
    """Every byte is the token of its value; no merges."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    odd = [b for b in range(256) if b not in plain]
    symbol = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(odd)}
    vocab = {symbol[b]: b for b in range(256)}
    added = [{"id": 256 + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, t in enumerate(("<bos>", "<eos>", "<user>", "<asst>"))]
    vocab["7," + symbol[32] + "8"] = 280
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "pre_tokenizer": level,
            "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": []}}


# --- the oracle ----------------------------------------------------------------------------------------------------

def load(folder, dtype, device):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                                       experts_implementation="eager", output_loading_info=True)
    cfg = json.load(open(os.path.join(folder, "config.json")))
    beyond = f"model.layers.{cfg['num_hidden_layers']}."
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    assert all(k.startswith(beyond) for k in info["unexpected_keys"]), info
    check_rope(model, cfg)
    return model.to(device).eval()


def check_rope(model, cfg):
    """The facts that older releases got wrong, and how this one read the config."""
    n, r = cfg.get("qk_nope_head_dim", 128), cfg.get("qk_rope_head_dim", 64)
    y = cfg.get("rope_scaling") or cfg.get("rope_parameters") or {}
    theta = y.get("rope_theta", cfg.get("rope_theta", 10000))
    scale, amp = (n + r) ** -0.5, 1.0
    freq = theta ** -(torch.arange(0, r, 2, dtype=torch.float64) / r)
    if y:
        s = y["factor"]

        def g(m):
            return 0.1 * m * math.log(s) + 1

        def corr(rot):
            return r * math.log(y["original_max_position_embeddings"] / (rot * 2 * math.pi)) / (2 * math.log(theta))
        low, high = corr(y["beta_fast"]), corr(y["beta_slow"])
        if y.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, r - 1)
        ramp = ((torch.arange(r // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
        freq = freq / s * ramp + freq * (1 - ramp)
        if y.get("mscale_all_dim"):
            scale *= g(y["mscale_all_dim"]) ** 2
        if y.get("attention_factor"):
            amp = y["attention_factor"]
        elif y.get("mscale") and y.get("mscale_all_dim"):
            amp = g(y["mscale"]) / g(y["mscale_all_dim"])
        else:
            amp = g(1)
    rope = model.model.rotary_emb
    assert torch.allclose(rope.inv_freq.double(), freq, rtol=1e-6, atol=0), (rope.inv_freq, freq)
    assert abs(model.model.layers[0].self_attn.scaling / scale - 1) < 1e-9, (model.model.layers[0].self_attn.scaling, scale)
    assert abs(rope.attention_scaling / amp - 1) < 1e-9, (rope.attention_scaling, amp)
    assert all(l.self_attn.kv_a_layernorm.variance_epsilon == 1e-6 for l in model.model.layers)


class Gaps:
    """Watches the routers: how far is each token from choosing other experts?"""

    def __init__(self, model):
        self.seen, self.used = [], set()
        for i, l in enumerate(model.model.layers):
            if hasattr(l.mlp, "gate"):
                l.mlp.gate.register_forward_hook(lambda g, x, y, i=i: self.watch(i, g, y))

    def watch(self, layer, gate, out):
        logits, chosen = out[0], out[2]
        v3 = hasattr(gate, "e_score_correction_bias")
        s = logits.sigmoid() + gate.e_score_correction_bias if v3 else logits.softmax(-1)
        gap = torch.full(s.shape[:1], 9.0, device=s.device)
        if v3 or gate.topk_method == "group_limited_greedy":
            groups = s.unflatten(-1, (gate.num_group, -1))
            score = groups.topk(2, -1)[0].sum(-1) if v3 else groups.max(-1)[0]
            if gate.topk_group < gate.num_group:
                top = score.sort(-1, descending=True)[0]
                gap = torch.minimum(gap, top[:, gate.topk_group - 1] - top[:, gate.topk_group])
            keep = torch.zeros_like(score).scatter(1, score.topk(gate.topk_group, -1)[1], 1)
            s = s.masked_fill(keep.repeat_interleave(groups.shape[-1], -1) == 0, -1)
        top = s.sort(-1, descending=True)[0]
        if gate.top_k < s.shape[-1]:
            gap = torch.minimum(gap, top[:, gate.top_k - 1] - top[:, gate.top_k])
        self.seen.append(gap)
        self.used |= {(layer, e) for e in chosen.flatten().tolist()}

    def take(self):
        """Smallest over the layers, for each row of the last forward pass; None without routers."""
        seen, self.seen = self.seen, []
        return torch.stack(seen).min(0)[0] if seen else None


@torch.no_grad()
def draw(model, gaps, n, with_bos, gen, device):
    """A prompt of n tokens: of eight random candidates for each place the one furthest from a tie is taken."""
    ids = [BOS] if with_bos else []
    while len(ids) < n:
        cand = torch.randint(*((32, 127) if with_bos else (0, VOCAB)), (8,), generator=gen).tolist()
        model(torch.tensor([ids + [c] for c in cand], device=device), use_cache=False)
        g = gaps.take()
        g = torch.ones(len(cand), len(ids) + 1) if g is None else g.view(len(cand), -1)
        ids.append(cand[g[:, -1].argmax().item()])
        if len(ids) > 1 and g[0, :-1].min() <= 5 * MIN_GAP:
            raise RuntimeError("a token is near a tie: another seed")
    return ids


@torch.no_grad()
def run(model, ids, device):
    return model(torch.tensor([ids], device=device), use_cache=False).logits[0].float().cpu()


def make(root, name, device):
    cfg, opt, _ = MODELS[name]
    folder = os.path.join(root, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    write_json(os.path.join(folder, "config.json"), dict(sorted(cfg.items())))
    write_json(os.path.join(folder, "generation_config.json"), {"bos_token_id": BOS, "eos_token_id": EOS})
    write_json(os.path.join(folder, "tokenizer.json"), byte_tokenizer())
    base = 1000 * (sorted(MODELS).index(name) + 1)
    for seed in range(base, base + 50):
        t = weights(cfg, opt, seed)
        write_weights(folder, fuse(t, cfg) if opt.get("fused") else t, opt.get("shards", 1))
        full = load(folder, torch.float32, device)
        gaps = Gaps(full)
        try:
            gen = torch.Generator().manual_seed(seed + 500)
            prompts = [draw(full, gaps, n, p < 2, gen, device) for p, n in enumerate(opt.get("lengths", LENGTHS))]
            break
        except RuntimeError as e:
            print(name, seed, e)
    else:
        sys.exit(f"{name}: no seed without a tie")
    gaps.used.clear()
    half = load(folder, torch.bfloat16, device)
    out, low, report = {}, 9.0, []
    for p, ids in enumerate(prompts):
        a = run(full, ids, device)
        g = gaps.take()
        low = min(low, g.min().item() if g is not None else 9.0)
        b = run(half, ids, device)
        assert a.isfinite().all() and b.isfinite().all()
        out |= {f"p{p}.ids": torch.tensor(ids, dtype=torch.int32), f"p{p}.logits_f32": a, f"p{p}.logits_bf16": b}
        report.append("%.3f" % ((a - b).norm() / a.norm()).item())
    assert low > MIN_GAP, low
    write_tensors(os.path.join(folder, "goldens.safetensors"), out, {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, {device}", "seed": str(seed),
        "min_router_gap": "%.5f" % low})
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"{name:16s} {size / 1e6:5.2f} MB  logits std {a.std().item():.2f}  min gap {low:.4f}  experts used {len(gaps.used)}  "
          f"bf16 off by {' '.join(report)}", flush=True)


def check(root, name, device):
    folder = os.path.join(root, name)
    g = load_file(os.path.join(folder, "goldens.safetensors"))
    full, half = load(folder, torch.float32, device), load(folder, torch.bfloat16, device)
    for p in range(3):
        ids = g[f"p{p}.ids"].tolist()
        a, b = (run(full, ids, device), g[f"p{p}.logits_f32"])
        c, d = (run(half, ids, device), g[f"p{p}.logits_bf16"])
        print(name, p, "f32 relative %.2e" % ((a - b).norm() / b.norm()).item(), " bf16 against f32: stored %.4f, here %.4f"
              % (((d - b).norm() / b.norm()).item(), ((c - b).norm() / b.norm()).item()))


def main():
    version = tuple(map(int, transformers.__version__.split(".")[:2]))
    assert version >= (5, 16), f"transformers {transformers.__version__} leaves mscale^2 out of the softmax scale; 5.16 or later"
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root, names = sys.argv[1], sys.argv[2:]
    only_check = "--check" in names
    for name in [n for n in names if n != "--check"] or MODELS:
        (check if only_check else make)(root, name, device)
    if not only_check:
        rows = "".join(f"| `{n}` | {m[2]} |\n" for n, m in MODELS.items())
        path = os.path.join(root, "README.md")
        text = open(path).read() if os.path.exists(path) else "<!-- table -->\n<!-- end of table -->\n"
        head, rest = text.split("<!-- table -->")[0], text.split("<!-- end of table -->")[1]
        with open(path, "w") as f:
            f.write(f"{head}<!-- table -->\n| folder | switches |\n| --- | --- |\n{rows}<!-- end of table -->{rest}")


if __name__ == "__main__":
    main()
