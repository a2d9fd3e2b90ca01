#!/usr/bin/env python3
# tests/programs/test_bad_input.py - bad input ends in one clear message and a non-zero exit on all ranks: no hang,
# nothing half-written. Every case runs on one rank, on three threads and on three processes.
import concurrent.futures
import json
import os
import re
import struct
import subprocess
import time

from programs import CONFIG, GOLDEN, HAS_MPI, SAMPLE, TRAIN, Suite, launch, run, tokens_file

suite = Suite("bad_input")
WAYS = ["one", "threads"] + (["mpi"] if HAS_MPI else [])
SEVERAL = WAYS[1:]

text = suite.write("text.txt", "It was a bright cold day in April, and the clocks were striking thirteen. " * 9)
config = suite.write("config.json", CONFIG)
DATA = ["--data.path=" + text]
MODEL = ["--model.config=" + config]
BASE = MODEL + DATA + ["--train.seq_len=8", "--train.global_batch=3", "--train.steps=3"]

cases = []
os.makedirs(suite.path("taken", "offload.0"))  # where rank 0's file should be


def bad(name, arguments, *says, ways=WAYS, steps=0, env=None, outputs=True):
    """steps: how many were finished before the failure."""
    for way in ways:
        cases.append((name + "/" + way, way, arguments, says, steps, env, outputs))


# ---- keys ----
bad("unknown key", BASE + ["--train.stepz=3"], "unknown key 'train.stepz'", "the nearest is 'train.steps'")
bad("key without its group", BASE + ["--seq_len=3"], "unknown key 'seq_len'", "'train.seq_len'")
bad("key of the file", [suite.write("k.json", {"train": {"step": 3}})] + BASE, "k.json", "'train.step'", "'train.steps'")
bad("wrong type in the file", [suite.write("t.json", {"train": {"steps": "3"}})] + BASE, "t.json", "train.steps", "number")
bad("broken file", [suite.write("b.json", '{"train": {"steps": 3,}')] + BASE, "b.json")
bad("no file", [suite.path("none.json")] + BASE, "none.json")
bad("no value", BASE + ["--train.steps"], "train.steps", "needs a value")
bad("no number", BASE + ["--optim.lr=fast"], "optim.lr", "'fast'", "a number")
bad("not finite", BASE + ["--optim.lr=nan"], "optim.lr", "a number")
bad("no choice", BASE + ["--schedule.decay=cosinus"], "schedule.decay", "none|linear|cosine|wsd")
bad("zero steps", BASE + ["--train.steps=0"], "train.steps", "at least 1")
bad("zero length", BASE + ["--train.seq_len=0"], "train.seq_len", "at least 1")
bad("negative batch", BASE + ["--train.global_batch=-1"], "train.global_batch", "at least 1")
bad("beta of one", BASE + ["--optim.beta1=1"], "beta1")
for key in ["optim.beta1", "optim.beta2", "optim.eps"]:
    bad(key + " of zero", BASE + ["--%s=0" % key], key, "legal: above 0", ways=["one"])
bad("too large a batch", BASE + ["--train.global_batch=4611686018427387904"], "train.global_batch")
bad("no model", DATA, "model.config is missing", "--help")
bad("a model for a configuration", [suite.write("m.json", {"model_type": "llama", "hidden_size": 8})] + BASE,
    "m.json: this is a model's config.json", "--model.config=")
bad("a degree by half its name", BASE + ["--parallel.dp=2"], "the nearest is 'parallel.dp_replicate'", ways=["one"])
bad("no data", MODEL, "data.path is missing")
bad("ranks", BASE + ["--parallel.dp_replicate=2"], "parallel.dp_replicate 2", "there is 1 rank;",
    "or start 2 ranks: --ranks=2, or tools/mpirun -n 2", ways=["one"])
bad("a degree too many", BASE + ["--parallel.tp=2"], "parallel.dp_replicate 3", "tp 2", "3 ranks", ways=SEVERAL)
for key in ["parallel.reshard_size", "parallel.stages_per_rank"]:
    bad(key + " past an int", BASE + ["--%s=4294967298" % key], key, "from 0 to 16384", ways=["one"])
