#!/bin/sh
# tests/comm/test_dropped_waits.sh - a wait between the compute stream and a communicator that is left out
# (DT_FAULT=drop_event) is noticed on the simulated device; with both there nothing is. Argument: the program
# test_collectives.
passed=0
failed=0
for fault in none drop_event:1 drop_event:2; do
    if [ $fault = none ]; then
        "$1" >/dev/null 2>&1
    else
        DT_FAULT=$fault "$1" >/dev/null 2>&1
    fi
    status=$?
    if [ $fault = none ] && [ $status = 0 ] || { [ $fault != none ] && [ $status != 0 ]; }; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$fault: status $status"
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
