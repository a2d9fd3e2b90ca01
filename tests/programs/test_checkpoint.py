#!/usr/bin/env python3
# tests/programs/test_checkpoint.py - training runs that stop and go on: bit-equal to one that did not, whenever they are
# killed, whatever is damaged; the folder as an independent reader (json, struct) sees it. DT_FULL=1: more kills.
import glob
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

from programs import CONFIG, HAS_MPI, MPIRUN, TRAIN, Suite, launch, read_log, run

CKPT = sys.argv[-1]
suite = Suite("checkpoint")
FULL = os.environ.get("DT_FULL") == "1"
STEPS = 6
text = suite.write("text.txt", "It was a bright cold day in April, and the clocks were striking thirteen. " * 9)
config = suite.write("config.json", CONFIG)
BASE = ["--model.config=" + config, "--data.path=" + text, "--train.seq_len=8", "--train.global_batch=4",
        "--log.peak_flops=1e9", "--train.steps=%d" % STEPS]
SHARDS = ["--parallel.dp_shard=2"]


def command(way, arguments):
    if way == "mpi":
        return [MPIRUN, "-n", "2", TRAIN] + arguments + SHARDS
    return [TRAIN, "--ranks=2"] + arguments + SHARDS


def folder(name):
    return suite.path(name), ["--checkpoint.dir=" + suite.path(name), "--log.json=" + suite.path(name + ".jsonl")]


def numbers(name):
    return [(s["step"], s["loss"], s["grad_norm"], s["tokens"]) for s in read_log(suite.path(name + ".jsonl"))]


def steps_of(path):
    return sorted(n for n in os.listdir(path) if n != "latest")


def good(arguments, way="threads"):
    status, out, err = run(command(way, arguments))
    suite.equal((status, err), (0, ""), " ".join(arguments[-4:]))
    return out


# ---- going on ----
started = time.monotonic()
whole, args = folder("whole")
good(BASE + args + ["--checkpoint.every=2"])
took_s = time.monotonic() - started
reference = numbers("whole")
suite.equal(steps_of(whole), ["step-00000002", "step-00000004", "step-00000006"], "steps")
suite.equal(os.readlink(whole + "/latest"), "step-00000006", "latest")

for name, more in [("sync", []), ("async", ["--checkpoint.async", "--checkpoint.staging_bytes=4096"]),
                   ("offload", ["--offload.what=all", "--offload.dir=" + suite.path("resting")]),
                   ("bf16", ["--checkpoint.dtype=bf16", "--checkpoint.file_bytes=9999"])]:
    path, args = folder(name)
    way = "mpi" if HAS_MPI and name == "async" else "threads"
    good(BASE + args + more + ["--checkpoint.every=2", "--train.steps=3", "--checkpoint.keep=1"], way)
    suite.equal(steps_of(path), ["step-00000003"], "the last step is saved")
    out = good(BASE + args + more + ["--checkpoint.every=4", "--checkpoint.keep=0"], way)
    suite.check("going on after step 3" in out, "told: " + out)
    suite.equal(numbers(name), reference, name + ": the log of a run in two parts")
    suite.equal(steps_of(path), ["step-00000003", "step-00000004", "step-00000006"], "keep=0")

# The loss scale, and dropout's masks, go on too.
for name, more in [("f16", ["--dtype.param=f16"]),
                   ("dropout", ["--model.config=" + suite.write("dropout.json", dict(CONFIG, dropout=0.3))])]:
    path, args = folder(name)
    good(BASE + args + more)
    in_one = numbers(name)
    suite.check(in_one != reference, name + " matters")
    shutil.rmtree(path)
    good(BASE + args + more + ["--train.steps=4"])
    good(BASE + args + more)
    suite.equal(numbers(name), in_one, name + ": the log of a run in two parts")

# On other ranks, with nothing left to do, the same model comes out; also of a pipeline.
for name, more in [("one", []), ("piped", ["--parallel.pp=2", "--train.micro_batch=1", "--ranks=2"]),
                   ("tp", ["--parallel.tp=2", "--ranks=2"])]:
    args = ["--checkpoint.dir=" + whole, "--model.save=" + suite.path(name)]
    status, out, err = run([TRAIN] + BASE + args + more)
    suite.equal((status, err), (0, ""), "model.save of " + name)


def read(path):
    with open(path, "rb") as f:
        return f.read()


models = [read(suite.path(name, "model.safetensors")) for name in ["one", "piped", "tp"]]
suite.check(models[0] == models[1] == models[2], "one rank, stages and tensor parallel ranks save the same bytes")
suite.equal(read(suite.path("one", "config.json")), read(config), "config.json")

# ---- an independent reader ----


