#!/bin/sh
# tests/tools/test_shell.sh - every shell script of the project parses, and shellcheck has nothing to say
# from warnings up. Argument: the source root.
cd "$1" || exit 1
passed=0
failed=0
# Those with a #!/bin/sh line, wherever they are.
scripts=$(grep -rlE --exclude-dir='build*' --exclude-dir=.git '^#!/bin/(ba)?sh' . |
    while read -r file; do head -n 1 "$file" | grep -q '^#!/bin/' && echo "$file"; done)
has_shellcheck=no
command -v shellcheck >/dev/null && has_shellcheck=yes
for script in $scripts; do
    if sh -n "$script" && { [ $has_shellcheck = no ] || shellcheck -S warning "$script"; }; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
done
[ $has_shellcheck = yes ] || echo "note: shellcheck is not installed: $passed scripts only parsed"
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
