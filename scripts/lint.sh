#!/usr/bin/env bash
# Checks formatting and runs clang-tidy over all sources, or over the named ones, with the flags of the default build.
# Also prints the counts of check-prose.py, which cannot fail the check.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/step.sh

for tool in clang-format clang-tidy; do
  command -v $tool > /dev/null || fail "$tool is missing: apt-get install clang-format clang-tidy"
done
scripts/check-prose.py --summary
# Without unity builds, each file has its own command.
cmake --preset default -B build/lint -DKVANT_UNITY=OFF > /dev/null

files=("$@")
[ $# -gt 0 ] || mapfile -t files < <(find src -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | sort)
clang-format --dry-run -Werror "${files[@]}"
# clang-tidy checks headers through the sources that include them. clang does not know all of GCC's options, so the
# unknown options are removed.
sed -i -e 's/ -fno-tree-[a-z]*//g' -e 's/ -include [^ ]*cmake_pch.hxx//; s/ -Winvalid-pch//; s/ -fpch-preprocess//; s/ --param=[^ ]*//' build/lint/compile_commands.json
printf '%s\n' "${files[@]}" | grep '\.cc$' |
  xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p build/lint --extra-arg=-Wno-unknown-warning-option 2> >(grep -v 'warnings generated' >&2)
