#!/usr/bin/env python3
# tests/programs/test_metrics.py - what the training program tells of a run: FLOPs counted and by the formula, TensorBoard's
# files, norms of layers, spikes, and where numbers that are not finite came from.
import json
import math
import os
import re
import struct

from programs import CONFIG, TRAIN, Suite, read_log, run

suite = Suite("metrics")
text = suite.write("text.txt", "It was a bright cold day in April, and the clocks were striking thirteen. " * 20)
config = suite.write("config.json", CONFIG)
B, T, V, H, MLP, LAYERS, HEADS, D, KV = 6, 16, 256, 16, 24, 2, 2, 8, 1
BASE = ["--model.config=" + config, "--data.path=" + text, "--train.seq_len=%d" % T, "--train.global_batch=%d" % B,
        "--train.steps=3", "--optim.lr=0.01", "--log.peak_flops=1e9", "--log.every=1"]


def train(arguments, ranks=1, ok=True):
    status, out, err = run([TRAIN] + BASE + arguments + (["--ranks=%d" % ranks] if ranks > 1 else []))
    suite.check((status == 0 and err == "") if ok else status not in (0, None),
                "%s: status %s, stderr %s" % (arguments, status, err))
    return out if ok else err


# ---- FLOPs: by hand, by the formula, and as products ran ----
LAYER = 2 * H * H + 2 * H * KV * D + 3 * H * MLP  # elements of q, o, k, v and mlp
MODEL = 6 * (LAYERS * LAYER + V * H) + 12 * LAYERS * HEADS * D * T
SCORES = 2 * LAYERS * HEADS * D * T  # attention's backward makes them once more
FORWARD = LAYERS * (2 * LAYER + 4 * HEADS * D * T)
for keys, ranks, again in [([], 1, 0), (["train.micro_batch=4"], 1, 0), (["recompute=full"], 1, FORWARD),
                           (["parallel.dp_shard=3"], 3, 0), (["parallel.tp=2", "parallel.sp"], 2, None),
                           (["parallel.pp=2", "train.micro_batch=2", "parallel.dp_replicate=2"], 4, 0),
                           (["parallel.tp=2", "parallel.loss_parallel=false", "recompute=full"], 2, None)]:
    out = train(["--" + key for key in keys], ranks)
    said = re.search(r"FLOP/token: (\S+) by the formula, (\S+) counted, (\S+) with what ran twice", out)
    numbers = [float(x) for x in said.groups()] if said else [0, 0, 0]
    suite.near(numbers[:2], [MODEL, MODEL], 1e-5 * MODEL, "FLOPs with %s" % keys)
    if again is None:  # keys and values have one head: two ranks of tp make it alike
        suite.check(numbers[2] > MODEL + SCORES, "what ran twice with %s: %r" % (keys, numbers))
    else:
        suite.near(numbers[2:], [MODEL + SCORES + again], 1e-5 * MODEL, "what ran twice with %s" % keys)