bad("no degree", BASE + ["--parallel.tp=0"], "parallel.tp", "from 1 to")
if HAS_MPI:
    bad("threads of processes", BASE + ["--ranks=3"], "ranks=3", "leave one out", ways=["mpi"])
if run([TRAIN, *BASE, "--train.steps=1", "--device=cuda"])[0] != 0:
    bad("a device that is not there", BASE + ["--device=cuda"], "there is no cuda device")

bad("offload to nowhere", BASE + ["--offload.what=all"], "offload.what=all", "offload.dir", ways=["one"])
bad("a folder for nothing", BASE + ["--offload.dir=" + suite.folder], "offload.what=none", "optimizer or all", ways=["one"])
bad("a folder and the host", BASE + ["--offload.what=all", "--offload.to=host", "--offload.dir=" + suite.folder], "offload.to=host",
    "with offload.dir", ways=["one"])
bad("offload below a file", BASE + ["--offload.what=optimizer", "--offload.dir=" + text + "/scratch"], "offload.dir", "text.txt/scratch",
    "Not a directory")
bad("offload past a file", BASE + ["--offload.what=all", "--offload.dir=" + os.path.dirname(suite.path("taken", "x"))], "offload.0",
    "s a directory")

# ---- the model's config ----


def model(name, **changes):
    c = {**CONFIG, **changes}
    return ["--model.config=" + suite.write(name, {k: v for k, v in c.items() if v is not None})] + BASE[1:]


PIPE = model("three.json", num_hidden_layers=3) + ["--parallel.pp=3"]
bad("a pipeline without microbatches", PIPE, "parallel.pp=3", "train.micro_batch", ways=SEVERAL, outputs=False)
bad("more stages than layers", BASE + ["--parallel.pp=3", "--train.micro_batch=1"], "3 pipeline stages", "2 layers", ways=SEVERAL, outputs=False)
bad("more stages than layers by v", PIPE + ["--train.micro_batch=1", "--parallel.schedule=zbv"], "6 pipeline stages", "3 layers",
    ways=SEVERAL, outputs=False)
bad("a schedule of no name", PIPE + ["--train.micro_batch=1", "--parallel.schedule=2f2b"], "2f2b", "1f1b", ways=SEVERAL, outputs=False)
bad("too few microbatches", PIPE + ["--train.micro_batch=2"], "1f1b", "2", "3", "train.micro_batch=2 x 1", ways=SEVERAL, outputs=False)
bad("one microbatch", PIPE + ["--train.micro_batch=9"], "m=1 is too few", "train.global_batch=3", ways=["threads"], outputs=False)
for split, words in [("evenly", "legal: equal, cost, counts"), ("2,2,2", "6 layers, the model 3"),
                     ("model.layers.0;model.layers.1;model.layers.2", "no stage has 'model.embed_tokens'")]:
    bad("split " + split, PIPE + ["--train.micro_batch=1", "--parallel.split=" + split], words, ways=SEVERAL, outputs=False)
bad("a schedule for other ranks", PIPE + ["--train.micro_batch=1", "--parallel.schedule=" + suite.write("two.csv", "0F0,0B0\n1F0,1B0\n")],
    "two.csv", "2 ranks and 1 microbatches", "parallel.pp=3", ways=SEVERAL, outputs=False)
bad("a malformed schedule", PIPE + ["--train.micro_batch=1", "--parallel.schedule=" + suite.write("cell.csv", "0F0,0B0\n1F0,,1Q0\n2F0,2B0\n")],
    "cell.csv:2: cell 3: '1Q0'", ways=SEVERAL, outputs=False)
rows = ["".join("%dF%d," % (s, k) for k in range(3)) + "".join("%dB%d," % (s, k) for k in range(3)) for s in range(3)]
for name, row, words in [("waits", rows[1].replace("1F1,", "") + "1F1", "rank 1, position 2, 1B0 waits for 2B0; rank 2, position 1, 2F1 waits for 1F1"),
                         ("lacks", rows[1].replace("1B2,", ""), "1B2: is missing"), ("doubles", rows[1] + "1B2", "1B2: comes a second time")]:
    path = suite.write(name + ".csv", "\n".join([rows[0], row, rows[2]]) + "\n")
    bad("a schedule that " + name, PIPE + ["--train.micro_batch=1", "--parallel.schedule=" + path], words, ways=SEVERAL, outputs=False)
