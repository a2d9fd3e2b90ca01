# tests/programs/programs.py - what the tests of the programs share: running them, counting checks, small inputs.
#
# Each test is called as  test_x.py TRAIN SAMPLE MPIRUN GOLDEN , MPIRUN being `none` in a build without MPI.
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

TRAIN, SAMPLE, MPIRUN, GOLDEN = sys.argv[1:5]
HAS_MPI = MPIRUN != "none"
LIMIT_S = 60

CONFIG = {"model_type": "llama", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 24,
          "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
          "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}


class Suite:
    """Checks, counted and closed in the form of Check's own last line."""

    def __init__(self, name):
        self.name, self.count, self.failures = name, 0, 0
        self.folder = tempfile.mkdtemp(prefix="dt_" + name + "_")

    def check(self, holds, what):
        self.count += 1
        if not holds:
            self.failures += 1
            print("FAILED: " + what, flush=True)
        return holds

    def equal(self, a, b, what):
        return self.check(a == b, "%s: %r != %r" % (what, a, b))

    def near(self, a, b, limit, what):
        apart = [abs(x - y) for x, y in zip(a, b)]
        return self.check(len(a) == len(b) and len(a) > 0 and all(d <= limit for d in apart),  # max() loses NaN
                          "%s: differs by %r, limit %g: %r, %r" % (what, apart, limit, a, b))

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, content, again=False):
        """A new file of this name; a second one could change what another check still reads."""
        if not again and os.path.exists(self.path(name)):
            raise ValueError("there is a %s already" % name)
        with open(self.path(name), "wb" if isinstance(content, bytes) else "w") as f:
            f.write(content if isinstance(content, (bytes, str)) else json.dumps(content))
        return self.path(name)

    def close(self):
        shutil.rmtree(self.folder)
        passed = self.count - self.failures
        print("%d%%: Checks: %d, Failures: %d, Errors: 0" % (100 * passed // max(self.count, 1), self.count,
                                                             self.failures))
        sys.exit(1 if self.failures or not self.count else 0)


def run(command, env=None, limit_s=LIMIT_S):
    """(exit status, stdout, stderr); the status is None when the program hung."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**os.environ, "TERM": "dumb", **(env or {})}) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
            status = process.returncode
        except subprocess.TimeoutExpired:
            process.terminate()  # mpirun passes it on to its ranks
            try:
                out, err = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
            status = None
    return status, out.decode(errors="replace"), err.decode(errors="replace")


def launch(way, arguments, ranks=3, program=TRAIN):
    """The command that runs `arguments` on one rank, on threads or under MPI."""
    if way == "one":
        return [program] + arguments
    given = any(a.startswith(("--parallel.pp=", "--parallel.dp_shard=")) for a in arguments)
    several = arguments + ([] if given else ["--parallel.dp_replicate=%d" % ranks])
    if way == "threads":
        return [program, "--ranks=%d" % ranks] + several
    return [MPIRUN, "-n", str(ranks), program] + several


def tokens_file(tokens, magic=20240520, version=1, said=None):
    header = [magic, version, len(tokens) if said is None else said] + [0] * 253
    return struct.pack("<256i", *header) + struct.pack("<%dH" % len(tokens), *tokens)


def read_log(path):
    with open(path) as f:
        return [json.loads(line) for line in f]
