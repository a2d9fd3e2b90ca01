#!/usr/bin/env python3
# tests/pp/test_docs.py TOOL PAGE - every picture in docs/pipeline.md is what its command prints today.
import subprocess
import sys

tool, page = sys.argv[1:]
blocks = open(page, encoding="utf-8").read().split("    $ schedule ")[1:]
stale = 0
for block in blocks:
    command, *rest = block.split("\n")
    shown = [line[4:] for line in rest[:next(i for i, line in enumerate(rest) if not line.startswith("    "))]]
    printed = subprocess.run([tool] + command.split(), capture_output=True, text=True, check=True).stdout
    if printed.splitlines() != shown:
        print("%s: not what the tool prints:\n%s" % (command, printed))
        stale += 1
print("%d pictures, %d stale" % (len(blocks), stale))
sys.exit(1 if stale or not blocks else 0)
