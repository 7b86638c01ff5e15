#!/usr/bin/env python3
"""Trains the bundled checkpoint, exports it in the hub's format and measures it with transformers.

    scripts/demo_train.py train  CORPUS DIR [--seconds 330] [--max-steps N]
    scripts/demo_train.py verify DIR

CORPUS is what scripts/demo_corpus.py and scripts/demo_tokenizer.py made; DIR holds the tokenizer
files and gets config.json, two safetensors shards and their index.  `train` uses its own
formulation of the network, in which every expert is computed for every token and masked: for
a model this small that is faster than dispatching.  `verify` loads DIR with transformers,
compares the two formulations, and writes heldout.json and goldens.safetensors.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

V, H, NH, LAYERS = 3072, 256, 2, 5
NOPE, ROPE, DV, RANK = 128, 64, 128, 512
INTER, MOE_INTER, EXPERTS, SHARED, TOPK, FIRST_DENSE = 576, 80, 8, 2, 2, 1
THETA, FACTOR, ORIG, MSCALE = 10000.0, 40.0, 4096, 0.707
EPS = 1e-6
BOS, EOS = 3000, 3001
WINDOW = 512                     # of the published perplexity

CONFIG = {
    "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "aux_loss_alpha": 0.001,
    "bos_token_id": BOS, "eos_token_id": EOS, "first_k_dense_replace": FIRST_DENSE, "hidden_act": "silu", "hidden_size": H,
    "initializer_range": 0.02, "intermediate_size": INTER, "kv_lora_rank": RANK, "max_position_embeddings": 4096,
    "model_type": "deepseek_v2", "moe_intermediate_size": MOE_INTER, "moe_layer_freq": 1, "n_group": 1,
    "n_routed_experts": EXPERTS, "n_shared_experts": SHARED, "norm_topk_prob": False, "num_attention_heads": NH,
    "num_experts_per_tok": TOPK, "num_hidden_layers": LAYERS, "num_key_value_heads": NH, "pretraining_tp": 1,
    "q_lora_rank": None, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "rms_norm_eps": EPS,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": int(FACTOR), "mscale": MSCALE, "mscale_all_dim": MSCALE,
                     "original_max_position_embeddings": ORIG, "type": "yarn"},
    "rope_theta": int(THETA), "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True,
    "tie_word_embeddings": False, "topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1", "use_cache": True, "v_head_dim": DV, "vocab_size": V}


def yarn_inv_freq():
    i = torch.arange(0, ROPE, 2, dtype=torch.float64) / ROPE
    f = THETA ** -i

    def corr(r):
        return ROPE * math.log(ORIG / (r * 2 * math.pi)) / (2 * math.log(THETA))
    low, high = max(math.floor(corr(32)), 0), min(math.ceil(corr(1)), ROPE - 1)
    ramp = ((torch.arange(ROPE // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    return (f / FACTOR * ramp + f * (1 - ramp)).float()


SCALE = (NOPE + ROPE) ** -0.5 * (0.1 * MSCALE * math.log(FACTOR) + 1) ** 2


def norm(x, w):
    x = x.float()
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)) * w


def rotate(x, cos, sin):                                        # pairs are (2i, 2i+1)
    x = x.float().unflatten(-1, (-1, 2))
    a, b = x[..., 0], x[..., 1]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Layer(nn.Module):
    def __init__(self, index):
        super().__init__()
        def p(o, i, gain=1.0):
            return nn.Parameter(torch.randn(o, i) * gain * i ** -0.5)
        out = (2 * LAYERS) ** -0.5
        self.moe = index >= FIRST_DENSE
        self.norm1, self.norm2 = nn.Parameter(torch.ones(H)), nn.Parameter(torch.ones(H))
        self.q, self.kv_a, self.kv_norm = p(NH * (NOPE + ROPE), H), p(RANK + ROPE, H), nn.Parameter(torch.ones(RANK))
        self.kv_b, self.o = p(NH * (NOPE + DV), RANK), p(H, NH * DV, out)
        inter = SHARED * MOE_INTER if self.moe else INTER
        self.gate, self.up, self.down = p(inter, H), p(inter, H), p(H, inter, out)
        if self.moe:
            self.router = p(EXPERTS, H)
            self.e_gate, self.e_up = p(EXPERTS * MOE_INTER, H), p(EXPERTS * MOE_INTER, H)
            self.e_down = nn.Parameter(torch.randn(H, EXPERTS * MOE_INTER) * 2 * out * MOE_INTER ** -0.5)

    def forward(self, x, cos, sin, drop=0.0):
        B, T, _ = x.shape
        h = norm(x, self.norm1)
        q = F.linear(h, self.q).view(B, T, NH, NOPE + ROPE).transpose(1, 2)
        qn, qr = q.split((NOPE, ROPE), -1)
        c, kr = F.linear(h, self.kv_a).split((RANK, ROPE), -1)
        kv = F.linear(norm(c, self.kv_norm), self.kv_b).view(B, T, NH, NOPE + DV).transpose(1, 2)
        kn, v = kv.split((NOPE, DV), -1)
        qr = rotate(qr, cos, sin).type_as(qn)
        kr = rotate(kr, cos, sin).type_as(kn)[:, None].expand(B, NH, T, ROPE)
        a = F.scaled_dot_product_attention(torch.cat((qn, qr), -1), torch.cat((kn, kr), -1), F.pad(v, (0, NOPE + ROPE - DV)),
                                           is_causal=True, scale=SCALE)[..., :DV]
        x = x + F.dropout(F.linear(a.transpose(1, 2).flatten(2), self.o), drop)
        h = norm(x, self.norm2)
        y = F.linear(F.silu(F.linear(h, self.gate)) * F.linear(h, self.up), self.down)
        aux = x.new_zeros(())
        if self.moe:
            with torch.autocast(x.device.type, enabled=False):
                s = F.linear(h.float(), self.router.float()).softmax(-1)
            top = s.topk(TOPK, -1)
            w = torch.zeros_like(s).scatter(-1, top.indices, top.values)
            load = (w > 0).float().mean((0, 1)) / TOPK
            aux = EXPERTS * (load * s.mean((0, 1))).sum()
            e = F.silu(F.linear(h, self.e_gate)) * F.linear(h, self.e_up)
            e = e * w.repeat_interleave(MOE_INTER, -1).to(e.dtype)
            y = y + F.linear(e, self.e_down)
        return x + F.dropout(y, drop), aux


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Parameter(torch.randn(V, H) * 0.5)
        self.layers = nn.ModuleList(Layer(i) for i in range(LAYERS))
        self.norm = nn.Parameter(torch.ones(H))
        self.head = nn.Parameter(torch.randn(V, H) * 0.02)
        self.register_buffer("inv_freq", yarn_inv_freq(), persistent=False)

    def forward(self, ids, drop=0.0):
        angle = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32)[:, None] * self.inv_freq
        cos, sin = angle.cos(), angle.sin()
        x, aux = F.dropout(F.embedding(ids, self.embed), drop), 0.0
        for layer in self.layers:
            x, a = layer(x, cos, sin, drop)
            aux = aux + a
        return F.linear(norm(x, self.norm), self.head), aux / (LAYERS - FIRST_DENSE)


# --- training ------------------------------------------------------------------------------------------------------

def batch(data, n, length, gen):
    """Rows start anywhere in the text, with BOS in front, as a prompt would."""
    start = torch.randint(0, data.numel() - length, (n,), generator=gen, device=data.device)
    rows = data[start[:, None] + torch.arange(length, device=data.device)].long()
    ids = torch.cat((torch.full((n, 1), BOS, device=data.device), rows[:, :-1]), 1)
    return ids, rows.masked_fill(rows == BOS, -100)


def loss_of(net, ids, target, device, drop=0.0):
    with torch.autocast(device, torch.bfloat16):
        logits, aux = net(ids, drop)
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), ignore_index=-100), aux


@torch.no_grad()
def validate(net, valid, device, windows=128):
    rows = valid[:valid.numel() // WINDOW * WINDOW].view(-1, WINDOW)[:windows].long()
    ids = torch.cat((torch.full((rows.shape[0], 1), BOS, device=rows.device), rows[:, :-1]), 1)
    return sum(loss_of(net, ids[i:i + 32], rows[i:i + 32], device)[0].item() * len(rows[i:i + 32])
               for i in range(0, len(rows), 32)) / len(rows)


def train(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    net = Net().to(device)
    print("parameters", sum(p.numel() for p in net.parameters()), device, flush=True)
    data = torch.from_numpy(np.load(os.path.join(args.corpus, "train.npy")).astype(np.int32)).to(device)
    valid = torch.from_numpy(np.load(os.path.join(args.corpus, "valid.npy")).astype(np.int32)).to(device)
    matrices = [p for p in net.parameters() if p.ndim > 1]
    vectors = [p for p in net.parameters() if p.ndim == 1]
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": args.decay}, {"params": vectors, "weight_decay": 0.0}],
                            lr=args.lr, betas=(0.9, 0.97), fused=device == "cuda")
    gen = torch.Generator(device=device).manual_seed(2)
    best, best_state, t0, step = 1e9, None, time.time(), 0
    while True:
        # Progress is by time or by steps, whichever is further: the schedule always ends at zero.
        done = max((time.time() - t0) / args.seconds, step / args.max_steps)
        if done >= 1:
            break
        for g in opt.param_groups:
            g["lr"] = args.lr * min(1.0, (step + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        length = args.length if done < 0.8 else 4 * args.length
        ids, target = batch(data, args.tokens // length, length, gen)
        loss, aux = loss_of(net, ids, target, device, args.dropout)
        (loss + 0.01 * aux).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        step += 1
        if step % args.every == 0 or step == args.max_steps:
            v = validate(net, valid, device)
            print(f"step {step} {time.time() - t0:.0f} s  loss {loss.item():.4f}  balance {aux.item():.3f}  valid {v:.4f}", flush=True)
            if v < best:
                best, best_state = v, {k: t.detach().clone() for k, t in net.state_dict().items()}
    v = validate(net, valid, device)
    print(f"end: step {step} ({step * args.tokens / data.numel():.1f} passes)  valid {v:.4f}, best {min(best, v):.4f}", flush=True)
    if best < v:
        net.load_state_dict(best_state)
    export(net, args.dir)


def export(net, out):
    from safetensors.torch import save_file
    t = {"model.embed_tokens.weight": net.embed, "model.norm.weight": net.norm, "lm_head.weight": net.head}
    for i, l in enumerate(net.layers):
        p = f"model.layers.{i}."
        a, m = p + "self_attn.", p + "mlp."
        t |= {p + "input_layernorm.weight": l.norm1, p + "post_attention_layernorm.weight": l.norm2,
              a + "q_proj.weight": l.q, a + "kv_a_proj_with_mqa.weight": l.kv_a, a + "kv_a_layernorm.weight": l.kv_norm,
              a + "kv_b_proj.weight": l.kv_b, a + "o_proj.weight": l.o}
        s = m + "shared_experts." if l.moe else m
        t |= {s + "gate_proj.weight": l.gate, s + "up_proj.weight": l.up, s + "down_proj.weight": l.down}
        if l.moe:
            t[m + "gate.weight"] = l.router
            for j in range(EXPERTS):
                rows = slice(j * MOE_INTER, (j + 1) * MOE_INTER)
                e = f"{m}experts.{j}."
                t |= {e + "gate_proj.weight": l.e_gate[rows], e + "up_proj.weight": l.e_up[rows],
                      e + "down_proj.weight": l.e_down[:, rows]}
    t = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in t.items()}
    total = sum(v.numel() * 2 for v in t.values())
    shards, size = [{}, {}], 0
    for k in sorted(t, key=lambda k: (k == "lm_head.weight" or k == "model.norm.weight", k)):
        shards[0 if size < total // 2 else 1][k] = t[k]
        size += t[k].numel() * 2
    names = [f"model-0000{i + 1}-of-000002.safetensors" for i in range(2)]
    for n, s in zip(names, shards):
        save_file(s, os.path.join(out, n), metadata={"format": "pt"})
        os.chmod(os.path.join(out, n), 0o644)
    with open(os.path.join(out, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total},
                   "weight_map": {k: n for n, s in zip(names, shards) for k in sorted(s)}}, f, indent=1, sort_keys=True)
        f.write("\n")
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(CONFIG, f, indent=2)
        f.write("\n")


def load_own(folder):
    """The exported weights back in this file's own formulation."""
    from safetensors.torch import load_file
    t = {}
    for n in sorted(os.listdir(folder)):
        if n.startswith("model-") and n.endswith(".safetensors"):
            t |= {k: v.float() for k, v in load_file(os.path.join(folder, n)).items()}
    net = Net()
    with torch.no_grad():
        net.embed.copy_(t["model.embed_tokens.weight"])
        net.norm.copy_(t["model.norm.weight"])
        net.head.copy_(t["lm_head.weight"])
        for i, l in enumerate(net.layers):
            p = f"model.layers.{i}."
            m = p + "mlp."
            for dst, name in ((l.norm1, "input_layernorm"), (l.norm2, "post_attention_layernorm"), (l.q, "self_attn.q_proj"),
                              (l.kv_a, "self_attn.kv_a_proj_with_mqa"), (l.kv_norm, "self_attn.kv_a_layernorm"),
                              (l.kv_b, "self_attn.kv_b_proj"), (l.o, "self_attn.o_proj")):
                dst.copy_(t[p + name + ".weight"])
            s = m + "shared_experts." if l.moe else m
            for dst, name in ((l.gate, "gate"), (l.up, "up"), (l.down, "down")):
                dst.copy_(t[s + name + "_proj.weight"])
            if l.moe:
                l.router.copy_(t[m + "gate.weight"])
                for dst, name, dim in ((l.e_gate, "gate", 0), (l.e_up, "up", 0), (l.e_down, "down", 1)):
                    dst.copy_(torch.cat([t[f"{m}experts.{j}.{name}_proj.weight"] for j in range(EXPERTS)], dim))
    return net


