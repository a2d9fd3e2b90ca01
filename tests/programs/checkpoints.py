# tests/programs/checkpoints.py - what the tests of checkpoints share: runs that save, what they logged, and a run that nobody
# stopped, to compare with. Called as  test_x.py TRAIN SAMPLE MPIRUN GOLDEN TOKENIZE CKPT .
import os
import sys
import time

from programs import CONFIG, MPIRUN, TRAIN, Suite, read_log, run

CKPT = sys.argv[-1]
suite = Suite(os.path.basename(sys.argv[0])[5:-3])
STEPS = 6
text = suite.write("text.txt", "It was a bright cold day in April, and the clocks were striking thirteen. " * 9)
config = suite.write("config.json", CONFIG)
BASE = ["--model.config=" + config, "--data.path=" + text, "--train.seq_len=8", "--train.global_batch=4",
        "--log.peak_flops=1e9", "--schedule.warmup_steps=5", "--train.steps=%d" % STEPS]
if os.environ.get("DT_DEVICE") == "cuda":
    BASE.append("--device=cuda")
SHARDS = ["--parallel.dp_shard=2"]


def command(way, arguments):
    if way == "mpi":
        return [MPIRUN, "-n", "2", TRAIN] + arguments + SHARDS
    return [TRAIN, "--ranks=2"] + arguments + SHARDS


def folder(name):
    return suite.path(name), ["--checkpoint.dir=" + suite.path(name), "--log.json=" + suite.path(name + ".jsonl")]


def numbers(name):
    return [(s["step"], s["loss"], s["grad_norm"], s["lr"], s["tokens"]) for s in read_log(suite.path(name + ".jsonl"))]


def steps_of(path):
    return sorted(n for n in os.listdir(path) if n not in ("latest", ".lock"))


def good(arguments, way="threads"):
    status, out, err = run(command(way, arguments))
    suite.equal((status, err), (0, ""), " ".join(arguments[-4:]))
    return out


def ckpt(status, *arguments):
    got, out, err = run([CKPT] + list(arguments))
    suite.equal(got, status, "ckpt %s: %s%s" % (" ".join(arguments), out, err))
    return out + err


def read(path):
    with open(path, "rb") as f:
        return f.read()


started = time.monotonic()
whole, args = folder("whole")
good(BASE + args + ["--checkpoint.every=2"])
took_s = time.monotonic() - started
reference = numbers("whole")
