#!/bin/sh
# tests/tools/test_check_style.sh - tools/check_style notices each thing it is there for, planted one at a
# time in a tiny project. Argument: tools/check_style.
checker=$1
passed=0
failed=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/base" "$folder/tests"

fresh() {
    printf '/* dtensor.h - all. */\n#include "base/dt_a.h"\n' >"$folder/dtensor.h"
    printf '/* base/dt_a.h - a. */\n' >"$folder/base/dt_a.h"
    printf '/* base/a.c - a. */\n' >"$folder/base/a.c"
    printf "public_headers = {\n  'base': ['a'],\n}\n" >"$folder/meson.build"
}
expect() { # exit status, a text that the output must hold
    output=$("$checker" "$folder")
    status=$?
    case $output in *"$2"*) said=yes ;; *) said=no ;; esac
    if [ $status = "$1" ] && [ $said = yes ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "wanted status $1 and '$2', got $status: $output"
    fi
    fresh
}

fresh
expect 0 "3 files, 0 problems"
printf '%0101d\n' 0 >>"$folder/base/a.c"
expect 1 "base/a.c:2: 101 columns"
printf '%0100d\n' 0 >>"$folder/base/a.c"
expect 0 "0 problems"
printf '\tint x;\n' >>"$folder/base/a.c"
expect 1 "base/a.c:2: a tab"
printf '/* %s: later */\n' TODO >>"$folder/base/a.c"
expect 1 "base/a.c:2: a to-do note"
printf '/* a.c - a. */\n' >"$folder/base/a.c"
expect 1 "base/a.c:1: should open with '/* base/a.c - "
yes '' | head -n 400 >>"$folder/base/a.c"
expect 1 "base/a.c:401: more than 400 lines"
{ printf '/* tests/a.c - a. */\n' && yes '' | head -n 400; } >"$folder/tests/a.c"
expect 1 "tests/a.c:401: more than 400 lines"
rm "$folder/tests/a.c"
yes '' | head -n 401 >"$folder/tests/a.py"
expect 1 "tests/a.py:401: more than 400 lines"
yes '' | head -n 400 >"$folder/tests/a.py"
expect 0 "4 files, 0 problems"
rm "$folder/tests/a.py"
printf '/* base/dt_b.h - b. */\n' >"$folder/base/dt_b.h"
expect 1 "base/dt_b.h: should be included by dtensor.h"
expect 1 "base/dt_b.h: should be in public_headers of meson.build"
rm "$folder/base/dt_b.h"
printf '#include "base/dt_c.h"\n' >>"$folder/dtensor.h"
expect 1 "base/dt_c.h: is no public header, yet in dtensor.h"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
