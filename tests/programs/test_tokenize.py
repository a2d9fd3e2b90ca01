#!/usr/bin/env python3
# tests/programs/test_tokenize.py - from texts to token files and back to text, with every kind of document; a model that is
# trained on tokens and writes text.
import json
import os
import struct
import sys

from programs import CONFIG, GOLDEN, SAMPLE, TRAIN, Suite, run

TOKENIZE = sys.argv[5]
suite = Suite("tokenize")
LLAMA3 = os.path.join(GOLDEN, "tokenizer", "llama3.json")
with open(os.path.join(GOLDEN, "tokenizer", "cases.json")) as f:
    cases = json.load(f)["cases"]


def tokenize(arguments):
    status, out, err = run([TOKENIZE] + arguments)
    suite.check(status == 0 and err == "", "%s: status %s, stderr %s" % (arguments, status, err))
    return out


def fails(arguments, *messages):
    status, _, err = run([TOKENIZE] + arguments)
    suite.check(status == 1 and all(m in err for m in messages), "%s: status %s, %s not in %s" % (arguments, status, messages, err))


def documents(name):
    """What is in NAME.idx and NAME.bin, read by the layout of Megatron-LM."""
    with open(name + ".idx", "rb") as f:
        index = f.read()
    with open(name + ".bin", "rb") as f:
        tokens = f.read()
    magic, version, code, n, entries = struct.unpack_from("<9sQBQQ", index)
    suite.equal((magic, version, code, entries), (b"MMIDIDX\0\0", 1, 8, n + 1), "header of " + name)
    lengths = struct.unpack_from("<%di" % n, index, 34)
    starts = struct.unpack_from("<%dq" % n, index, 34 + 4 * n)
    suite.equal(struct.unpack_from("<%dq" % (n + 1), index, 34 + 12 * n), tuple(range(n + 1)), "documents of " + name)
    suite.equal(len(tokens), 2 * sum(lengths), "size of " + name)
    return [list(struct.unpack_from("<%dH" % k, tokens, at)) for k, at in zip(lengths, starts)]


# ---- bytes ----
a, b = suite.write("a.txt", "one\ntwo, three\n\n"), suite.write("b.txt", b"\xff\x00")
out = suite.path("bytes")
suite.check("2 documents, 18 bytes, 18 tokens of a vocabulary of 256" in
            tokenize(["--input=" + suite.path("?.txt"), "--output=" + out]), "what it says")
suite.equal(documents(out), [list(b"one\ntwo, three\n\n"), [255, 0]], "files, in the order of their names")
tokenize(["--input=" + a, "--output=" + out, "--documents=line", "--end=."])
suite.equal(documents(out), [list(b"one."), list(b"two, three.")], "lines")

# ---- byte pairs, on one thread and on several ----
fails(["--input=" + b, "--output=" + out, "--tokenizer=" + LLAMA3], "document 0", "byte 0 (0xff)") if \
    run([TOKENIZE, "--input=" + a, "--output=" + out, "--tokenizer=" + LLAMA3])[0] == 0 else suite.close()  # without PCRE2
lines = suite.write("lines.json", "".join(json.dumps({"id": i, "body": c["text"]}) + "\n" for i, c in enumerate(cases * 20)))
arguments = ["--input=" + lines, "--documents=json", "--json_key=body", "--tokenizer=" + LLAMA3, "--end=<|endoftext|>"]
for threads in ["1", "3", "0"]:
    tokenize(arguments + ["--output=" + out, "--threads=" + threads])
    suite.check(documents(out) == [c["llama3"] + [0] for c in cases * 20], "the golden tokens, with threads=" + threads)
back = suite.write("text.json", "".join(json.dumps({"text": c["text"]}) + "\n" for c in cases))
tokenize(["--input=" + back, "--documents=json", "--tokenizer=" + LLAMA3, "--output=" + out])
suite.check(tokenize(["--decode=" + out, "--tokenizer=" + LLAMA3]) == "".join(c["text"] for c in cases), "back to text")

# ---- errors ----
fails(["--input=" + suite.path("none"), "--output=" + out], "none: No such file")
fails(["--output=" + out], "--input and --output")
fails(["--input=" + a, "--output=" + suite.path("no", "x")], "x.bin: No such file")
fails(["--input=" + a, "--output=" + out, "--end=<none>"], "has no such token")
fails(["--input=" + a, "--output=" + out, "--documents=json"], "document 0", "a line of JSON")
fails(["--input=" + suite.write("d.json", '{"text": 1, "text": 2}\n'), "--output=" + out, "--documents=json"], "duplicate")
fails(["--input=" + suite.write("k.json", '{"text": "a"}\n{"txt": "a"}\n'), "--output=" + out, "--documents=json"],
      "document 1", "'text'")
suite.check(not os.path.exists(out + ".idx"), "no index of what was not finished")
os.symlink("/dev/full", suite.path("full.bin"))
fails(["--input=" + a, "--output=" + suite.path("full")], "full.bin: No space left")

# ---- a model of these tokens ----
story = suite.write("story.txt", "<|begin|>" + "The river runs to the sea, and the sea waits. " * 200)
tokenize(["--input=" + story, "--tokenizer=" + LLAMA3, "--output=" + out, "--end=<|endoftext|>"])
config = suite.write("config.json", {**CONFIG, "vocab_size": 1024})
status, _, err = run([TRAIN, "--model.config=" + config, "--data.path=" + out, "--train.seq_len=16", "--train.steps=60",
                      "--optim.lr=0.02", "--log.peak_flops=1e9", "--model.save=" + suite.path("model")])
suite.check(status == 0, "training: " + err)
for how in [["--tokenizer=" + LLAMA3], []]:  # by its name, and from the model's folder
    status, text, err = run([SAMPLE, suite.path("model"), "--prompt=The river", "--tokens=20", "--temperature=0"] + how)
    suite.check(status == 0 and text.startswith("The river runs to the sea"), "sample: %s %r %s" % (status, text, err))
    with open(LLAMA3, "rb") as f:
        suite.write(os.path.join("model", "tokenizer.json"), f.read(), again=True)
status, _, err = run([SAMPLE, suite.path("model"), "--tokenizer=bytes"])
suite.check(status == 1 and "1024 tokens, the tokenizer (bytes) 256" in err, "a tokenizer of another size: " + err)
suite.close()