bad("token in a pipeline", PIPE + ["--train.micro_batch=1", "--data.path=" + suite.write("pipe.bin", tokens_file([5] * 40 + [300] * 60))],
    "pipe.bin", "token 300", ways=SEVERAL, outputs=False)
bad("config without a field", model("c1.json", hidden_size=None), "c1.json", "hidden_size")
bad("config of another type", model("c2.json", vocab_size="many"), "c2.json", "vocab_size")
bad("config of no model", model("c3.json", model_type="bert"), "c3.json", "bert", "llama, mistral, qwen2, qwen3, gpt2")
bad("config with heads that do not divide", model("c4.json", num_attention_heads=3, num_key_value_heads=2), "3 query heads", "2 key/value heads")
bad("config with rope_scaling", model("c5.json", rope_scaling={"type": "linear"}), "c5.json", "rope_scaling", "factor")
for kind, more in [("yarn", {"beta_fast": 32.0, "attention_factor": 1.2}), ("dynamic", {}), ("longrope", {"short_factor": [1.0]})]:
    bad("config with " + kind, model(kind + ".json", rope_scaling={"rope_type": kind, "factor": 2.0, **more}), kind + ".json", "rope_scaling",
        "type '%s'; legal: default, linear, llama3" % kind)
bad("config with half a llama3", model("c8.json", rope_parameters={"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1}),
    "c8.json", "rope_scaling", "high_freq_factor")
bad("config with an unknown rope field", model("c9.json", rope_scaling={"type": "linear", "factor": 2.0, "mrope_section": [1]}),
    "c9.json", "mrope_section")
bad("config with an unknown field", model("c10.json", partial_rotary_factor=0.5), "c10.json", "partial_rotary_factor")
bad("config with dropout of attention", model("c11.json", attention_dropout=0.1), "c11.json", "attention_dropout")
bad("config of mistral with a bias", model("c12.json", model_type="mistral", attention_bias=True), "c12.json", "attention_bias")
bad("config missing", ["--model.config=" + suite.path("no.json")] + BASE[1:], "no.json")
bad("config empty", ["--model.config=" + suite.write("c6.json", "")] + BASE[1:], "c6.json")
bad("sequence past the positions", BASE + ["--train.seq_len=33"], "train.seq_len=33", "32 positions")

# ---- data ----
good = [i % 256 for i in range(100)]


def data(name, content):
    return MODEL + ["--data.path=" + suite.write(name, content)] + BASE[2:]


bad("wrong magic", data("magic.bin", tokens_file(good, magic=20240521)), "magic.bin", "magic", "20240520")
bad("wrong version", data("version.bin", tokens_file(good, version=7)), "version.bin", "version 7")
bad("truncated tokens", data("cut.bin", tokens_file(good)[:-10]), "cut.bin", "truncated", "100", "95")
bad("truncated header", data("head.bin", tokens_file(good)[:100]), "head.bin", "header")
bad("token past the vocabulary", data("past.bin", tokens_file(good[:5] + [256] + good)), "past.bin", "token 256 at position 5",
    "vocab = 256")
bad("byte past the vocabulary", model("c13.json", vocab_size=65), "text.txt", "token 73 at position 0")
rank2 = list(good)
rank2[20] = 300  # sample 2 of 3 reads 16 .. 24: only its rank sees it
bad("token on rank 2", data("rank2.bin", tokens_file(rank2)), "rank 2: ", "rank2.bin", "token 300 at position 20", ways=SEVERAL)
second = list(good)
second[60] = 301
bad("token in step 3", data("step3.bin", tokens_file(second)), "step3.bin", "token 301 at position 60", steps=2)
bad("empty text", data("empty.txt", ""), "empty.txt", "empty")
bad("short text", data("short.txt", "12345678"), "short.txt", "too few", "9")
bad("no text", BASE + ["--data.path=" + suite.path("none.txt")], "none.txt")
bad("a folder as text", BASE + ["--data.path=" + suite.folder], suite.folder, "regular file")
bad("megatron", BASE + ["--data.format=megatron"], "text.txt.bin: No such file", ways=["one"])
bad("short labels", BASE + ["--data.labels=" + suite.write("l.bin", bytes(40))], "l.bin", "10 labels are too few")
many = struct.pack("<700i", *([7] * 3 + [256] + [7] * 696))
bad("label past the vocabulary", BASE + ["--data.labels=" + suite.write("l2.bin", many)], "l2.bin", "label 256 at position 3")
bad("eval data", BASE + ["--eval.every=1", "--eval.path=" + suite.path("none.txt")], "none.txt")

# ---- weights ----
status, _, err = run(launch("one", BASE + ["--model.save=" + suite.path("good")]))
suite.equal((status, err), (0, ""), "the run whose weights are spoilt below")
with open(suite.path("good", "model.safetensors"), "rb") as f:
    raw = f.read()
length = struct.unpack("<Q", raw[:8])[0]
header, body = json.loads(raw[8:8 + length]), raw[8 + length:]
norm, head = "model.norm.weight", "lm_head.weight"


def weights(name, change=None, spoil=lambda h: h, content=body):
    new = json.loads(json.dumps(header))
    if change:
        change(new)
    packed = spoil(json.dumps(new)).encode()
    return BASE + ["--model.init=" + suite.write(name, struct.pack("<Q", len(packed)) + packed + content)]


bad("wrong shape", weights("shape.safetensors", lambda h: h[head].update(shape=[16, 256])), head, "[16, 256]", "[256, 16]")
bad("missing tensor", weights("less.safetensors", lambda h: h.update(other=h.pop(norm))), norm)
bad("overlap", weights("overlap.safetensors", lambda h: h[norm].update(data_offsets=[0, 64])), "overlap.safetensors", "overlap")
bad("offsets past the file", weights("short.safetensors", content=body[:-4]), "short.safetensors")
bad("bytes after the tensors", weights("long.safetensors", content=body + bytes(4)), "long.safetensors")
bad("offsets unlike the shape", weights("size.safetensors", lambda h: h[norm].update(shape=[15])), "size.safetensors", norm)
bad("unknown dtype", weights("dtype.safetensors", lambda h: h[norm].update(dtype="F31")), "dtype.safetensors", "F31")
bad("duplicate name", weights("twice.safetensors", None, lambda h: h.replace('"%s"' % head, '"%s"' % norm)),
    "twice.safetensors", norm)
bad("broken header", weights("broken.safetensors", None, lambda h: h[:-1]), "broken.safetensors")
bad("header past the file", BASE + ["--model.init=" + suite.write("past.safetensors", struct.pack("<Q", 1 << 40) + raw[8:])],
    "past.safetensors", "header")
bad("seven bytes", BASE + ["--model.init=" + suite.write("seven.safetensors", raw[:7])], "seven.safetensors")
bad("no weights", BASE + ["--model.init=" + suite.path("nowhere")], "nowhere")
bad("an empty folder", BASE + ["--model.init=" + (os.mkdir(suite.path("hollow")) or suite.path("hollow"))], "hollow")

# ---- places, memory, arithmetic ----
for key in ["log.json", "log.plot", "log.trace", "model.save"]:
    below = text + "/x"
    bad(key + " below a file", BASE + ["--%s=%s" % (key, below)], "%s=%s" % (key, below), "Not a directory", outputs=False)
bad("save in /proc", BASE + ["--model.save=/proc/x"], "model.save=/proc/x", outputs=False)
for key in ["log.json", "log.plot", "log.trace"]:
    for read, path, says in [("data.path", text, "is a file of the data"), ("model.config", config, "is the file of model.config")]:
        os.symlink(path, suite.path(key + read))
        bad("%s over %s" % (key, read), BASE + ["--%s=%s" % (key, suite.path(key + read))], key, says,
            ways=WAYS if key == "log.json" else ["one"], outputs=False)
bad("full disk", BASE + ["--log.json=/dev/full"], "/dev/full", "No space left", outputs=False)
for n in [1, 30, 200]:
    bad("allocation %d" % n, BASE, "allocation %d" % n, "out of memory", env={"DT_FAULT": "alloc:%d" % n})
    bad("allocation %d of rank 2" % n, BASE, "rank 2", "allocation %d" % n, ways=SEVERAL,
        env={"DT_FAULT": "alloc:%d@2" % n})
bad("not a number", BASE + ["--optim.lr=1e30", "--train.max_norm=0"], "step 2", "nothing was updated", steps=1)


def leftovers(folder, steps):
    """What a failed run may not leave: anything but whole lines of the steps that were finished."""
    left = sorted(os.listdir(folder))
    if left not in ([], ["log.json"]):
        return left
    if not left:
        return [] if steps == 0 else ["no log.json"]
    with open(os.path.join(folder, "log.json")) as f:
        lines = f.read().split("\n")
    done = [json.loads(line)["step"] for line in lines[:-1]]
    return [] if lines[-1] == "" and done == list(range(1, steps + 1)) else ["log.json: " + "\n".join(lines)]


def attempt(case):
    number, (name, way, arguments, says, steps, env, outputs) = case
    folder = suite.path("out%d" % number)
    os.mkdir(folder)
    if outputs:
        arguments = arguments + ["--log.json=" + folder + "/log.json", "--log.plot=" + folder + "/loss.svg",
                                 "--model.save=" + folder + "/model"]
    return case, folder, run(launch(way, arguments), env={"OMP_NUM_THREADS": "1", **(env or {})})


def judge(case, folder, result):
    name, _, _, says, steps, _, _ = case[1]
    status, out, err = result
    shown = "%s: status %s, stderr:\n%s" % (name, status, err)
    suite.check(status is not None and 0 < status < 128, "exit status: " + shown)
    lines = [line for line in err.split("\n") if line.strip()]
    head = [line for line in lines if not line.startswith("  ")]
    suite.check(len(head) == 1 and "failed: " in head[0], "one message: " + shown)
    suite.check(all(word in err for word in says), "says %r: %s" % (says, shown))
    suite.check("failed" not in out and "rror" not in out, "stdout of %s: %s" % (name, out))
    suite.equal(leftovers(folder, steps), [], "left behind by " + name)


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for done in pool.map(attempt, enumerate(cases)):
        judge(*done)

# ---- a file of offload that is damaged while it is in use: all ranks end, with its name ----
for way in WAYS:
    scratch = suite.path("scratch-" + way)
    ranks = 1 if way == "one" else 2
    log = scratch + ".json"
    with subprocess.Popen(launch(way, BASE + ["--parallel.dp_shard=%d" % ranks, "--offload.what=all", "--train.steps=1000000",
                                              "--offload.dir=" + scratch, "--log.json=" + log], ranks),
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        for _ in range(600):
            if os.path.exists(log) and os.path.getsize(log) > 0:
                break
            time.sleep(0.05)
        os.truncate("%s/offload.%d" % (scratch, ranks - 1), 0)
        try:
            err = process.communicate(timeout=60)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.terminate()
            err = "it hung; " + process.communicate()[1].decode(errors="replace")
    suite.check(0 < process.returncode < 128 and err.count("failed: ") == 1 and "offload.%d: reading " % (ranks - 1) in err and
                "damaged" in err, "a damaged file, %s: status %s, %s" % (way, process.returncode, err))

for way in ["one", "threads"]:
    status, _, err = run(["sh", "-c", 'exec "$@" >/dev/full', "sh"] + launch(way, BASE))
    suite.check(status == 1 and err.count("failed: ") == 1 and "standard output" in err, "full output: %s %s" % (status, err))

# ---- sample ----
saved = suite.path("good")
status, _, err = run(["sh", "-c", 'exec "$@" >/dev/full', "sh", SAMPLE, saved, "--tokens=3"])
suite.check(status == 1 and err.count("failed: ") == 1 and "standard output" in err, "sample to a full device: %s" % err)
for name, arguments, word in [("no folder", [], "which model"), ("no such folder", [suite.path("none")], "none"),
                              ("unknown key", [saved, "--tokns=3"], "'tokens'"),
                              ("empty prompt", [saved, "--prompt="], "prompt"),
                              ("another vocabulary", [os.path.join(GOLDEN, "llama_tiny")], "256"),
                              ("zero tokens", [saved, "--tokens=0"], "tokens")]:
    status, out, err = run([SAMPLE] + arguments)
    suite.check(status == 1 and err.count("failed: ") == 1 and word in err and out == "",
                "sample, %s: status %s, %s%s" % (name, status, out, err))
suite.close()
