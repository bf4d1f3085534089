#!/usr/bin/env bash
# lint.sh [FILE...]: checks formatting and runs clang-tidy over all sources, or over the named ones, with the flags of
# the default build. Also prints the counts of check-prose.py, which cannot fail the check.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/step.sh

for tool in clang-format clang-tidy; do
  command -v $tool > /dev/null || fail "$tool is missing: apt-get install clang-format clang-tidy"
done
scripts/check-prose.py --summary

files=("$@")
[ $# -gt 0 ] || mapfile -t files < <(find src -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | sort)
clang-format --dry-run -Werror "${files[@]}"

cmake --preset default -B build/lint -DKVANT_UNITY=ON > /dev/null
scripts/tidy.py build/lint "$@"
