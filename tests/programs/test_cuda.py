#!/usr/bin/env python3
# tests/programs/test_cuda.py - training with device=cuda that is killed and goes on: bit-equal to a run that nobody stopped; and
# what one device saved, the other one loads. Run with DT_DEVICE=cuda.
from checkpoints import BASE, STEPS, ckpt, command, folder, good, numbers, reference, steps_of, suite, whole
from programs import TRAIN, run

KILL_AT = 120  # writes, links and removals of files: in the second of three saves
suite.equal(steps_of(whole), ["step-00000002", "step-00000004", "step-00000006"], "steps")
for name, more in [("sync", []), ("async", ["--checkpoint.async"]),
                   ("offload", ["--offload.what=all", "--offload.dir=" + suite.path("resting")]),
                   ("offload_host", ["--offload.what=all", "--offload.to=host"])]:
    path, args = folder(name)
    arguments = BASE + args + more + ["--checkpoint.every=2"]
    status, out, err = run(command("threads", arguments), {"DT_FAULT": "checkpoint_kill:%d" % KILL_AT})
    suite.check(status not in (0, 1), "%s is killed while it saves: %r, %s" % (name, status, err))
    suite.check("step-00000002" in steps_of(path) and "step-00000006" not in steps_of(path), "%s left %r" % (name, steps_of(path)))
    out = good(arguments)
    suite.check("going on after step" in out, "told: " + out)
    suite.equal(numbers(name), reference, name + ": the log of a run in two parts")
    ckpt(0, "diff", path + "/latest", whole + "/latest")


def losses(name):
    return [n[1] for n in numbers(name)]


path, args = folder("cpu")
good(BASE + args + ["--device=cpu", "--checkpoint.every=2"])
suite.near(losses("cpu"), [n[1] for n in reference], 2e-5, "losses on the cpu")
for name, source, device in [("to_cpu", whole, "cpu"), ("to_cuda", path, "cuda")]:
    out = good(BASE + ["--log.json=" + suite.path(name + ".jsonl"), "--checkpoint.dir=" + source, "--checkpoint.step=2",
                       "--checkpoint.keep=0", "--device=" + device])
    suite.check("going on after step 2" in out, "told: " + out)
    suite.near(losses(name), [n[1] for n in reference[2:]], 2e-5, "losses of " + name)

# A pipeline, whose messages go from device to device; and its step on one rank.
PIPED = [TRAIN, "--ranks=2", "--parallel.pp=2", "--train.micro_batch=1"]
path, args = folder("piped")
for steps in ["--train.steps=3", "--train.steps=%d" % STEPS]:
    suite.equal(run(PIPED + BASE + args + [steps])[::2], (0, ""), "a pipeline, " + steps)
suite.near(losses("piped"), [n[1] for n in reference], 2e-5, "losses of a pipeline in two parts")
status, out, err = run([TRAIN] + BASE + ["--checkpoint.dir=" + path, "--train.steps=%d" % (STEPS + 1)])
suite.check(status == 0 and "going on after step %d" % STEPS in out, "on one rank: %r %s" % (out, err))

suite.close()
