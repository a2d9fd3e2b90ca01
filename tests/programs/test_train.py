#!/usr/bin/env python3
# tests/programs/test_train.py - the training program end to end: its keys, what it writes, the law from outside (ranks,
# microbatches, restarts), PyTorch's numbers by keys alone, and the sample program on what it saved.
import json
import math
import os
import re
import struct
import xml.etree.ElementTree

from programs import CONFIG, GOLDEN, HAS_MPI, SAMPLE, TRAIN, Suite, launch, read_log, run

suite = Suite("train")
text = suite.write("text.txt", "It was a bright cold day in April, and the clocks were striking thirteen. " * 9)
config = suite.write("config.json", CONFIG)
BASE = ["--model.config=" + config, "--data.path=" + text, "--train.seq_len=16", "--train.global_batch=5",
        "--train.steps=6", "--optim.lr=0.01"]
runs = 0


def train(arguments, way="one", ranks=1, env=None):
    """The log of a run that must succeed, and what it printed."""
    global runs
    runs += 1
    path = suite.path("log%d.json" % runs)
    status, out, err = run(launch(way, arguments + ["--log.json=" + path], ranks), env=env)
    suite.check(status == 0 and err == "", "%s %s: status %s, stderr %s" % (way, arguments, status, err))
    return (read_log(path) if os.path.exists(path) else []), out


def values(log, key="loss"):
    return [step[key] for step in log]


# ---- keys ----
status, out, err = run([TRAIN, "--help"])
suite.equal((status, err), (0, ""), "--help")
for key in ["model.config", "model.init", "data.path", "data.labels", "data.format", "train.steps", "train.seq_len",
            "train.global_batch", "train.micro_batch", "train.seed", "train.max_norm", "optim.lr", "optim.beta1", "optim.beta2",
            "optim.eps", "optim.weight_decay", "schedule.warmup_steps", "schedule.decay", "schedule.min_ratio",
            "parallel.dp_replicate", "parallel.dp_shard", "parallel.tp", "parallel.pp", "parallel.sp", "parallel.loss_parallel",
            "parallel.schedule", "parallel.stages_per_rank", "parallel.reshard_after_forward", "dtype.param", "dtype.reduce",
            "recompute", "checkpoint.dir", "checkpoint.every", "checkpoint.keep", "checkpoint.resume", "eval.every",
            "eval.steps", "device", "ranks", "log.every", "log.json", "log.params", "log.trace"]:
    suite.check(re.search(r"^  --%s[=\[]" % re.escape(key), out, re.M) is not None, "--help lists " + key)
status, out, err = run([TRAIN, "--print-config"] + BASE + ["--train.steps", "7", "--log.params"])
suite.equal((status, err), (0, ""), "--print-config")
printed = json.loads(out)
suite.equal((printed["train"]["steps"], printed["log"]["params"], printed["optim"]["beta2"], printed["schedule"]["decay"],
             printed["data"]["path"]), (7, True, 0.95, "none", text), "the printed configuration")
suite.equal(run([TRAIN, suite.write("printed.json", out), "--print-config"]), (0, out, ""), "the configuration read back")
if HAS_MPI:
    status, again, err = run(launch("mpi", [suite.path("printed.json"), "--print-config"], 2))
    suite.equal(status, 0, "--print-config under MPI")
    suite.equal(json.loads(again)["optim"], printed["optim"], "one rank prints")

# ---- what a run writes ----
first, out = train(BASE + ["--log.params", "--log.every=2", "--log.plot=" + suite.path("loss.svg"),
                           "--log.trace=" + suite.path("trace.json"), "--model.save=" + suite.path("model")])
suite.equal(values(first, "step"), [1, 2, 3, 4, 5, 6], "steps")
suite.equal(re.findall(r"^step (\d)/6 ", out, re.M), ["1", "2", "4", "6"], "lines of log.every=2")
suite.check("\r" not in out and "\033" not in out, "no live line where there is no terminal")
names = None
for step in first:
    suite.equal(set(step), {"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "mfu", "memory_peak_bytes",
                            "comm_bytes", "params"}, "fields")
    suite.equal((step["tokens"], step["lr"], step["comm_bytes"]), (step["step"] * 80, 0.01, 0), "exact fields")
    measured = [step[key] for key in ["memory_peak_bytes", "tokens_per_s", "mfu"]]
    suite.check(all(x > 0 for x in measured), "measured fields: %r" % measured)
    norms = [p["grad_norm"] for p in step["params"].values()]
    suite.near([math.sqrt(sum(n * n for n in norms))], [step["grad_norm"]], 1e-9 * step["grad_norm"], "norm of norms")
    suite.check(all(p["norm"] > 0 for p in step["params"].values()), "norms of weights")