# ---- TensorBoard ----


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    while data:
        (length,), (crc,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
        body, (end,) = data[12:12 + length], struct.unpack("<I", data[12 + length:16 + length])
        suite.check(crc == crc32c(data[:8]) and end == crc32c(body), "sums of a record")
        yield body
        data = data[16 + length:]


def fields(data):
    """(field, value) of a protocol buffer: numbers, or bytes."""
    def varint(at):
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                return value, at
    at = 0
    while at < len(data):
        key, at = varint(at)
        if key & 7 == 0:
            value, at = varint(at)
        else:
            size, at = varint(at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = data[at:at + size], at + size
            value = {1: lambda v: struct.unpack("<d", v)[0], 5: lambda v: struct.unpack("<f", v)[0]}.get(key & 7, bytes)(value)
        yield key >> 3, value


suite.equal(crc32c(b"123456789"), ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF, "this reader's sums")
board = suite.path("board")
out = train(["--log.tensorboard=" + board, "--log.json=" + suite.path("log.json"), "--log.layers=2", "--log.params",
             "--eval.every=2", "--eval.steps=1"])
files = os.listdir(board)
suite.check(len(files) == 1 and files[0].startswith("events.out.tfevents."), "the file's name: %r" % files)
with open(os.path.join(board, files[0]), "rb") as f:
    events = [dict(fields(body)) for body in records(f.read())]
suite.equal(events[0].get(3), b"brain.Event:2", "the version")
suite.check(all(abs(e[1] - os.path.getmtime(os.path.join(board, files[0]))) < 120 for e in events), "times")
scalars = {}
for e in events[1:]:
    for number, value in fields(e[5]):
        one = dict(fields(value))
        suite.check(number == 1 and set(one) == {1, 2}, "a value")
        scalars[e[2], one[1].decode()] = one[2]
log = read_log(suite.path("log.json"))
for step in log:
    for name in ["loss", "grad_norm", "lr", "mfu", "hfu", "tokens_per_s", "memory_peak_bytes", "comm_bytes"] + (
            ["eval_loss"] if step["step"] != 1 else []):
        suite.near([scalars.get((step["step"], name), -1)], [step[name]], 1e-6 * abs(step[name]), "%s in TensorBoard" % name)
suite.check((1, "eval_loss") not in scalars, "no evaluation after step 1")

# ---- norms of layers ----
layers = {"model.layers.0", "model.layers.1", "model.embed_tokens", "model.norm", "lm_head"}
suite.equal({tag[16:] for step, tag in scalars if step == 2 and tag.startswith("layer_")}, layers, "layers in step 2")
suite.check(not any(step != 2 and tag.startswith("layer_") for step, tag in scalars), "layers every second step")
printed = dict((name, float(norm)) for norm, name in re.findall(r"^  gradient (\S+) +(\S+)$", out, re.M))
for name in layers:
    want = math.sqrt(sum(p["grad_norm"] ** 2 for key, p in log[1]["params"].items() if key.startswith(name + ".")))
    suite.near([printed.get(name, -1), scalars.get((2, "layer_grad_norm/" + name), -1)], [want, want], 1e-3 * want, name)

# ---- spikes ----
STEPS = 140  # the last 128 of them no longer know of the beginning
loud = "".join(chr(33 + i * 37 % 90) for i in range(200))
spiky = ["--data.path=" + suite.write("spiky.txt", ("ab" * 10000)[:B * T * STEPS + 1] + loud), "--train.steps=%d" % (STEPS + 1)]
found = re.findall(r"^step (\d+): a spike: loss \S+ is (\S+) standard deviations above the mean of the last (\d+)$",
                   train(spiky), re.M)
suite.check(len(found) == 1 and found[0][0] == str(STEPS + 1) and found[0][2] == "128" and float(found[0][1]) > 6,
            "a spike: %r" % found)
suite.check("a spike" not in train(spiky + ["--log.spike=0"]), "spikes are not watched")

# ---- not finite ----
train(["--model.save=" + suite.path("model")])
with open(suite.path("model", "model.safetensors"), "rb") as f:
    good = f.read()
(size,) = struct.unpack_from("<Q", good)
header = json.loads(good[8:8 + size])


def spoil(*places):
    """places: (tensor, row of H elements)."""
    bad = bytearray(good)
    for tensor, row in places:
        at = 8 + size + header[tensor]["data_offsets"][0] + 4 * row * H
        bad[at:at + 4] = struct.pack("<f", math.nan)
    suite.write("bad.safetensors", bytes(bad), again=True)
    return ["--model.init=" + suite.path("bad.safetensors")]


up = "model.layers.1.mlp.up_proj"
ways = [([], 1, 0), (["parallel.dp_replicate=2"], 2, 0), (["parallel.tp=2"], 2, 1),
        (["parallel.pp=2", "train.micro_batch=2"], 2, 1)]
for keys, ranks, who in ways:  # row 20 of 24: of the second rank of tp, of the second stage
    err = train(spoil((up + ".weight", 20)) + ["--" + key for key in keys], ranks, ok=False)
    for want in ["step 1: loss nan", "nothing was updated", "operand 1 of ", "in '%s'" % up, "rank %d, in microbatch 0" % who]:
        suite.check(want in err, "%s: %r not in %s" % (keys, want, err))
    suite.equal(err.count("failed: "), 1, "one message with %s" % keys)
# one token that only sample 4 has: of rank 1 with two ranks, and of microbatch 2 of two samples each
rare = "a" * (4 * T + 3) + "~" + "a" * 300
row = spoil(("model.embed_tokens.weight", ord("~"))) + ["--data.path=" + suite.write("rare.txt", rare)]
for keys, ranks, where in [(["train.micro_batch=2"], 1, "rank 0, in microbatch 2"),
                           (["parallel.dp_replicate=2"], 2, "rank 1, in microbatch 0"),
                           (["parallel.dp_shard=2", "train.micro_batch=1"], 2, "rank 0, in microbatch 2")]:
    err = train(row + ["--" + key for key in keys], ranks, ok=False)
    suite.check("result 0 of embedding in 'model.embed_tokens'" in err or "operand 1 of embedding" in err, "the embedding: " + err)
    suite.check(where in err, "%s: %r not in %s" % (keys, where, err))
# stages 0 and 2 are rank 0's: the first is that of the model's order, in stage 1
more = suite.write("four.json", dict(CONFIG, num_hidden_layers=4))
train(["--model.config=" + more, "--model.save=" + suite.path("four")])
with open(suite.path("four", "model.safetensors"), "rb") as f:
    good = f.read()
(size,) = struct.unpack_from("<Q", good)
header = json.loads(good[8:8 + size])
RARE = "a" * (T + 3) + "~" + "a" * 300  # in microbatch 1, whose stage 0 comes before stage 2 of microbatch 0
for schedule, order in [("interleaved", [0, 1, 0, 1]), ("zbv", [0, 1, 1, 0])]:
    for layer in [1, 2]:
        name = "model.layers.%d.mlp.up_proj" % layer
        err = train(spoil((name + ".weight", 20), ("model.embed_tokens.weight", ord("~"))) + [
            "--data.path=" + suite.write("rare_%s%d.txt" % (schedule, layer), RARE), "--model.config=" + more, "--parallel.pp=2", "--train.micro_batch=1", "--parallel.schedule=" + schedule], 2, ok=False)
        suite.check("in '%s'" % name in err and "rank %d, in microbatch 0" % order[layer] in err, "%s: %s" % (schedule, err))
suite.close()
