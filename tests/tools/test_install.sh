#!/bin/sh
# tests/tools/test_install.sh - installs the library into a new folder and compiles the first step in README.md
# as a user would, with pkg-config; on 4 ranks it prints what it prints on 1, and the loss falls.
# Arguments: source root, build root, the compiler and its flags.
set -u
source=$1 build=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
    echo "$*"
    echo "0 passed, 1 failed"
    exit 1
}
cd "$source" || fail "no folder $source"

DESTDIR=$folder meson install -C "$build" --no-rebuild >"$folder/log" 2>&1 || fail "$(cat "$folder/log")"
pc=$(find "$folder" -name dtensor.pc)
prefix=$folder$(sed -n 's/^prefix=//p' "$pc")
flags() { PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --define-variable=prefix="$prefix" "$@" dtensor; }

sed -n '/^```c$/,/^```$/p' README.md | sed '/^```$/q' | sed '/^```/d' >"$folder/program.c"
cat tests/tools/readme_main.inc >>"$folder/program.c"
# shellcheck disable=SC2046
"$@" -std=c11 -Wall -Werror $(flags --cflags) -o "$folder/program" "$folder/program.c" $(flags --libs) 2>&1 ||
    fail "the step in README.md does not compile against what was installed"

export OMP_NUM_THREADS=1
one=$("$folder/program" 1) || fail "on one rank: $one"
four=$("$folder/program" 4) || fail "on four ranks: $four"
[ "$one" = "$four" ] || fail "one rank: $one
four ranks: $four"
echo "$one" | awk '{loss[NR] = $4} END {exit !(NR == 5 && loss[5] < loss[1])}' || fail "no falling loss: $one"
echo "1 passed, 0 failed"