suite.check(first[-1]["loss"] < first[0]["loss"] - 0.1, "the loss falls: %r" % values(first))
suite.check(abs(first[0]["loss"] - math.log(256)) < 0.1, "the first loss is near ln 256: %r" % first[0]["loss"])
expected = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} | {
    "model.layers.%d.%s.weight" % (i, part) for i in range(2) for part in
    ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
     "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]}
suite.equal(set(first[0]["params"]), expected, "names of parameters")
root = xml.etree.ElementTree.parse(suite.path("loss.svg")).getroot()
suite.equal(root.tag, "{http://www.w3.org/2000/svg}svg", "loss.svg")
suite.equal(len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))), 1, "one curve")
with open(suite.path("trace.json")) as f:
    json.load(f)

# ---- the saved model ----
suite.equal(sorted(os.listdir(suite.path("model"))), ["config.json", "model.safetensors"], "model.save")
with open(suite.path("model", "model.safetensors"), "rb") as f:
    raw = f.read()
length = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + length])
header.pop("__metadata__", None)
suite.equal(set(header), expected, "names in the file")
for name, entry in header.items():
    lo, hi = entry["data_offsets"]
    data = struct.unpack("<%df" % ((hi - lo) // 4), raw[8 + length + lo:8 + length + hi])
    norm, logged = math.sqrt(sum(x * x for x in data)), first[-1]["params"][name]["norm"]
    suite.near([norm], [logged], 1e-9 * norm, "the saved %s is that of the last step" % name)
saved = ["--model.config=" + suite.path("model", "config.json"), "--model.init=" + suite.path("model")]
# Weights do not depend on data: a run on from the saved model starts with the loss that an evaluation of the same batch
# gives at the end of the first run, and a run at rate 0 keeps it to the bit.
still, _ = train(BASE + saved[1:] + ["--optim.lr=0", "--train.global_batch=41", "--train.steps=2"])
suite.equal(still[0]["loss"], still[1]["loss"], "a batch of all data, again, at rate 0")
evaluated, out = train(BASE + ["--eval.every=4", "--eval.steps=1", "--eval.path=" + text])
suite.equal([s["step"] for s in evaluated if "eval_loss" in s], [4, 6], "steps with evaluation")
suite.equal(values(evaluated), values(first), "evaluation changes nothing")
suite.check(re.search(r"^step 4/6 .*eval \d", out, re.M) is not None, "the line tells the evaluation")
on, _ = train(BASE + saved[1:])
suite.equal(on[0]["loss"], evaluated[-1]["eval_loss"], "going on from the saved model")
tail, _ = train(BASE + ["--eval.every=6", "--eval.steps=8"])
whole, _ = train(BASE + ["--eval.every=6", "--eval.steps=8", "--eval.path=" + suite.write(
    "end.txt", open(text).read()[-(8 * 80 + 1):])])
suite.equal(tail[-1]["eval_loss"], whole[-1]["eval_loss"], "without eval.path: the end of the data")
status, out, err = run([SAMPLE, suite.path("model"), "--prompt=It was", "--tokens=40", "--seed=3"])
suite.check(status == 0 and err == "" and out.startswith("It was") and len(out) >= 30, "sample: %s %r %s" % (status, out, err))
suite.equal(run([SAMPLE, suite.path("model"), "--prompt=It was", "--tokens=40", "--seed=3"])[1], out, "sample by its seed")
suite.check(run([SAMPLE, suite.path("model"), "--prompt=It was", "--tokens=40", "--seed=4"])[1] != out, "another seed")

# ---- the law, from outside ----
again, _ = train(BASE + ["--log.params"])
same = ["loss", "grad_norm", "params", "lr", "tokens", "memory_peak_bytes"]
suite.equal([values(again, k) for k in same], [values(first, k) for k in same], "two runs, to the bit")
other, _ = train(BASE + ["--train.seed=1"])
suite.check(other[0]["loss"] != first[0]["loss"], "the seed matters")
ways = [("one", 1), ("threads", 2), ("threads", 3)] + ([("mpi", 2)] if HAS_MPI else [])
twos = {}
for way, ranks in ways:
    for micro in [0, 1, 2]:
        log, _ = train(BASE + ["--train.micro_batch=%d" % micro], way, ranks, env={"OMP_NUM_THREADS": "1"})
        what = "%s of %d ranks, micro_batch %d" % (way, ranks, micro)
        suite.near(values(log), values(first), 2e-5, "losses, " + what)
        suite.near(values(log, "grad_norm"), values(first, "grad_norm"), 2e-4, "norms, " + what)
        if ranks == 2:
            twos.setdefault(micro, []).append(values(log))
for micro, logs in twos.items():
    suite.equal(logs[:1] * len(logs), logs, "threads and MPI, to the bit, micro_batch %d" % micro)
keys = suite.write("keys.json", {"model": {"config": config}, "data": {"path": text},
                                 "train": {"seq_len": 16, "global_batch": 5, "steps": 99}, "optim": {"lr": 0.01}})
file, _ = train([keys, "--train.steps=6"])
suite.equal(values(file), values(first), "keys of a file, one of them overruled")

# ---- data ----
# 666 bytes: 8 steps of 80 fit; the ninth starts again at 0. At rate 0 equal batches have equal losses.
wrap, _ = train(BASE + ["--optim.lr=0", "--train.steps=10"])
suite.equal(values(wrap)[8:], values(wrap)[:2], "text wraps to its start")
suite.check(len(set(values(wrap)[:8])) == 8, "eight batches differ: %r" % values(wrap))
content = open(text, "rb").read()
labels = suite.write("same.bin", struct.pack("<%di" % (len(content) - 1), *content[1:]))
relabelled, _ = train(BASE + ["--data.labels=" + labels])
suite.equal(values(relabelled), values(first), "labels that are the next bytes")
for i, ways_of in enumerate([("one", 1), ("threads", 3)]):
    ignored = suite.write("none%d.bin" % i, struct.pack("<%di" % (len(content) - 1), *([-100] * (len(content) - 1))))
    nothing, _ = train(BASE + ["--data.labels=" + ignored, "--log.params"], *ways_of)
    suite.equal(values(nothing), [0] * 6, "no target counts: loss 0")
    suite.equal([s["params"]["lm_head.weight"]["norm"] for s in nothing],
                [nothing[0]["params"]["lm_head.weight"]["norm"]] * 6, "and no update")

# ---- PyTorch's numbers, by keys ----
for case in ["llama_tiny", "llama_tied", "gpt2_tiny"]:
    folder = os.path.join(GOLDEN, case)
    with open(os.path.join(folder, "expected.json")) as f:
        golden = json.load(f)
    t, limit = golden["train"], golden["tolerance"]
    plan = t["lr_schedule"]
    arguments = ["--model.config=%s/config.json" % folder, "--model.init=" + folder, "--data.path=%s/tokens.bin" % folder,
                 "--log.params"] + ["--%s=%r" % pair for pair in [
                     ("train.steps", t["steps"]), ("train.seq_len", t["seq_len"]), ("train.global_batch", t["batch_size"]),
                     ("train.max_norm", t["grad_clip"]), ("optim.lr", t["lr"]), ("optim.beta1", t["beta1"]),
                     ("optim.beta2", t["beta2"]), ("optim.eps", t["eps"]), ("optim.weight_decay", t["weight_decay"])]]
    if plan["type"] == "warmup_cosine":
        arguments += ["--schedule.decay=cosine", "--schedule.warmup_steps=%d" % plan["warmup_steps"],
                      "--schedule.min_ratio=%r" % plan["min_lr_ratio"]]
    if golden.get("labels_file"):
        arguments += ["--data.labels=%s/%s" % (folder, golden["labels_file"])]
    for way, ranks in [("one", 1), ("threads", 3)]:
        log, _ = train(arguments, way, ranks)
        what = "%s, %s" % (case, way)
        suite.near(values(log), golden["loss_f64"], limit["loss_abs"], what + ": losses")
        suite.near([a / b for a, b in zip(values(log, "grad_norm"), golden["grad_norm_f64"])], [1] * len(log),
                   limit["grad_norm_rel"], what + ": norms")
        suite.near(values(log, "lr"), golden["lr"], 1e-12, what + ": rates")
        for name, norm in golden["grad_norms_step0_f64"].items():
            if name in log[0]["params"]:
                suite.near([log[0]["params"][name]["grad_norm"] / norm], [1], limit["param_grad_norm_rel"],
                           "%s: gradient norm of %s" % (what, name))
        last = golden["params_final_f64"]
        for name, weight in log[-1]["params"].items():
            if not name.endswith("c_attn.bias"):  # its key part is rounding only (tests/golden/README.md)
                suite.near([weight["norm"] / last[name]["l2"]], [1], limit["param_final_l2_rel"],
                           "%s: final norm of %s" % (what, name))
suite.close()
