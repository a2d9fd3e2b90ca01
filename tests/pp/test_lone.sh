#!/bin/sh
# tests/pp/test_lone.sh - a rank of a pipeline that fails alone, as a process: the whole job ends, promptly, with a
# message that names stage, action and cause, and a status that is not 0. Arguments: tools/mpirun, the program lone.
passed=0
failed=0

check() { # ranks, then what lone.c takes
    ranks=$1
    shift
    output=$(timeout 50 "$launcher" -n "$ranks" "$program" "$@" 2>&1)
    status=$?
    case $output in *"stage 1 failed in 1"*"the backward is spoiled"*) said=yes ;; *) said=no ;; esac
    if [ $status != 0 ] && [ $status != 124 ] && [ $said = yes ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$DT_COMM, $ranks ranks, $*: status $status: $output"
    fi
}

launcher=$1
program=$2
for DT_COMM in shm mpi; do
    export DT_COMM
    check 4 1f1b 2 2 1 3
    check 4 zb-h1 2 1 2 2
    check 8 zbv 2 2 2 7
    check 8 interleaved 4 2 1 3
    check 8 1f1b 8 1 1 1 # nobody else is in its stage
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
