"""Deliberate mistakes, and how far each lands outside the tolerance; and runs with
noise in the gradients: verify.py --mutants, --noise."""
import math

import torch
import torch.nn.functional as F

import gen
import ref_llama as R


class patched:
    def __init__(self, obj, **kw):
        self.obj, self.kw = obj, kw

    def __enter__(self):
        self.old = {k: getattr(self.obj, k) for k in self.kw}
        for k, v in self.kw.items():
            setattr(self.obj, k, v)

    def __exit__(self, *a):
        for k, v in self.old.items():
            setattr(self.obj, k, v)


def attention_variant(group_of=None, scale=None, diag=1):
    def f(q, k, v):
        B, H, T, D = q.shape
        KV = k.shape[1]
        idx = torch.tensor([(h // (H // KV)) if group_of is None else group_of(h, H, KV) for h in range(H)])
        k, v = k[:, idx], v[:, idx]
        s = q @ k.transpose(2, 3) * (1 / math.sqrt(D) if scale is None else scale(D))
        s = s.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(diag), float("-inf"))
        return torch.softmax(s, -1) @ v
    return f


def interleaved(x, cos, sin):
    h = x.shape[-1] // 2
    c, s = cos[:, :h], sin[:, :h]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


def no_bias_correction(opt):
    for g in opt.param_groups:
        for p in g["params"]:
            opt.state[p] = {"step": torch.tensor(1e6), "exp_avg": torch.zeros_like(p),
                            "exp_avg_sq": torch.zeros_like(p)}


def decay_everything(opt):
    for g in opt.param_groups:
        g["weight_decay"] = opt.param_groups[0]["weight_decay"]


def mutants(c, tr, has_labels):
    """(label, patches for ref_llama, config changes, train changes, run kwargs)"""
    yield "weight decay on 1-D tensors too", {}, {}, {}, {"opt_hook": decay_everything}
    yield "no weight decay", {}, {}, {"weight_decay": 0.0}, {}
    yield "L2 decay inside Adam (not decoupled)", {}, {}, {}, {"opt_cls": torch.optim.Adam}
    yield "no gradient clipping", {}, {}, {"grad_clip": 1e9}, {}
    yield "clip limit 1% off", {}, {}, {"grad_clip": tr["grad_clip"] * 1.01}, {}
    yield "beta2 0.999", {}, {}, {"beta2": 0.999}, {}
    yield "no bias correction", {}, {}, {}, {"opt_hook": no_bias_correction}
    yield "eps 1e-6", {}, {}, {"eps": 1e-6}, {}
    yield "lr 0.1% off", {}, {}, {"lr": tr["lr"] * 1.001}, {}
    yield "attention scale missing", {"causal_attention": attention_variant(scale=lambda D: 1.0)}, {}, {}, {}
    yield "attention scale 1/D", {"causal_attention": attention_variant(scale=lambda D: 1.0 / D)}, {}, {}, {}
    yield "mask lets one future token in", {"causal_attention": attention_variant(diag=2)}, {}, {}, {}
    if c["model_type"] == "llama":
        H, KV = c["num_attention_heads"], c["num_key_value_heads"]
        yield "RoPE interleaved", {"apply_rope": interleaved}, {}, {}, {}
        yield "RoPE absent", {"apply_rope": lambda x, cos, sin: x}, {}, {}, {}
        yield "RoPE rotated backwards", {"rotate_half": lambda x: -torch.cat(
            (-x[..., x.shape[-1] // 2:], x[..., :x.shape[-1] // 2]), -1)}, {}, {}, {}
        yield "RoPE theta %g" % (500000.0 if c["rope_theta"] < 1e5 else 10000.0), {}, \
            {"rope_theta": 500000.0 if c["rope_theta"] < 1e5 else 10000.0}, {}, {}
        if 1 < KV < H:
            yield "GQA maps head h to h % KV", {"causal_attention": attention_variant(
                group_of=lambda h, H, KV: h % KV)}, {}, {}, {}
        yield "RMSNorm eps changed", {}, {"rms_norm_eps": 1e-6 if c["rms_norm_eps"] > 5e-6 else 1e-5}, {}, {}
        yield "SwiGLU gate and up swapped", {"swiglu": lambda g, u: F.silu(u) * g}, {}, {}, {}
        yield "GELU in place of SiLU", {"swiglu": lambda g, u: F.gelu(g) * u}, {}, {}, {}
        if c["tie_word_embeddings"]:
            yield "tied head sends no gradient", {"F": HeadDetached()}, {}, {}, {}
    else:
        yield "erf GELU", {"gelu_tanh": F.gelu}, {}, {}, {}
        yield "LayerNorm eps 1e-6", {}, {"layer_norm_epsilon": 1e-6}, {}, {}
        yield "tied head sends no gradient", {"F": HeadDetached()}, {}, {}, {}
    if has_labels:
        T = tr["seq_len"]

        def per_sample(logits, y):
            t = [R.masked_cross_entropy_sum(logits[j], y[j]) / max(1, int((y[j] != -100).sum()))
                 for j in range(len(y))]
            return sum(t) / len(t)

        def halves(logits, y):
            h = len(y) // 2
            t = [R.masked_cross_entropy_sum(logits[a:b], y[a:b]) / int((y[a:b] != -100).sum())
                 for a, b in ((0, h), (h, len(y)))]
            return sum(t) / 2
        yield "loss = mean of per-sample means", {}, {}, {}, {"loss_fn": per_sample}
        yield "loss = mean of two half-batch means", {}, {}, {}, {"loss_fn": halves}
        yield "loss divided by B*T", {}, {}, {}, {"loss_fn": lambda l, y: R.masked_cross_entropy_sum(l, y) / y.numel()}
    if tr["lr_schedule"]["type"] == "warmup_cosine":
        q = tr["lr_schedule"]
        yield "cosine 20 steps after warmup", {}, {}, {"lr_schedule": dict(q, total_steps=24)}, {}
        yield "cosine to zero", {}, {}, {"lr_schedule": dict(q, min_lr_ratio=0.0)}, {}
        yield "warmup 5 steps", {}, {}, {"lr_schedule": dict(q, warmup_steps=5)}, {}


class HeadDetached:
    """torch.nn.functional with linear() cutting the weight's gradient."""

    def __getattr__(self, k):
        return getattr(F, k)

    @staticmethod
    def linear(x, w):
        return F.linear(x, w.detach())


def run_mutants(specs):
    for spec in specs:
        c, tr, arrays, tokens, labels = gen.case_arrays(spec)
        ref = gen.run(c, arrays, tokens, labels, tr, torch.float64)
        tol = dict(gen.TOLERANCE)
        if c["model_type"] == "gpt2":
            tol.update(gen.TOLERANCE_GPT2)
        print("\n%s: deviation / tolerance (over 1 = caught)" % spec["name"])
        for label, patch, dc, dt, kw in mutants(c, tr, labels is not None):
            with patched(R, **patch):
                a = gen.run(dict(c, **dc), arrays, tokens, labels, dict(tr, **dt), torch.float64, **kw)
            q = {k: v / tol[k] for k, v in gen.diffs(a, ref).items()}
            best = max(q, key=q.get)
            print("   %-38s loss curve %8.1f   best %10.1f (%s)%s" % (
                label, q["loss_abs"], q[best], best, "" if q[best] > 1 else "   NOT CAUGHT"), flush=True)


def run_noise(specs):
    print("\nlargest deviation from the clean float64 run, noise as a share of each tensor's gradient rms")
    for spec in specs:
        c, tr, arrays, tokens, labels = gen.case_arrays(spec)
        ref = gen.run(c, arrays, tokens, labels, tr, torch.float64)
        for level in (1e-6, 5e-4, 4e-3):
            worst = {}
            for seed in range(2):
                g = torch.Generator().manual_seed(seed)

                def hook(params):
                    for p in params:
                        thirds = c["model_type"] == "gpt2" and p.shape[-1] == 3 * c["n_embd"]
                        for t in (p.grad.chunk(3, -1) if thirds else [p.grad]):
                            z = torch.randn(t.shape, generator=g, dtype=torch.float64)
                            t.add_(level * t.pow(2).mean().sqrt() * z * (t != 0))
                a = gen.run(c, arrays, tokens, labels, tr, torch.float64, grad_hook=hook)
                for k, x in gen.diffs(a, ref).items():
                    worst[k] = max(worst.get(k, 0.0), x)
            print("   %-13s noise %.0e " % (spec["name"], level)
                  + " ".join("%s %.1e" % (k, x) for k, x in worst.items()
                             if k in ("loss_abs", "grad_norm_rel", "param_grad_norm_rel",
                                      "param_final_l2_rel", "param_final_sum_abs")), flush=True)
