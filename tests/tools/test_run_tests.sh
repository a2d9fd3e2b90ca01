#!/bin/sh
# tests/tools/test_run_tests.sh - what tools/run_tests makes of programs that pass, fail, crash, hang, leak
# after their last check, check nothing, or run under MPI. Argument: tools/run_tests.
runner=$1
passed=0
failed=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

program() { # name, lines of shell
    printf '#!/bin/sh\n%s\n' "$2" >"$folder/$1"
    chmod +x "$folder/$1"
    printf "test('%s', find_program('%s'), suite: 'planted', timeout: 1)\n" "$1" "$1" >>"$folder/meson.build"
}
printf "project('planted', meson_version: '>= 1.0')\n" >"$folder/meson.build"
program plain 'exit 0'
program checks 'echo "100%: Checks: 18, Failures: 0, Errors: 0"'
program two_suites 'echo "100%: Checks: 2, Failures: 0, Errors: 0"; echo "100%: Checks: 3, Failures: 0, Errors: 0"'
program script 'echo "note: a message"; echo "7 passed, 0 failed"'
program mpirun 'for rank in 1 2; do echo "100%: Checks: 6, Failures: 0, Errors: 0"; done'
program some_fail 'echo "71%: Checks: 7, Failures: 1, Errors: 1"; echo "what was wrong"; exit 1'
program crash 'kill -SEGV $$'
program crash_at_end 'echo "100%: Checks: 4, Failures: 0, Errors: 0"; exit 23'
program no_checks 'echo "100%: Checks: 0, Failures: 0, Errors: 0"'
program hang 'sleep 60'
program skips 'echo "SKIPPED planted: not here"; exit 77'
program skips_at_end 'echo "100%: Checks: 4, Failures: 0, Errors: 0"; exit 77'
meson setup "$folder/build" "$folder" >"$folder/log" 2>&1 || cat "$folder/log"

expect() { # exit status, text that the output must hold, names of tests
    status=$1 text=$2
    shift 2
    output=$("$runner" "$folder/build" "$@" 2>&1)
    got=$?
    case $output in *"$text"*) said=yes ;; *) said=no ;; esac
    if [ $got = "$status" ] && [ $said = yes ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "wanted status $status and '$text', got $got: $output"
    fi
}
newline='
'
expect 0 "${newline}1 passed, 0 failed" plain
expect 0 "${newline}18 passed, 0 failed" checks
expect 0 "${newline}5 passed, 0 failed" two_suites
expect 0 "note: a message" script
expect 0 "${newline}7 passed, 0 failed" script
expect 0 "${newline}6 passed, 0 failed" mpirun
expect 1 "${newline}5 passed, 2 failed" some_fail
expect 1 "${newline}what was wrong" some_fail
expect 1 "ended by SIGSEGV" crash
expect 1 "${newline}0 passed, 1 failed" crash
expect 1 "${newline}4 passed, 1 failed" crash_at_end
expect 1 "${newline}0 passed, 1 failed" no_checks
expect 1 "stopped after its limit of 1 s" hang
expect 0 "SKIPPED planted: not here" skips plain
expect 0 "${newline}1 passed, 0 failed" skips plain
expect 1 "${newline}0 passed, 0 failed" skips
expect 1 "${newline}4 passed, 1 failed" skips_at_end
expect 1 "${newline}0 passed, 1 failed" no_such_test
expect 1 "${newline}50 passed, 7 failed" planted

echo "$passed passed, $failed failed"
[ $failed = 0 ]