# --- measuring with transformers -----------------------------------------------------------------------------------

PROMPTS = ["In the beginning God created the heaven and the earth.",
           "It was not long before Elizabeth perceived that her sister was unhappy. She had hoped that a few days in the country "
           "would restore her spirits, and that the kindness of their friends would do the rest; but every letter from town",
           None]                                                # None: the first 200 tokens of the held-out text
SAMPLES = ["It was a fine morning in", "And the king said unto", "The Lord is my shepherd;",
           "User: What is a hacker?\n\nAssistant:", "Mr. Darcy looked at her and"]


def oracle(folder, dtype, device):
    import transformers
    from transformers import DeepseekV2ForCausalLM
    assert tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 16), "older releases leave mscale^2 out"
    model = DeepseekV2ForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                                  experts_implementation="eager").to(device).eval()
    assert abs(model.model.layers[0].self_attn.scaling - SCALE) < 1e-9
    return model


@torch.no_grad()
def heldout_nll(model, ids, device):
    nll, n = 0.0, 0
    for i in range(0, len(ids), WINDOW):
        w = ids[i:i + WINDOW]
        logits = model(torch.tensor([[BOS] + w[:-1]], device=device)).logits[0].double()
        nll -= logits.log_softmax(-1)[torch.arange(len(w)), torch.tensor(w, device=device)].sum().item()
        n += len(w)
    return nll, n


