#!/bin/sh
# tests/tools/test_quickstart.sh - quickstart's arguments; nothing is installed or built. Argument: the source root.
set -u
quickstart=$1/quickstart
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
passed=0
failed=0
# check STATUS STREAM PATTERN ARGUMENT...: that exit status, the pattern in out or err, nothing in the other.
check() {
    status=$1 stream=$2 pattern=$3
    shift 3
    "$quickstart" "$@" >out 2>err
    got=$?
    cat out err >both
    if [ $got = "$status" ] && grep -q -- "$pattern" "$stream" && cmp -s both "$stream"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "quickstart $*: exit $got, out: $(cat out), err: $(cat err)"
    fi
}
check 0 out '^./quickstart --text FILE' --help
check 0 out '^./quickstart test --full' -h
check 2 err '^./quickstart test' --verbose
check 2 err '^./quickstart test' --full
check 2 err '^./quickstart test' --text
check 2 err '^./quickstart test' --text ''
: >empty.txt # a path is the caller's, not that of quickstart's folder
check 1 err "--text $folder/README.md: no such file" --text README.md
check 1 err "--text $folder/empty.txt: " --text empty.txt
check 1 err "--text $1/none.txt: no such file" --text "$1/none.txt"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
