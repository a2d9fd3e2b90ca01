#!/usr/bin/env python3
# tests/programs/test_data.py - the training program on data of every kind: Megatron's files, blends, shards, what is held
# out, documents; the same on every mesh.
import os
import random
import struct

from programs import CONFIG, TRAIN, Suite, launch, read_log, run, tokens_file

suite = Suite("data")
config = suite.write("config.json", CONFIG)
BASE = ["--model.config=" + config, "--train.seq_len=16", "--train.global_batch=6", "--optim.lr=0.01", "--train.steps=5"]
runs = 0
random.seed(7)


def losses(arguments, ranks=1, key="loss"):
    global runs
    runs += 1
    path = suite.path("log%d.json" % runs)
    way = ["--ranks=%d" % ranks] if ranks > 1 else []
    status, _, err = run([TRAIN] + BASE + arguments + way + ["--log.json=" + path, "--log.peak_flops=1e9"])
    suite.check(status == 0, "%s: status %s, stderr %s" % (arguments, status, err))
    return [step[key] for step in (read_log(path) if os.path.exists(path) else []) if key in step]


def fails(arguments, message):
    status, _, err = run([TRAIN] + BASE + arguments)
    suite.check(status not in (0, None) and message in err, "%s: status %s, %r not in %s" % (arguments, status, message, err))


def pair(name, documents):
    """NAME.idx and NAME.bin, by the layout of Megatron-LM."""
    n, at, pointers = len(documents), 0, []
    for d in documents:
        pointers.append(at)
        at += 2 * len(d)
    tokens = [t for d in documents for t in d]
    suite.write(name + ".bin", struct.pack("<%dH" % len(tokens), *tokens))
    suite.write(name + ".idx", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1)
                + struct.pack("<%di%dq%dq" % (n, n, n + 1), *[len(d) for d in documents], *pointers, *range(n + 1)))
    return suite.path(name)


def document(n, first, size):
    return [first + random.randrange(size) for _ in range(n)]


a = pair("a", [document(random.randrange(1, 60), 0, 100) for _ in range(40)])
b = pair("b", [document(random.randrange(1, 60), 100, 100) for _ in range(20)])
blend = ["--data.blend=0.7 %s 0.3 %s.idx" % (a, b)]

# ---- the same batches on every mesh ----
everything = blend + ["--data.shuffle", "--data.documents=loss", "--eval.split=0.2", "--eval.every=2", "--eval.steps=2"]
one, evaluated = losses(everything), losses(everything, key="eval_loss")
suite.equal(len(evaluated), 3, "evaluations after steps 2, 4 and 5")
for mesh, ranks in [(["dp_replicate=3"], 3), (["dp_shard=2", "tp=2"], 4), (["pp=2", "dp_shard=2"], 4)]:
    keys = everything + ["--parallel." + degree for degree in mesh]
    keys += ["--train.micro_batch=1"] if "pp=2" in mesh else []
    suite.near(losses(keys, ranks), one, 2e-5, "losses on %s" % mesh)
    suite.near(losses(keys, ranks, "eval_loss"), evaluated, 2e-5, "evaluations on %s" % mesh)
suite.near(losses(everything + ["--train.micro_batch=2"]), one, 2e-5, "microbatches")
suite.check(losses(everything + ["--train.seed=1"]) != one, "another seed, another order")

# ---- a run that goes on reads what one in one piece reads, on the same mesh and on another (L8 of the map of PyTorch's tests) ----
kept = everything + ["--data.documents=attention", "--eval.every=0", "--optim.lr=0"]  # losses tell batches apart, and nothing else
in_one = losses(kept)
suite.check(len(set(in_one)) == 5, "five batches: %r" % in_one)
for keys, ranks in [([], 1), (["parallel.dp_replicate=3"], 3), (["parallel.dp_shard=2", "parallel.tp=2"], 4)]:
    two = kept + ["--checkpoint.dir=" + suite.path("kept%d" % ranks)]
    suite.equal(losses(two + ["--train.steps=2"]), in_one[:2], "the first part")
    suite.near(losses(two + ["--" + key for key in keys], ranks), in_one[2:], 2e-5 if keys else 0, "the second part, with %s" % keys)

# ---- shards are one stream ----
tokens = document(400, 0, 256)
whole = suite.write("whole.bin", tokens_file(tokens))
for i, (lo, hi) in enumerate([(0, 7), (7, 300), (300, 400)]):
    suite.write("shard_%d.bin" % i, tokens_file(tokens[lo:hi]))
suite.equal(losses(["--data.path=" + suite.path("shard_*.bin")]), losses(["--data.path=" + whole]), "shards")

# ---- no loss across the ends of documents: the same as labels that say so ----
documents = [document(random.randrange(1, 30), 0, 255) + [255] for _ in range(40)]
ended = suite.write("ended.bin", tokens_file(sum(documents, [])))
labels = [t for t in sum(documents, [])[1:]]
at = 0
for d in documents[:-1]:
    at += len(d)
    labels[at - 1] = -100