@torch.no_grad()
def verify(args):
    from safetensors.torch import save_file
    from tokenizers import Tokenizer
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    tok = Tokenizer.from_file(os.path.join(args.dir, "tokenizer.json"))
    text = open(os.path.join(args.dir, "heldout.txt"), encoding="utf-8").read()
    held = tok.encode(text, add_special_tokens=False).ids
    full, half = oracle(args.dir, torch.float32, device), oracle(args.dir, torch.bfloat16, device)
    assert torch.allclose(full.model.rotary_emb.inv_freq.cpu(), yarn_inv_freq(), rtol=3e-7, atol=0)

    x = torch.tensor([[BOS] + held[:300]], device=device)
    a, b = full(x).logits, load_own(args.dir).to(device)(x)[0]
    diff = ((a - b).norm() / a.norm()).item()
    print("own formulation against transformers, relative", diff)
    assert diff < 1e-4

    counts, hooks = [], []
    for l in full.model.layers[FIRST_DENSE:]:
        c = torch.zeros(EXPERTS, device=device)
        counts.append(c)
        hooks.append(l.mlp.gate.register_forward_hook(
            lambda m, i, o, c=c: c.add_(torch.bincount(o[2].flatten(), minlength=EXPERTS)) is None or None))
    (n32, n), (n16, _) = heldout_nll(full, held, device), heldout_nll(half, held, device)
    for h in hooks:
        h.remove()
    for i, c in enumerate(counts):
        print(f"layer {i + FIRST_DENSE} share of each expert", (c / c.sum()).cpu().numpy().round(3).tolist())
    result = {"file": "heldout.txt", "window": WINDOW, "tokens": n, "nll": n32, "perplexity": math.exp(n32 / n),
              "nll_bf16": n16, "perplexity_bf16": math.exp(n16 / n)}
    with open(os.path.join(args.dir, "heldout.json"), "w") as f:
        json.dump(result, f, indent=2)
        f.write("\n")
    print(result)

    out = {}
    for p, prompt in enumerate(PROMPTS):
        ids = [BOS] + (tok.encode(prompt, add_special_tokens=False).ids if prompt else held[:199])
        pos = list(range(len(ids))) if p == 0 else list(range(len(ids) - 16, len(ids)))
        x = torch.tensor([ids], device=device)
        out[f"p{p}.ids"] = torch.tensor(ids, dtype=torch.int32)
        out[f"p{p}.pos"] = torch.tensor(pos, dtype=torch.int32)
        out[f"p{p}.logits_f32"] = full(x).logits[0, pos].float().cpu().contiguous()
        out[f"p{p}.logits_bf16_last8"] = half(x).logits[0, -8:].float().cpu().contiguous()
        print("golden prompt", p, len(ids), "tokens, bf16 off by",
              (out[f"p{p}.logits_bf16_last8"] - out[f"p{p}.logits_f32"][-8:]).abs().max().item())
    save_file(out, os.path.join(args.dir, "goldens.safetensors"))
    os.chmod(os.path.join(args.dir, "goldens.safetensors"), 0o644)

    for i, s in enumerate(SAMPLES):
        for temp in (0.0, 0.8):
            torch.manual_seed(i)
            ids = [BOS] + tok.encode(s, add_special_tokens=False).ids
            y = full.generate(torch.tensor([ids], device=device), max_new_tokens=100, do_sample=temp > 0, eos_token_id=EOS,
                              pad_token_id=EOS, **({"temperature": temp, "top_p": 1.0, "top_k": 0} if temp else {}))
            print(f"--- temperature {temp}\n" + tok.decode(y[0].tolist()))


def main():
    ap = argparse.ArgumentParser()
    sub = ap.add_subparsers(dest="what", required=True)
    t = sub.add_parser("train")
    t.add_argument("corpus")
    t.add_argument("dir")
    t.add_argument("--seconds", type=float, default=330)
    t.add_argument("--max-steps", type=int, default=4500)
    t.add_argument("--tokens", type=int, default=32768, help="in a step")
    t.add_argument("--length", type=int, default=1024, help="of a row; four times as long in the last fifth")
    t.add_argument("--lr", type=float, default=3e-3)
    t.add_argument("--dropout", type=float, default=0.1)
    t.add_argument("--decay", type=float, default=0.1)
    t.add_argument("--every", type=int, default=250)
    v = sub.add_parser("verify")
    v.add_argument("dir")
    args = ap.parse_args()
    train(args) if args.what == "train" else verify(args)


if __name__ == "__main__":
    main()
