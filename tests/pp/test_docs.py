#!/usr/bin/env python3
# tests/pp/test_docs.py TOOL TRAIN PAGE - every picture in docs/pipeline.md is what its command prints today;
# the keys in its table are those of train --help that speak of pipelines, and the same defaults.
import re
import subprocess
import sys

tool, train, page = sys.argv[1:]
text = open(page, encoding="utf-8").read()
blocks = text.split("    $ schedule ")[1:]
stale = 0
for block in blocks:
    command, *rest = block.split("\n")
    shown = [line[4:] for line in rest[:next(i for i, line in enumerate(rest) if not line.startswith("    "))]]
    printed = subprocess.run([tool] + command.split(), capture_output=True, text=True, check=True).stdout
    if printed.splitlines() != shown:
        print("%s: not what the tool prints:\n%s" % (command, printed))
        stale += 1
told = dict(re.findall(r"^\| `([a-z]+\.[a-z_]+)` \| (\S+)", text, re.M))
help_text = subprocess.run([train, "--help"], capture_output=True, text=True, check=True).stdout
keys = {k: (h, d or "none")
        for k, h, d in re.findall(r"^  --([a-z]+\.[a-z_]+)[=\[]\S* *(.*?)(?: \[(.*)\])?$", help_text, re.M)}
for key, (h, default) in keys.items():
    other = re.search(r"with pp, where not given: (\w+)", h)
    keys[key] = (h, other.group(1) if other else default)
speaks = {k for k, (h, _) in keys.items() if re.search(r"\bpp\b|pipeline|stages", h) or k.startswith("parallel.resh")}
wrong = {k for k in told if k not in keys or keys[k][1] != told[k]}
for key in sorted(speaks - set(told)) + sorted(wrong):
    print("%s: not in the page's table, or not as train --help says" % key)
print("%d pictures, %d stale; %d keys" % (len(blocks), stale, len(told)))
sys.exit(1 if stale or not blocks or not told or wrong or speaks - set(told) else 0)
