#!/usr/bin/env python3
# tests/programs/test_checkpoint_kill.py - training runs that are told to save, that are killed, whose disk is full, at any
# moment: none loses its last good step, none loads a broken one. DT_FULL=1: more of them.
import glob
import os
import random
import re
import shutil
import signal
import subprocess
import time

from checkpoints import BASE, ckpt, command, folder, good, numbers, read, reference, steps_of, suite, took_s
from programs import HAS_MPI, TRAIN, read_log, run

FULL = os.environ.get("DT_FULL") == "1"

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
    status, out, err = run([TRAIN] + BASE + args)
    who = re.search(r"\.lock: another program has this folder: process (\d+) on ", err)
    suite.check(status == 1 and who, "two runs in one folder, %s: %r, %s" % (way, status, err))
    suite.check(who and TRAIN.encode() in read("/proc/%s/cmdline" % who.group(1)), "the other is named: " + err)
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
        fault = "checkpoint_kill:%d" % rng.randrange(1, [280, 60, 0, 80][i % 4]) + ("@%d" % (i // 4 % 2) if way == "mpi" else "")
        status, out, err = run(command(way, BASE + args + more), {"DT_FAULT": fault})
        what = "%s, %s, exit status %r" % (fault, way, status)
        suite.check(status not in (0, 1), what)
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
        subprocess.run(["mount", "-o", "remount,ro", small], check=True)
        status, out, err = run(command("threads", BASE + args + ["--train.steps=7"]))
        suite.check(status == 1 and "checkpoint.dir=%s/run cannot be " % small in err and "Read-only" in err, "read-only: %r, %s" % (status, err))
    finally:
        subprocess.run(["umount", small], check=True)

suite.close()
