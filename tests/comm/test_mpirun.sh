#!/bin/sh
# tests/comm/test_mpirun.sh - the launch line of tools/mpirun for each MPI, seen by a false mpirun that answers
# --version as the real ones do and else prints its arguments. Argument: tools/mpirun.
set -u
launcher=$1
passed=0
failed=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/mpirun" <<'END'
#!/bin/sh
if [ "$1" = --version ]; then
    echo "$FALSE_VERSION"
else
    echo "threads=$OMP_NUM_THREADS args=$*"
    exit "${FALSE_STATUS:-0}"
fi
END
chmod +x "$folder/mpirun"
PATH=$folder:$PATH
export PATH FALSE_VERSION FALSE_STATUS

check() { # what, text that must be in $line, or must not with a leading !
    case $2 in
    !*) case $line in *"${2#!}"*) ok=no ;; *) ok=yes ;; esac ;;
    *) case $line in *"$2"*) ok=yes ;; *) ok=no ;; esac ;;
    esac
    if [ $ok = yes ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$1: '$2' in: $line"
    fi
}

as_root=--allow-run-as-root
[ "$(id -u)" = 0 ] || as_root="!$as_root"
unset OMP_NUM_THREADS

FALSE_VERSION="mpirun (Open MPI) 4.1.4"
line=$("$launcher" -n 3 sh "a b" --key=1)
check "open mpi 4" "args=-n 3 --bind-to none --oversubscribe"
check "open mpi 4" "btl_vader_single_copy_mechanism none"
check "open mpi 4" "sh a b --key=1"
check "open mpi 4" "$as_root"

FALSE_VERSION="mpirun (Open MPI) 5.0.3"
line=$("$launcher" -n 2 sh)
check "open mpi 5" "args=-n 2 --bind-to none --map-by :OVERSUBSCRIBE"
check "open mpi 5" "!--oversubscribe"
check "open mpi 5" "!vader"
check "open mpi 5" "$as_root"

FALSE_VERSION="HYDRA build details:
    Version:                                 4.0.2"
line=$("$launcher" -n 2 sh x)
check "mpich" "args=-n 2 -bind-to none sh x"

FALSE_VERSION="mpirun (Open MPI) 4.1.4"
line=$("$launcher" -n 100000 sh)
check "more ranks than cores" "threads=1 "
line=$(OMP_NUM_THREADS=7 "$launcher" -n 2 sh)
check "the user's threads" "threads=7 "
line=$(FALSE_STATUS=41 "$launcher" -n 2 sh >/dev/null; echo "status=$?")
check "exit status" "status=41"
line=$(FALSE_STATUS=137 "$launcher" -n 2 sh 2>&1 >/dev/null; echo "status=$?")
check "a killed rank" "a rank was killed by signal 9 (status 137)"
check "a killed rank" "status=137"
line=$(FALSE_STATUS=1 "$launcher" -n 2 sh 2>&1 >/dev/null)
check "a failed rank speaks for itself" "!tools/mpirun"
line=$("$launcher" prog 2>&1; echo "status=$?")
check "usage" "usage: tools/mpirun -n N PROGRAM"
check "usage" "status=2"
line=$("$launcher" -n 0 sh 2>&1; echo "status=$?")
check "no ranks" "status=2"

line=$("$launcher" -n 2 ./no-such-program 2>&1; echo "status=$?")
check "no program" "cannot find the program ./no-such-program"
check "no program" "status=127"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
