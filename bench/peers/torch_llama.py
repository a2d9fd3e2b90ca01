#!/usr/bin/env python3
# bench/peers/torch_llama.py [eager|compile] [peak=989.4] [steps=10] [tiny] - the step of bench/gpu's
# llama-1b in PyTorch on a GPU: 2 x 4096 tokens, bf16 autocast over f32 weights, SDPA, forward, backward,
# norm and clip, fused AdamW. `tiny`: a small one, on the CPU, to see that it runs.
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS = sys.argv[1:]
TINY = "tiny" in WORDS
VOCAB, N, INNER, LAYERS, HEADS, KV, BATCH, SEQ = (256, 64, 128, 2, 4, 2, 2, 32) if TINY else (32000, 2048, 8192, 16, 32, 8, 2, 4096)
D = N // HEADS
DEVICE = "cpu" if TINY else "cuda"


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(N))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight.to(x.dtype)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = Norm(), Norm()
        self.q, self.k, self.v = (nn.Linear(N, h * D, bias=False) for h in (HEADS, KV, KV))
        self.o = nn.Linear(N, N, bias=False)
        self.gate, self.up, self.down = (nn.Linear(i, o, bias=False) for i, o in ((N, INNER), (N, INNER), (INNER, N)))

    def forward(self, x, cos, sin):
        y = self.norm_1(x)
        q, k, v = (f(y).view(BATCH, SEQ, -1, D).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (t.repeat_interleave(HEADS // KV, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(BATCH, SEQ, N))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB, N), nn.Linear(N, VOCAB, bias=False)
        self.layers, self.norm = nn.ModuleList([Block() for _ in range(LAYERS)]), Norm()
        angle = torch.outer(torch.arange(SEQ), 1e4 ** (-torch.arange(0, D, 2) / D)).repeat(1, 2)
        self.register_buffer("cos", angle.cos().to(torch.bfloat16))
        self.register_buffer("sin", angle.sin().to(torch.bfloat16))
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.embedding(ids).to(torch.bfloat16)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, VOCAB).float(), targets.view(-1))


def main():
    given = dict(w.split("=") for w in WORDS if "=" in w)
    steps, peak = int(given.get("steps", 10)), 1e12 * float(given.get("peak", 989.4))
    torch.manual_seed(1)
    model = Model().to(DEVICE)
    run = torch.compile(model) if "compile" in WORDS else model
    optim = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=not TINY)
    ids = (torch.arange(BATCH * SEQ, device=DEVICE) * 7919 % VOCAB).view(BATCH, SEQ)
    sync = (lambda: None) if TINY else torch.cuda.synchronize
    for step in range(steps + 3):
        if step == 3:
            sync()
            start = time.perf_counter()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = run(ids, ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad(set_to_none=True)
    sync()
    step_s = (time.perf_counter() - start) / steps
    products = sum(p.numel() for name, p in model.named_parameters() if p.dim() > 1 and "embedding" not in name)
    flops = BATCH * SEQ * (6 * products + 6 * LAYERS * N * SEQ)
    print(f"PyTorch {torch.__version__} {'compiled' if 'compile' in WORDS else 'eager'} llama-1b bf16: {1e3 * step_s:.2f} ms a step, "
          f"{BATCH * SEQ / step_s:.0f} tokens/s, MFU {flops / step_s / peak:.3f}, loss {loss.item():.4f}")


main()
