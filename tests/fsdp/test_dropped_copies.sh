#!/bin/sh
# tests/fsdp/test_dropped_copies.sh - a wait of copies to or from memory of the host that is left out
# (DT_FAULT=drop_event:4 to 8, docs/cuda.md) is noticed on the simulated device: by the thread sanitizer in one
# run, else by wrong numbers where the newest stream goes first; with all of them there nothing is.
# Arguments: the program test_offload_host; what it was built with (b_sanitize).
passed=0
failed=0
output=$(mktemp)
trap 'rm -f "$output"' EXIT

count() { # as passed if $1 is 0; else say $2 and what the program said
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$2"
        cat "$output"
    fi
}

program=$1
export SIMDEV_SCHED=newest
"$program" >"$output" 2>&1
count $? "nothing left out:"
for fault in 4 5 6 7 8; do
    ! DT_FAULT=drop_event:$fault "$program" >"$output" 2>&1
    count $? "wait $fault is left out and nobody notices:"
    case $2 in *thread*)
        grep -q "ThreadSanitizer: data race" "$output"
        count $? "wait $fault: no race was reported:"
        ;;
    esac
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