def tensors(path):
    """name -> (dtype, shape, bytes) of one file; every byte belongs to one tensor."""
    raw = read(path)
    length = struct.unpack("<Q", raw[:8])[0]
    header, data, at = json.loads(raw[8:8 + length]), raw[8 + length:], 0
    suite.equal(header.pop("__metadata__"), {"format": "pt"}, "metadata")
    size = {"F32": 4, "BF16": 2}
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        count = 1
        for d in t["shape"]:
            count *= d
        suite.equal(t["data_offsets"], [at, at + count * size[t["dtype"]]], name + " follows the one before")
        at = t["data_offsets"][1]
    suite.equal(at, len(data), path + " ends with its last tensor")
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}


def step_tensors(path, base):
    index = json.loads(read("%s/%s.safetensors.index.json" % (path, base)))
    files = sorted(os.path.basename(p) for p in glob.glob("%s/%s-*-of-*.safetensors" % (path, base)))
    suite.equal(files, ["%s-%05d-of-%05d.safetensors" % (base, i + 1, len(files)) for i in range(len(files))], "files")
    all_of = {}
    for name in files:
        inside = tensors(path + "/" + name)
        suite.equal({n for n, f in index["weight_map"].items() if f == name}, set(inside), "the index of " + name)
        all_of.update(inside)
    suite.equal(index["metadata"]["total_size"], sum(len(t[2]) for t in all_of.values()), "total_size")
    return all_of, files


exact, files = step_tensors(whole + "/latest", "model")
suite.equal(exact, tensors(suite.path("one", "model.safetensors")), "a step has the weights that model.save writes")
states, _ = step_tensors(whole + "/latest", "optimizer")
suite.equal(sorted(states), sorted(n + s for n in exact for s in [".exp_avg", ".exp_avg_sq"]), "optimizer state")
rounded, files = step_tensors(suite.path("bf16", "latest"), "model")
suite.check(len(files) > 1, "checkpoint.file_bytes: %r" % files)
masters, _ = step_tensors(suite.path("bf16", "latest"), "optimizer")


def to_bf16(data):
    """Round to nearest, ties to even."""
    return b"".join(struct.pack("<H", (b + 0x7fff + (b >> 16 & 1)) >> 16) for (b,) in struct.iter_unpack("<I", data))


for name, (dtype, shape, data) in rounded.items():
    suite.equal(masters[name + ".master"], exact[name], "what bf16 rounds is kept: " + name)
    suite.equal((dtype, shape, data), ("BF16", exact[name][1], to_bf16(exact[name][2])), name + " in bf16")
state = json.loads(read(whole + "/latest/state.json"))
suite.equal((state["step"], state["position"], state["optimizer_steps"]), (STEPS, STEPS * 32, STEPS), "state.json")
suite.equal(state["mesh"], "mesh 1x1x2x1 [pp 1, dp_replicate 1, dp_shard 2, tp 1]", "its mesh")
for name, entry in state["files"].items():
    at = 0
    for part in entry["xxh3"]:
        offset, count, _ = part.split()
        suite.equal(int(offset), at, "parts of " + name)
        at += int(count)
    suite.equal((at, entry["bytes"]), (os.path.getsize(whole + "/latest/" + name),) * 2, "size of " + name)

# ---- tools/ckpt ----


def ckpt(status, *arguments):
    got, out, err = run([CKPT] + list(arguments))
    suite.equal(got, status, "ckpt %s: %s%s" % (" ".join(arguments), out, err))
    return out + err


listed = ckpt(0, "ls", whole + "/latest")
for name, (dtype, shape, data) in list(exact.items()) + list(states.items()):
    norm = sum(x * x for (x,) in struct.iter_unpack("<f", data)) ** 0.5
    line = [words for words in map(str.split, listed.splitlines()) if words[0] == name]
    suite.equal([w[1] for w in line], ["F32"], "ls tells " + name)
    suite.near([float(line[0][-1])], [norm], 1e-5 * norm, "the norm of " + name)
    suite.check("%r norm" % shape in " ".join(line[0]), "the shape of " + name)
ckpt(0, "verify", *[whole + "/" + n for n in os.listdir(whole)])
ckpt(0, "diff", whole + "/latest", whole + "/step-00000006")
ckpt(0, "convert", whole + "/latest", suite.path("half"), "--dtype=bf16", "--file_bytes=9999")
half, files = step_tensors(suite.path("half"), "model")
suite.check(half == rounded and len(files) > 1, "convert to bf16")
suite.equal(read(suite.path("half", "config.json")), read(config), "convert copies config.json")
ckpt(0, "merge", suite.path("merged"), suite.path("half"))
suite.equal(tensors(suite.path("merged", "model.safetensors")), half, "merge")
ckpt(0, "diff", suite.path("merged"), suite.path("half"))
suite.check("only in the first" in ckpt(1, "diff", whole + "/latest", suite.path("half")), "diff of a step and a model")
suite.check("two of the paths have" in ckpt(1, "merge", suite.path("x"), suite.path("half"), suite.path("merged")), "merge of equal names")
raw = bytearray(read(suite.path("merged", "model.safetensors")))
length = struct.unpack("<Q", raw[:8])[0]
at = 8 + length + json.loads(raw[8:8 + length])["lm_head.weight"]["data_offsets"][0]
raw[at + 6:at + 8] = struct.pack("<H", (struct.unpack("<H", raw[at + 6:at + 8])[0] & 0xfff0) + 5)
with open(suite.path("merged", "model.safetensors"), "wb") as f:
    f.write(raw)
