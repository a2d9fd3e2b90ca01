#!/usr/bin/env python3
# tests/programs/test_checkpoint.py - training runs that stop and go on: bit-equal to one that did not, whatever is damaged; the
# folder as an independent reader (json, struct) sees it. Signals, kills and full disks: test_checkpoint_kill.py.
import glob
import json
import os
import shutil
import struct

from checkpoints import BASE, STEPS, ckpt, command, config, folder, good, numbers, read, reference, steps_of, suite, text, whole
from programs import CONFIG, GOLDEN, HAS_MPI, TRAIN, run

# ---- going on ----
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

models = [read(suite.path(name, "model.safetensors")) for name in ["one", "piped", "tp"]]
suite.check(models[0] == models[1] == models[2], "one rank, stages and tensor parallel ranks save the same bytes")
suite.equal(read(suite.path("one", "config.json")), read(config), "config.json")

# ---- an independent reader ----


def tensors(path):
    """name -> (dtype, shape, bytes) of one file; every byte belongs to one tensor."""
    raw = read(path)
    length = struct.unpack("<Q", raw[:8])[0]
    header, data, at = json.loads(raw[8:8 + length]), raw[8 + length:], 0
    suite.check(header.pop("__metadata__", None) == {"format": "pt"} or GOLDEN in path, "metadata of " + path)
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

# ---- Hugging Face's models (C9 of the map of PyTorch's tests): weights in, a step at rate 0, and out: the same bytes ----
WAYS = [["--ranks=3", "--parallel.dp_shard=3"], ["--ranks=2", "--parallel.tp=2"],
        ["--ranks=4", "--parallel.pp=2", "--parallel.dp_shard=2", "--train.micro_batch=1"]]
for i, name in enumerate(["hf_llama2", "hf_llama3", "hf_mistral", "hf_qwen2", "hf_qwen3", "llama_tied", "gpt2_tiny"]):
    given, (path, args) = os.path.join(GOLDEN, name), folder("of_" + name)
    status, out, err = run([TRAIN] + BASE + args + WAYS[i % 3] + [
        "--model.config=%s/config.json" % given, "--model.init=" + given, "--data.path=%s/tokens.bin" % given, "--optim.lr=0",
        "--train.steps=1"])
    suite.equal((status, err), (0, ""), name)
    got, _ = step_tensors(path + "/latest", "model")
    suite.equal(got, tensors(given + "/model.safetensors"), "the tensors of " + name)
    suite.equal(read(path + "/latest/config.json"), read(given + "/config.json"), "the config.json of " + name)

# ---- tools/ckpt ----


listed = ckpt(0, "ls", whole + "/latest")
for name, (dtype, shape, data) in list(exact.items()) + list(states.items()):
    norm = sum(x * x for (x,) in struct.iter_unpack("<f", data)) ** 0.5
    line = [words for words in map(str.split, listed.splitlines()) if words[0] == name]
    suite.equal([w[1] for w in line], ["F32"], "ls tells " + name)
    suite.near([float(line[0][-1])], [norm], 1e-5 * norm, "the norm of " + name)
    suite.check("%r norm" % shape in " ".join(line[0]), "the shape of " + name)
ckpt(0, "verify", *[whole + "/" + n for n in steps_of(whole) + ["latest"]])
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
    suite.equal(steps_of(path), steps_of(whole), "nothing was changed")
status, out, err = run([TRAIN] + BASE + ["--checkpoint.every=2"])
suite.check(status == 1 and "needs checkpoint.dir" in err, err)
out = good(BASE + args + ["--checkpoint.step=2"])
suite.check("going on after step 2" in out, out)
suite.equal(numbers("errors"), reference[2:], "checkpoint.step=2")
for key, word in [("exclude=optimiser", "'optimiser'; legal: some of optimizer, data, step"), ("exclude=step,,x", "'x'")]:
    status, out, err = run([TRAIN] + BASE + args + ["--checkpoint." + key])
    suite.check(status == 1 and word in err, "checkpoint.%s: %r, %s" % (key, status, err))

# ---- back to an earlier step: what is saved then stays, and so does what came later, until the run is there ----
path, args = copied("back")
good(BASE + args + ["--checkpoint.step=2", "--train.steps=3", "--checkpoint.keep=1"])
suite.equal((steps_of(path), os.readlink(path + "/latest")), (["step-00000003", "step-00000004", "step-00000006"], "step-00000003"),
            "keep=1 after a step back")
out = good(BASE + args + ["--checkpoint.every=1", "--checkpoint.keep=1"])
suite.check("going on after step 3" in out, out)
suite.equal((numbers("back"), steps_of(path)), (reference[2:], ["step-00000006"]), "on from there")

# ---- without parts of it: as a run that begins with these weights, this state, this position ----
path, args = copied("parts")
other = BASE + ["--model.init=" + suite.path("one"), "--train.steps=2"]
for exclude, left in [("optimizer,data,step", []), ("optimizer,step", ["data"]), ("step,data", ["optimizer"])]:
    name = "parts" + exclude.replace(",", "_")
    args = ["--checkpoint.dir=" + copied(name)[0], "--checkpoint.exclude=" + exclude, "--train.steps=2"]
    out = good(BASE + args + ["--log.json=" + suite.path(name + ".jsonl")])
    suite.check("going on after step 6 of %s, without its %s" % (suite.path(name), exclude) in out, out)
    if "fresh.jsonl" not in os.listdir(suite.folder):
        good(other + ["--log.json=" + suite.path("fresh.jsonl")])
    fresh, got = numbers("fresh"), numbers(name)
    suite.equal([s[0] for s in got], [1, 2], "steps from 1, without " + exclude)
    suite.equal([s[3] for s in got], [s[3] for s in fresh], "rates from the first, without " + exclude)
    suite.equal(got[0][1] == fresh[0][1], "data" not in left, "data from its start, without " + exclude)
    suite.equal(got[1][1] == fresh[1][1], not left, "the optimizer, without " + exclude)
out = good(BASE + ["--checkpoint.dir=" + suite.path("model_only"), "--checkpoint.exclude=optimizer", "--train.steps=4"])
suite.check("going on after step 4 of" in out or "after step 3" in out, "a save of the model serves where no optimizer is wanted: " + out)

# ---- folders with parents that are not there ----
deep = suite.path("not", "there", "yet")
good(BASE + ["--train.steps=1", "--checkpoint.dir=" + deep + "/steps/", "--model.save=" + deep + "/model"])
suite.check(steps_of(deep + "/steps") == ["step-00000001"] and os.path.exists(deep + "/model/config.json"), "parents are made")

suite.close()
