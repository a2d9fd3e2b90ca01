"""The models and ops once more, to check against: numpy in float64, with loops,
complex-number rotations and no torch."""
import math

import numpy as np

from ref_llama import IGNORE_INDEX


def rope(x, pos, theta):
    """x: [T, D]. Element i and element i + D/2 form one complex number."""
    h = x.shape[1] // 2
    out = np.empty_like(x)
    for t in range(x.shape[0]):
        for i in range(h):
            z = complex(x[t, i], x[t, i + h]) * np.exp(1j * pos[t] * theta ** (-2.0 * i / (2 * h)))
            out[t, i], out[t, i + h] = z.real, z.imag
    return out


def attend(q, k, v):
    """q: [T, H, D]; k, v: [T, KV, D]."""
    T, H, D = q.shape
    out = np.zeros_like(q)
    for h in range(H):
        g = h // (H // k.shape[1])
        for t in range(T):
            s = np.array([q[t, h] @ k[u, g] for u in range(t + 1)]) / math.sqrt(D)
            w = np.exp(s - s.max())
            out[t, h] = (w / w.sum()) @ v[:t + 1, g]
    return out


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def ln(x, w, b, eps):
    m = x.mean(-1, keepdims=True)
    return (x - m) / np.sqrt(((x - m) ** 2).mean(-1, keepdims=True) + eps) * w + b


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def ce_terms(logits, targets):
    m = logits.max(-1, keepdims=True)
    lse = (m + np.log(np.exp(logits - m).sum(-1, keepdims=True)))[:, 0]
    keep = targets != IGNORE_INDEX
    return (lse[keep] - logits[np.arange(len(targets))[keep], targets[keep]])


def llama(w, c, ids):
    T, H, KV = len(ids), c["num_attention_heads"], c["num_key_value_heads"]
    D, eps = c["hidden_size"] // H, c["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][ids]
    pos = np.arange(T)
    for n in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % n
        a = rms(x, w[p + "input_layernorm.weight"], eps)
        q = (a @ w[p + "self_attn.q_proj.weight"].T).reshape(T, H, D)
        k = (a @ w[p + "self_attn.k_proj.weight"].T).reshape(T, KV, D)
        v = (a @ w[p + "self_attn.v_proj.weight"].T).reshape(T, KV, D)
        q = np.stack([rope(q[:, h], pos, c["rope_theta"]) for h in range(H)], 1)
        k = np.stack([rope(k[:, h], pos, c["rope_theta"]) for h in range(KV)], 1)
        x = x + attend(q, k, v).reshape(T, H * D) @ w[p + "self_attn.o_proj.weight"].T
        a = rms(x, w[p + "post_attention_layernorm.weight"], eps)
        g = a @ w[p + "mlp.gate_proj.weight"].T
        u = a @ w[p + "mlp.up_proj.weight"].T
        x = x + (g * sigmoid(g) * u) @ w[p + "mlp.down_proj.weight"].T
    x = rms(x, w["model.norm.weight"], eps)
    return x @ w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"].T


def gpt2(w, c, ids):
    T, C, H = len(ids), c["n_embd"], c["n_head"]
    eps = c["layer_norm_epsilon"]
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:T]
    for n in range(c["n_layer"]):
        p = "transformer.h.%d." % n
        lin = lambda a, m: a @ w[p + m + ".weight"] + w[p + m + ".bias"]
        a = ln(x, w[p + "ln_1.weight"], w[p + "ln_1.bias"], eps)
        qkv = lin(a, "attn.c_attn")
        q, k, v = (qkv[:, i * C:(i + 1) * C].reshape(T, H, C // H) for i in range(3))
        x = x + lin(attend(q, k, v).reshape(T, C), "attn.c_proj")
        a = ln(x, w[p + "ln_2.weight"], w[p + "ln_2.bias"], eps)
        x = x + lin(gelu(lin(a, "mlp.c_fc")), "mlp.c_proj")
    x = ln(x, w["transformer.ln_f.weight"], w["transformer.ln_f.bias"], eps)
    return x @ w["transformer.wte.weight"].T


def op(op, a, t):
    if op == "rmsnorm":
        return rms(t["x"], t["weight"], a["eps"])
    if op == "layernorm":
        return ln(t["x"], t["weight"], t["bias"], a["eps"])
    if op == "softmax":
        z = np.exp(t["x"] - t["x"].max(-1, keepdims=True))
        return z / z.sum(-1, keepdims=True)
    if op == "silu":
        return t["x"] * sigmoid(t["x"])
    if op == "gelu_tanh":
        return gelu(t["x"])
    if op == "swiglu":
        return t["gate"] * sigmoid(t["gate"]) * t["up"]
    if op == "rope":
        x, y = t["x"], np.empty_like(t["x"])
        for b in range(x.shape[0]):
            for h in range(x.shape[2]):
                y[b, :, h] = rope(x[b, :, h], t["positions"], a["theta"])
        return y
    if op == "attention":
        return np.stack([attend(t["q"][b], t["k"][b], t["v"][b]) for b in range(len(t["q"]))])
    if op == "embedding":
        return t["weight"][t["ids"]]
    if op == "cross_entropy":
        return ce_terms(t["logits"], t["targets"]).mean().reshape(1)
    if op in ("linear", "linear_nobias"):
        return t["x"] @ t["weight"].T + t.get("bias", 0.0)
    if op == "conv1d":
        return t["x"] @ t["weight"] + t["bias"]
    raise KeyError(op)
