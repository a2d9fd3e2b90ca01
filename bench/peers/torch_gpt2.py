#!/usr/bin/env python3
# bench/peers/torch_gpt2.py [eager|compile] [f32|bf16] [threads=2] [steps=5] [cpu] - the step of
# bench/train_step's gpt2-124m in PyTorch: 4 x 256 tokens, forward, backward, norm, fused AdamW. bf16 is
# autocast over f32 weights. `cpu`: time the processor worked (with threads=1, on a machine in use).
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, N, LAYERS, HEADS, BATCH, SEQ = 50304, 768, 12, 12, 4, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(N), nn.LayerNorm(N)
        self.c_attn, self.c_proj = nn.Linear(N, 3 * N), nn.Linear(N, N)
        self.c_fc, self.mlp_proj = nn.Linear(N, 4 * N), nn.Linear(4 * N, N)

    def forward(self, x):
        q, k, v = self.c_attn(self.ln_1(x)).view(BATCH, SEQ, 3, HEADS, N // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(BATCH, SEQ, N))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, N), nn.Embedding(SEQ, N)
        self.h = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.ln_f = nn.LayerNorm(N)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.ln_f(self.h(self.wte(ids) + self.wpe.weight))
        logits = F.linear(x, self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCAB).float(), targets.view(-1))


def main():
    words = sys.argv[1:]
    given = dict(w.split("=") for w in words if "=" in w)
    threads, steps = int(given.get("threads", 2)), int(given.get("steps", 5))
    clock = time.process_time if "cpu" in words else time.perf_counter
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = Model()
    run = torch.compile(model) if "compile" in words else model
    optim = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = (torch.arange(BATCH * SEQ) * 7919 % VOCAB).view(BATCH, SEQ)
    best = 1e9
    for step in range(steps + 2):
        start = clock()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled="bf16" in words):
            loss = run(ids, ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad(set_to_none=True)
        took = clock() - start
        if step > 1:
            best = min(best, took)
    how = "compiled" if "compile" in words else "eager"
    print(f"PyTorch {torch.__version__} {how} {'bf16' if 'bf16' in words else 'f32'}, {threads} threads: "
          f"best step {1e3 * best:.1f} ms, {BATCH * SEQ / best:.0f} tokens/s, loss {loss.item():.4f}")


main()
