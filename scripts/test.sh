#!/usr/bin/env bash
# test.sh PRESET [options of ctest]: runs the tests of a preset that is built. In the end the script prints what was
# skipped and why: tests that skip themselves, and programs that were not built.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/step.sh

readonly preset=$1
shift
readonly log=build/$preset/Testing/Temporary/LastTest.log

# Reads GoogleTest's output. The reason for skipping is on the line after "FILE:LINE: Skipped", followed by "[ SKIPPED ]
# TEST (TIME)".
skipped_tests() {
  awk '/: Skipped$/ { getline reason }
       /^\[  SKIPPED \] .* \([0-9]+ ms\)$/ { if (!count[reason]++) first[reason] = $4 }
       END { for (r in count) {
               others = count[r] > 1 ? sprintf(" and %d more", count[r] - 1) : ""
               printf "   %s: %s%s\n", r, first[r], others } }' "$log" | sort
}
programs_left_out() {
  [ -f "build/$preset/suites/cuda_test.cmake" ] ||
    echo "   the GPU library and its tests: not built, there is no nvcc (CUDACXX)"
}

status=0
ctest --preset "$preset" -j "$(nproc)" "$@" 2>&1 | fold -s -w 120 || status=$?
[ -f "$log" ] || fail "ctest has left no $log"
skipped=$(skipped_tests; [ $# -gt 0 ] || programs_left_out)
if [ -n "$skipped" ]; then
  printf -- '-- skipped:\n%s\n' "$skipped" | fold -s -w 120
else
  echo "-- skipped: nothing"
fi
[ $# = 0 ] || echo "-- left out: all but $* (\`make test\` runs everything)"
exit $status