five = struct.unpack("<H", half["lm_head.weight"][2][6:8])[0] & 15
out = ckpt(0 if five == 5 else 1, "diff", suite.path("half"), suite.path("merged"))
suite.check(five == 5 or "lm_head.weight" in out and " %d ulp at element 3:" % abs(five - 5) in out, "diff: " + out)
for arguments in [[], ["ls"], ["list", whole], ["convert", whole + "/latest", suite.path("y"), "--dtype=i32"]]:
    ckpt(2, *arguments)

# ---- weights only ----
path, args = folder("model_only")
good(BASE + args + ["--train.steps=2"])
good(BASE + args + ["--train.steps=3", "--checkpoint.model_only"])
suite.equal(sorted(os.listdir(path + "/latest")), ["config.json", "model-00001-of-00001.safetensors",
                                                    "model.safetensors.index.json", "state.json"], "model_only")
out = good(BASE + args + ["--train.steps=4"])
suite.check("step 3 is passed over" in out and "of the model only" in out and "after step 2" in out, out)

# ---- damage ----


def copied(name):
    path, args = folder(name)
    shutil.copytree(whole, path, symlinks=True)
    return path, args


def flip(path, at):
    data = bytearray(read(path))
    data[at] ^= 1
    with open(path, "wb") as f:
        f.write(data)


def cut(path, at):
    os.truncate(path, at)


NEWEST = "step-00000006/"
DAMAGES = [("model-00001-of-00001.safetensors", lambda p: flip(p, -7)), ("optimizer-00001-of-00001.safetensors", lambda p: flip(p, 3)),
           ("optimizer-00001-of-00001.safetensors", lambda p: cut(p, 4000)), ("state.json", lambda p: flip(p, 70)),
           ("state.json", lambda p: cut(p, 700)), ("model.safetensors.index.json", os.unlink), ("config.json", lambda p: flip(p, 5))]
for i, (name, damage) in enumerate(DAMAGES):
    path, args = copied("damage%d" % i)
    damage(path + "/" + NEWEST + name)
    out = good(BASE + args + ["--train.steps=5"])
    suite.check("step 6 is passed over" in out and NEWEST + name in out and "going on after step 4" in out,
                "damage %d of %s: %s" % (i, name, out))
    suite.check(NEWEST + name in ckpt(1, "verify", path + "/step-00000004", path + "/step-00000006"), "ckpt verify names " + name)
    suite.equal(numbers("damage%d" % i), reference[4:5], "from the step before")
path, args = copied("ruins")
for step in steps_of(path):
    cut(path + "/" + step + "/state.json", 10)
status, out, err = run(command("threads", BASE + args))
suite.check(status == 1 and "none of them can be used" in err, "nothing but damage: %r %s" % (status, err))

# ---- other errors ----
path, args = copied("errors")
for more, says in [(["--checkpoint.resume=false"], "checkpoint.resume=false"), (["--checkpoint.step=5"], "step-00000005"),
                   (["--checkpoint.dir=" + text], text), (["--checkpoint.dir=/proc/x"], "/proc/x"),
                   (["--model.config=" + suite.write("wide.json", dict(CONFIG, intermediate_size=28))], "the model needs"),
                   (["--data.path=" + suite.write("short.txt", "a short text of other data")], "is it other data?")]:
    status, out, err = run(command("threads", BASE + args + more))
    suite.check(status == 1 and says in err, "%s: %r, %s" % (more[0], status, err))
status, out, err = run([TRAIN] + BASE + ["--checkpoint.every=2"])
suite.check(status == 1 and "needs checkpoint.dir" in err, err)
out = good(BASE + args + ["--checkpoint.step=2"])
suite.check("going on after step 2" in out, out)
suite.equal(numbers("errors"), reference[2:], "checkpoint.step=2")

# ---- signals: of one rank, to all ----


