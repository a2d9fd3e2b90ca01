"""Generates the micro-op goldens, ops.json and ops.safetensors: gen.py --ops."""
import math
import os

import numpy as np
import torch
import torch.nn.functional as F

import files
import ref_llama as R

CLIP_EPS = 1e-6


class OpSet:
    def __init__(self, seed):
        self.rs = np.random.RandomState(seed)
        self.ops, self.tensors = [], {}

    def normal(self, *shape, scale=1.0):
        return (self.rs.standard_normal(shape) * scale).astype(np.float32)

    @staticmethod
    def note(rec, n, a32, a64):
        seen = (a32.double() - a64).abs().max().item()
        tol = max(10 * seen, 2e-6 * a64.abs().max().item(), 1e-7)
        rec["f32_vs_f64_max_abs"][n] = float("%.3g" % seen)
        rec["tolerance"][n] = float("%.3g" % tol)

    def add(self, op, fn, inputs, attrs, const=(), scalar=False, out="y"):
        """inputs: {name: array}; integer arrays and names in `const` get no
        gradient. Output is fn(**inputs); gradients are of sum(output * dy)."""
        oid = "%s_%d" % (op, sum(o["op"] == op for o in self.ops))

        def go(dtype):
            t = {}
            for n, a in inputs.items():
                v = torch.from_numpy(a.astype(np.int64) if a.dtype.kind == "i" else a.copy())
                if v.is_floating_point():
                    v = v.to(dtype)
                    if n not in const:
                        v.requires_grad_(True)
                t[n] = v
            y = fn(**t)
            dy = torch.from_numpy(dy_np).to(dtype) if dy_np is not None else torch.ones_like(y)
            y.backward(dy)
            g = {"d" + n: v.grad for n, v in t.items() if v.requires_grad}
            return y.detach(), g

        with torch.no_grad():
            probe = fn(**{n: torch.from_numpy(a.astype(np.int64) if a.dtype.kind == "i" else a)
                          for n, a in inputs.items()})
        dy_np = None if scalar else self.normal(*probe.shape)
        y32, g32 = go(torch.float32)
        y64, g64 = go(torch.float64)

        rec = {"id": oid, "op": op, "attrs": attrs, "inputs": {}, "outputs": {},
               "grad_outputs": {}, "grads": {}, "f32_vs_f64_max_abs": {}, "tolerance": {}}

        def put(group, n, a):
            a = np.asarray(a)
            a = a.reshape(1) if a.ndim == 0 else a
            assert np.all(np.isfinite(a)), (oid, n)
            key = "%s.%s" % (oid, n)
            assert key not in self.tensors
            self.tensors[key] = a
            rec[group][n] = {"tensor": key, "shape": list(a.shape)}

        for n, a in inputs.items():
            put("inputs", n, a)
        put("outputs", out, y32.numpy())
        if dy_np is not None:
            put("grad_outputs", "d" + out, dy_np)
        for n, g in g32.items():
            put("grads", n, g.numpy())
            self.note(rec, n, g, g64[n])
        self.note(rec, out, y32, y64)
        self.ops.append(rec)

    def add_adamw(self, shape, steps, hp):
        p0 = self.normal(*shape, scale=0.5)
        gs = [self.normal(*shape, scale=0.1) for _ in range(steps)]
        gs[0].reshape(-1)[0] = 0.0          # zero gradient, then non-zero
        gs[1].reshape(-1)[1] = 1e-9         # gradient below eps
        oid = "adamw_%d" % sum(o["op"] == "adamw" for o in self.ops)
        got = {}
        for dtype in (torch.float32, torch.float64):
            p = torch.from_numpy(p0.copy()).to(dtype).requires_grad_(True)
            opt = torch.optim.AdamW([p], lr=hp["lr"], betas=(hp["beta1"], hp["beta2"]),
                                    eps=hp["eps"], weight_decay=hp["weight_decay"], foreach=False)
            res = {}
            for i, g in enumerate(gs):
                p.grad = torch.from_numpy(g.copy()).to(dtype)
                opt.step()
                st = opt.state[p]
                res["param_%d" % (i + 1)] = p.detach().clone()
                res["m_%d" % (i + 1)] = st["exp_avg"].clone()
                res["v_%d" % (i + 1)] = st["exp_avg_sq"].clone()
            got[dtype] = res
        rec = {"id": oid, "op": "adamw", "attrs": dict(hp, steps=steps), "inputs": {}, "outputs": {},
               "grad_outputs": {}, "grads": {}, "f32_vs_f64_max_abs": {}, "tolerance": {}}
        items = [("inputs", "param_0", p0)] + [("inputs", "grad_%d" % (i + 1), g) for i, g in enumerate(gs)]
        items += [("outputs", n, t.numpy()) for n, t in got[torch.float32].items()]
        for group, n, a in items:
            key = "%s.%s" % (oid, n)
            self.tensors[key] = a
            rec[group][n] = {"tensor": key, "shape": list(a.shape)}
            if group == "outputs":
                self.note(rec, n, got[torch.float32][n], got[torch.float64][n])
        self.ops.append(rec)

    def add_clip(self, scale, max_norm):
        gs = [self.normal(7, 13, scale=scale), self.normal(17, scale=scale)]
        oid = "clip_grad_norm_%d" % sum(o["op"] == "clip_grad_norm" for o in self.ops)
        got = {}
        for dtype in (torch.float32, torch.float64):
            ps = []
            for g in gs:
                p = torch.zeros(g.shape, dtype=dtype, requires_grad=True)
                p.grad = torch.from_numpy(g.copy()).to(dtype)
                ps.append(p)
            norm = torch.nn.utils.clip_grad_norm_(ps, max_norm)
            got[dtype] = {"norm": norm.reshape(1), "clipped_0": ps[0].grad, "clipped_1": ps[1].grad}
        rec = {"id": oid, "op": "clip_grad_norm", "attrs": {"max_norm": max_norm, "eps": CLIP_EPS},
               "inputs": {}, "outputs": {}, "grad_outputs": {}, "grads": {},
               "f32_vs_f64_max_abs": {}, "tolerance": {}}
        items = [("inputs", "grad_%d" % i, g) for i, g in enumerate(gs)]
        items += [("outputs", n, t.numpy()) for n, t in got[torch.float32].items()]
        for group, n, a in items:
            key = "%s.%s" % (oid, n)
            self.tensors[key] = a
            rec[group][n] = {"tensor": key, "shape": list(a.shape)}
            if group == "outputs":
                self.note(rec, n, got[torch.float32][n], got[torch.float64][n])
        self.ops.append(rec)


