#!/bin/sh
# tests/base/check_layers_test.sh CHECK_LAYERS - plants each forbidden include in a small tree, and
# wants it found.
check=$1
tree=$(mktemp -d) || exit 2
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/tools" "$tree/low" "$tree/high/ops" "$tree/tests"
printf '# a comment\nlow:\nhigh: low\ntests: *\n' > "$tree/tools/layers.txt"
failed=0

# want RC FILE LINE: the outcome of the check with this line as the file's content.
want() {
    printf '%s\n' "$3" > "$tree/$2"
    message=$("$check" "$tree" 2>&1)
    [ $? -ne 0 ]; found=$((1 - $?))
    case $1:$message in 1:*$2*|0:*) named=1 ;; *) named=0 ;; esac
    if [ $found -ne $1 ] || [ $named -ne 1 ]; then
        echo "wanted $1, got $found for $2: $3 ($message)"
        failed=1
    fi
    rm "$tree/$2"
}

want 0 high/a.c '#include "low/dt_low.h"'
want 0 high/ops/a.c '#include "high/high_internal.h"'
want 0 low/a.c '#include "low/low_internal.h"'
want 0 low/a.c '#include <high/x.h>'
want 0 tests/a.c '#include "high/high_internal.h"'
want 0 tests/a.c '#include "dtensor.h"'
want 1 low/a.c '#include "high/dt_high.h"'
want 1 low/a.h '  #  include "high/dt_high.h"'
want 1 high/ops/a.c '#include "tests/harness.h"'
want 1 high/a.c '#include "low/low_internal.h"'
want 1 high/a.c '#include "../low/dt_low.h"'
want 1 high/a.c '#include "dtensor.h"'
want 1 high/a.cu '#include "nowhere/x.h"'
mkdir "$tree/stranger"
printf 'int x;\n' > "$tree/stranger/a.c"
"$check" "$tree" 2>/dev/null && { echo "an unknown folder was accepted"; failed=1; }
exit $failed
