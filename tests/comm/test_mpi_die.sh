#!/bin/sh
# tests/comm/test_mpi_die.sh - a rank's failure ends the whole job: promptly, with its message and a non-zero
# status; the death of one is noticed by those that share its memory; where memory cannot be shared MPI serves, and
# that is said once. Arguments: tools/mpirun, the program test_mpi.
passed=0
failed=0

check() { # launcher, program, what it does, texts that must be there, whether it succeeds
    output=$(timeout 60 "$1" -n 3 "$2" "$3" 2>&1)
    status=$?
    case $output in *"$4"*) said=yes ;; *) said=no ;; esac
    case $output in *"$5"*) ;; *) said=no ;; esac # mpirun passes on the two streams in any order
    case $status in 0) ended=yes ;; 124) ended=late ;; *) ended=no ;; esac
    case $ended$output in yes*"$4"*"$4"*) said=twice ;; esac
    if [ $ended = "${6:-no}" ] && [ $said = yes ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$3: status $status: $output"
    fi
}

for DT_COMM in shm mpi; do
    export DT_COMM
    check "$1" "$2" die "rank 1 of 3 failed:" "disk is full"
done
DT_COMM=shm
check "$1" "$2" killed "barrier #1 'after'" "rank 1 has died"
check "$1" "$2" killed_message "recv #0 'last words'" "rank 1 has died"
check "$1" "$2" sum "3 ranks by" "shm" yes
DT_FAULT=unshared
export DT_FAULT
check "$1" "$2" sum "warning: ranks do not share memory" "3 ranks by mpi" yes

echo "$passed passed, $failed failed"
[ $failed = 0 ]