def make_ops(out):
    o = OpSet(90210)
    i32 = lambda a: np.asarray(a, dtype=np.int32)

    for (n, d), eps, sc in (((7, 13), 1e-5, 1.0), ((5, 17), 1e-6, 0.02), ((1, 1), 1e-5, 1.0), ((3, 64), 1e-5, 30.0)):
        o.add("rmsnorm", lambda x, weight, e=eps: R.rms_norm(x, weight, e),
              {"x": o.normal(n, d, scale=sc), "weight": 1 + o.normal(d, scale=0.3)}, {"eps": eps})
    for (n, d), eps, sc, mu in (((7, 13), 1e-5, 1.0, 0.0), ((5, 17), 1e-5, 0.02, 0.5), ((3, 64), 1e-5, 3.0, -2.0)):
        o.add("layernorm", lambda x, weight, bias, d=d, e=eps: F.layer_norm(x, (d,), weight, bias, e),
              {"x": o.normal(n, d, scale=sc) + np.float32(mu), "weight": 1 + o.normal(d, scale=0.3),
               "bias": o.normal(d, scale=0.3)}, {"eps": eps})
    for (n, d), sc in (((7, 13), 1.0), ((3, 17), 60.0), ((5, 1), 1.0)):
        o.add("softmax", lambda x: torch.softmax(x, dim=-1), {"x": o.normal(n, d, scale=sc)},
              {"axis": "last"})
    ext = np.array([[-100.0, -30.0, -10.0, -5.0, -1.0, -1e-4, 0.0, 1e-4, 1.0, 5.0, 10.0, 30.0, 100.0]],
                   dtype=np.float32)
    for a in (o.normal(7, 13, scale=2.0), ext):
        o.add("silu", lambda x: F.silu(x), {"x": a}, {})
    for a in (o.normal(7, 13, scale=2.0), ext):
        o.add("gelu_tanh", lambda x: R.gelu_tanh(x), {"x": a}, {})
    for shape, sc in (((7, 17), 1.0), ((3, 13), 4.0)):
        o.add("swiglu", R.swiglu, {"gate": o.normal(*shape, scale=sc), "up": o.normal(*shape, scale=sc)}, {})

    def rope(x, positions, theta):
        cos, sin = R.rope_tables(positions, x.shape[-1], theta, x.dtype)
        return R.apply_rope(x.transpose(1, 2), cos, sin).transpose(1, 2).contiguous()

    for (B, T, H, D), theta, pos in (((2, 7, 3, 8), 10000.0, np.arange(7)),
                                     ((1, 7, 3, 16), 10000.0, np.arange(7) + 13),
                                     ((1, 5, 1, 8), 500000.0, [0, 3, 17, 101, 1009]),
                                     ((1, 1, 5, 2), 10000.0, [7])):
        o.add("rope", lambda x, positions, th=theta: rope(x, positions, th),
              {"x": o.normal(B, T, H, D), "positions": i32(pos)}, {"theta": theta, "layout": "B,T,H,D"})

    def attn(q, k, v):
        y = R.causal_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return y.transpose(1, 2).contiguous()

    for B, T, H, KV, D, sc in ((2, 1, 4, 2, 8, 1.0), (2, 7, 4, 2, 8, 1.0), (1, 64, 2, 1, 8, 1.0),
                               (2, 1, 3, 3, 16, 1.0), (1, 7, 4, 2, 16, 1.5), (1, 64, 1, 1, 16, 1.0),
                               (1, 7, 4, 1, 8, 6.0), (1, 13, 3, 1, 8, 1.0)):
        o.add("attention", attn,
              {"q": o.normal(B, T, H, D, scale=sc), "k": o.normal(B, T, KV, D, scale=sc),
               "v": o.normal(B, T, KV, D)},
              {"causal": True, "scale": 1.0 / math.sqrt(D), "heads": H, "kv_heads": KV, "head_dim": D,
               "layout": "B,T,H,D"})

    ids = o.rs.randint(0, 17, size=(2, 7))
    ids[0, :3] = ids[1, 6]
    ids[1, 0], ids[1, 1] = 0, 16
    o.add("embedding", lambda ids, weight: F.embedding(ids, weight),
          {"ids": i32(ids), "weight": o.normal(17, 13)}, {})

    def ce(logits, targets):
        return F.cross_entropy(logits, targets, ignore_index=R.IGNORE_INDEX)

    for n, v, sc, ign in ((7, 13, 1.0, []), (13, 17, 3.0, [0, 3, 4, 12]), (7, 17, 60.0, [2]),
                          (5, 13, 1.0, [0, 1, 2, 4])):
        t = o.rs.randint(0, v, size=n)
        t[0], t[-1] = 0, v - 1
        t[ign] = R.IGNORE_INDEX
        o.add("cross_entropy", ce, {"logits": o.normal(n, v, scale=sc), "targets": i32(t)},
              {"ignore_index": R.IGNORE_INDEX, "reduction": "mean over valid targets"},
              scalar=True, out="loss")

    for n, i, u in ((7, 13, 17), (1, 17, 7), (13, 1, 1)):
        o.add("linear", lambda x, weight, bias: F.linear(x, weight, bias),
              {"x": o.normal(n, i), "weight": o.normal(u, i), "bias": o.normal(u)},
              {"weight_layout": "out,in"})
    o.add("linear_nobias", lambda x, weight: F.linear(x, weight),
          {"x": o.normal(13, 7), "weight": o.normal(17, 7)}, {"weight_layout": "out,in"})
    o.add("conv1d", lambda x, weight, bias: torch.matmul(x, weight) + bias,
          {"x": o.normal(7, 13), "weight": o.normal(13, 17), "bias": o.normal(17)},
          {"weight_layout": "in,out"})

    hp = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
    o.add_adamw((7, 13), 3, hp)
    o.add_adamw((17,), 3, dict(hp, weight_decay=0.0))
    o.add_clip(1.0, 1.0)
    o.add_clip(0.05, 1.0)

    files.save_safetensors(os.path.join(out, "ops.safetensors"), o.tensors)
    back, _ = files.load_safetensors(os.path.join(out, "ops.safetensors"))
    assert all(np.array_equal(back[n], o.tensors[n]) for n in o.tensors) and len(back) == len(o.tensors)
    with open(os.path.join(out, "ops.json"), "w") as f:
        f.write('{"format_version": %d, "tensors_file": "ops.safetensors", "ops": [\n' % files.FORMAT_VERSION)
        f.write(",\n".join(files.compact(r) for r in o.ops))
        f.write("\n]}\n")
    return o.ops
