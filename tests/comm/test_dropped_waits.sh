#!/bin/sh
# tests/comm/test_dropped_waits.sh - a wait between streams that is left out (DT_FAULT=drop_event, docs/cuda.md)
# is noticed on the simulated device; with all of them there nothing is. Under the thread sanitizer one run
# must report a race. Without it numbers must be wrong in one of the orders of streams; what is right in
# all of them is said, not counted. Arguments: the program test_waits; what it was built with (b_sanitize).
passed=0
failed=0
output=$(mktemp)
trap 'rm -f "$output"' EXIT

verdict() { # whether $1 is 0, and words for when it is not
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$2"
        cat "$output"
    fi
}

is_wrong() { # in the order of streams $1 (of the seed $2)
    ! SIMDEV_SCHED=$1 SIMDEV_SEED=$2 "$program" >"$output" 2>&1
}

program=$1
for case in collective message both; do
    export CK_RUN_CASE=$case
    unset DT_FAULT
    ! is_wrong random 1
    verdict $? "$case, nothing left out:"
    case $case in both) faults=3 ;; *) faults="1 2" ;; esac
    for fault in $faults; do
        export DT_FAULT=drop_event:$fault
        case $2 in
        *thread*)
            is_wrong random 1
            grep -q "ThreadSanitizer: data race" "$output"
            verdict $? "$case without wait $fault: no race was reported:"
            ;;
        *)
            if is_wrong random 1 || is_wrong random 2 || is_wrong random 3 || is_wrong random 4 ||
                is_wrong newest 1 || is_wrong demand 1 || is_wrong eager 1; then
                verdict 0
            else
                echo "note: $case without wait $fault is right in 7 orders: only the thread sanitizer sees it"
            fi
            ;;
        esac
    done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
