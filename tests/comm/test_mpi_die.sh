#!/bin/sh
# tests/comm/test_mpi_die.sh - a rank's failure ends the whole job: promptly, with its message and a non-zero
# status. Arguments: tools/mpirun, the program test_mpi.
output=$(timeout 60 "$1" -n 2 "$2" die 2>&1)
status=$?
case $output in *"rank 1 of 2 failed:"*"disk is full"*) said=yes ;; *) said=no ;; esac
if [ $status -ne 0 ] && [ $status -ne 124 ] && [ $said = yes ]; then
    echo "1 passed, 0 failed"
else
    echo "status $status: $output"
    echo "0 passed, 1 failed"
    exit 1
fi