def alive(arguments, way):
    """The program after its first step, and a function that tells the ids of its ranks."""
    process = subprocess.Popen(command(way, arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    while True:
        line = process.stdout.readline()
        if not line or line.startswith("step 1/"):
            return process


def rank_of(process, way, marker):
    if way == "threads":
        return process.pid
    found = []
    for entry in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            argv = read(entry).split(b"\0")
        except OSError:
            continue
        if argv[0] == TRAIN.encode() and marker.encode() in argv:
            found.append(int(entry.split("/")[2]))
    return max(found)


LONG = ["--train.steps=100000", "--log.every=1"]
for way in ["threads"] + (["mpi"] if HAS_MPI else []):
    path, args = folder("signal_" + way)
    process = alive(BASE + args + LONG, way)
    victim = rank_of(process, way, args[0])
    os.kill(victim, signal.SIGUSR1)
    until = time.monotonic() + 30
    while not os.path.islink(path + "/latest") and time.monotonic() < until:
        time.sleep(0.02)
    suite.check(os.path.islink(path + "/latest"), "SIGUSR1 saves, " + way)
    suite.equal(process.poll(), None, "and goes on, " + way)
    first = steps_of(path)
    os.kill(victim, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    suite.equal((process.returncode, err), (0, ""), "SIGTERM ends well, " + way)
    last = int(os.readlink(path + "/latest")[5:])
    suite.check(steps_of(path) != first and read_log(suite.path("signal_%s.jsonl" % way))[-1]["step"] == last,
                "SIGTERM saves, %s: %r, then %r" % (way, first, steps_of(path)))

# ---- killed at any byte, full at any byte ----


def recovers(name, args, what):
    """The run goes on to its end, and its log is that of a run that nobody stopped."""
    left = [] if not os.path.isdir(suite.path(name)) else [n for n in steps_of(suite.path(name)) if "." not in n]
    out = good(BASE + args + ["--checkpoint.every=1"])
    if suite.equal(numbers(name), reference, what) and left:
        suite.check("going on after" in out and "passed over" not in out, what + ": " + out)
    ckpt(0, "verify", *[suite.path(name, n) for n in steps_of(suite.path(name))])
    suite.equal([n for n in steps_of(suite.path(name)) if "." in n], [], what + ": leftovers")
    shutil.rmtree(suite.path(name))


rng = random.Random(6)
for i in range(50 if FULL else 8):
    path, args = folder("kill%d" % i)
    way = "mpi" if HAS_MPI and i % 4 == 3 else "threads"
    more = ["--checkpoint.every=1", "--checkpoint.keep=%d" % (1 + i % 2)] + (["--checkpoint.async"] if i % 2 else [])
    if i % 4 == 2:  # whenever
        process = subprocess.Popen(command(way, BASE + args + more), stdout=subprocess.DEVNULL)
        delay_s = rng.uniform(0.05, 0.05 + took_s)
        time.sleep(delay_s)
        process.kill()
        process.wait()
        what = "killed after %.3f s" % delay_s
    else:
        fault = "checkpoint_kill:%d" % rng.randrange(1, [400, 60, 0, 160][i % 4]) + ("@1" if way == "mpi" else "")
        status, out, err = run(command(way, BASE + args + more), {"DT_FAULT": fault})
        what = "%s, %s, exit status %r" % (fault, way, status)
    print(what, flush=True)
    recovers("kill%d" % i, args, what)
for i in range(20 if FULL else 3):
    path, args = folder("full%d" % i)
    more = ["--checkpoint.every=1"] + (["--checkpoint.async"] if i % 2 else [])
    fault = "checkpoint_full:%d%s" % (rng.randrange(1, 300), ["", "@0", "@1"][i % 3])
    status, out, err = run(command("threads", BASE + args + more), {"DT_FAULT": fault})
    suite.check(status == 0 or (status == 1 and "No space left on device" in err), "%s: %r, %s" % (fault, status, err))
    recovers("full%d" % i, args, fault)

# A file system that is really full, where this user may make one.
small = suite.path("small")
os.mkdir(small)
for kib in [rng.randrange(60, 700) for _ in range(6 if FULL else 2)]:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%dk" % kib, "none", small], stderr=subprocess.DEVNULL).returncode:
        print("no tmpfs may be mounted here: a full disk is only simulated")
        break
    try:
        args = ["--checkpoint.dir=" + small + "/run"]
        status, out, err = run(command("threads", BASE + args + ["--checkpoint.every=1", "--checkpoint.keep=0"]))
        suite.check(status == 0 or (status == 1 and "No space left on device" in err), "%d kB: %r, %s" % (kib, status, err))
        kept = [n for n in steps_of(small + "/run") if "." not in n] if os.path.isdir(small + "/run") else []
        if kept and status:
            os.rename(small + "/run", small + "/kept")
            shutil.copytree(small + "/kept", suite.path("kept%d" % kib), symlinks=True)
            out = good(BASE + ["--checkpoint.dir=" + suite.path("kept%d" % kib)])
            suite.check("going on after step %d " % len(kept) in out, "%d kB, %r: %s" % (kib, kept, out))
    finally:
        subprocess.run(["umount", small], check=True)

suite.close()
