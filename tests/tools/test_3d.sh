#!/bin/sh
# tests/tools/test_3d.sh - examples/08_3d on 8 threads and, with MPI, on 8 processes: the same lines, a loss that
# falls; and what README.md shows of it is what runs. Arguments: source root, the program, tools/mpirun or none.
set -u
source=$1 program=$2 mpirun=$3
fail() {
    echo "$*"
    echo "0 passed, 1 failed"
    exit 1
}
export OMP_NUM_THREADS=1
threads=$("$program" --ranks=8) || fail "on 8 threads: $threads"
echo "$threads" | awk '{loss[NR] = $4} END {exit !(NR == 10 && loss[10] < loss[1] / 2)}' || fail "no falling loss: $threads"
if [ "$mpirun" != none ]; then
    processes=$("$mpirun" -n 8 "$program") || fail "on 8 processes: $processes"
    [ "$threads" = "$processes" ] || fail "threads: $threads
processes: $processes"
fi
shown=$(sed -n '/^static dt_status train(/,/^}/p' "$source/README.md")
[ -n "$shown" ] && [ "$shown" = "$(sed -n '/^static dt_status train(/,/^}/p' "$source/examples/08_3d.c")" ] ||
    fail "README.md does not show train() of examples/08_3d.c as it is"
echo "1 passed, 0 failed"