labelled = suite.write("labels.bin", struct.pack("<%di" % len(labels), *labels))
want = losses(["--data.path=" + ended, "--data.labels=" + labelled])
suite.equal(losses(["--data.path=" + ended, "--data.documents=loss", "--data.end_token=255"]), want, "ends by a token")
suite.equal(losses(["--data.path=" + pair("docs", documents), "--data.documents=loss"]), want, "ends by the index")
suite.check(losses(["--data.path=" + ended]) != want, "ends are not masked unless asked for")

# ---- attention within documents: two in a sample are what each is alone, with every layout and model ----
eights = ["--data.path=" + pair("eights", [document(8, 0, 256) for _ in range(100)])]
gpt2 = suite.write("gpt2.json", {"model_type": "gpt2", "vocab_size": 256, "n_embd": 16, "n_layer": 2, "n_head": 2,
                                 "n_positions": 32, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0})
for model in [[], ["--model.config=" + gpt2]]:
    alone = losses(eights + model + ["--data.documents=loss", "--train.seq_len=8", "--train.global_batch=12"])
    within = eights + model + ["--data.documents=attention"]
    suite.near(losses(within), alone, 2e-5, "two documents in a sample")
    suite.check(max(abs(x - y) for x, y in zip(losses(eights + model + ["--data.documents=loss"]), alone)) > 1e-4,
                "attention across documents is another loss")
    for keys, ranks in [(["recompute=full", "train.micro_batch=2"], 1), (["parallel.dp_replicate=3"], 3),
                        (["parallel.tp=2", "parallel.sp", "recompute=selective"], 2),
                        (["parallel.pp=2", "train.micro_batch=1", "parallel.dp_shard=2"], 4)]:
        suite.near(losses(within + ["--" + key for key in keys], ranks), alone, 2e-5, "documents with %s" % keys)
suite.near(losses(eights + ["--data.documents=attention", "--eval.every=5", "--eval.steps=2"], key="eval_loss"),
           losses(eights + ["--data.documents=attention", "--eval.every=5", "--eval.steps=2", "--parallel.pp=2",
                            "--train.micro_batch=2"], 2, key="eval_loss"), 2e-5, "evaluation within documents")

# ---- what is held out is not trained on ----
half = pair("half", documents[:20])
cut = sum(map(len, documents[:20]))
keep = "--eval.split=%.6f" % (1 - (cut + 0.5) / sum(map(len, documents)))
suite.equal(losses(["--data.path=" + suite.path("docs"), keep]), losses(["--data.path=" + half]), "the part for training")
other = pair("other", documents[20:])
how = ["--eval.every=5", "--eval.steps=1"]
suite.equal(losses(["--data.path=" + suite.path("docs"), keep] + how, key="eval_loss"),
            losses(["--data.path=" + half, "--eval.path=" + other] + how, key="eval_loss"), "the part held out")

# ---- errors ----
fails(["--data.path=" + a, "--data.blend=1 " + a], "data.path and data.blend are both given")
fails(["--data.blend=" + a], "is not a weight with a path")
fails(blend + ["--eval.every=2"], "needs eval.path or eval.split")
fails(["--data.path=" + whole, "--data.documents=loss"], "where documents end is not known")
fails(["--data.path=" + whole, "--eval.split=1"], "eval.split")
fails(blend + ["--data.labels=" + labelled], "labels.bin: labels of a blend")
fails(["--data.path=" + suite.path("no_*.bin")], "no file is called so")
fails(["--data.path=" + whole, "--eval.split=0.001"], "held out are too few")
# no log overwrites what is read, however that is named
os.symlink(suite.path("b.bin"), suite.path("other_name"))
for data, path in [(blend, "a.bin"), (blend, "b.idx"), (blend, "other_name"), (["--data.path=" + suite.path("shard_*.bin")], "shard_1.bin"),
                   (["--data.path=" + ended, "--data.labels=" + labelled], "labels.bin"),
                   (blend + ["--eval.every=2", "--eval.path=" + suite.path("shard_*.bin")], "shard_2.bin")]:
    path = suite.path(path)
    with open(path, "rb") as f:
        before = f.read()
    for key in ["log.json", "log.plot", "log.trace"]:
        fails(data + ["--%s=%s" % (key, path)], "%s=%s is a file of the data, which it would overwrite" % (key, path))
    with open(path, "rb") as f:
        suite.check(f.read() == before, "%s is as it was" % path)
with open(suite.path("a.idx"), "r+b") as f:
    f.truncate(100)
fails(["--data.path=" + a, "--ranks=2", "--parallel.dp_replicate=2"], "a.idx: 100 bytes, but 40 sequences")
suite.close()
