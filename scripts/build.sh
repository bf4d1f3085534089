#!/usr/bin/env bash
# build.sh PRESET [TARGET]: configures and builds a CMake preset; quiet unless something fails.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/step.sh

preset=$1
target=${2:-all}

# A build folder that belongs to another place (a copied tree) can't be used.
configure() {
  local cache=build/$preset/CMakeCache.txt
  if [ -f "$cache" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$cache"; then
    rm -rf "build/$preset"
  fi
  [ -f "build/$preset/build.ninja" ] || cmake --preset "$preset"
}

configure_and_build() { configure && cmake --build --preset "$preset" --target "$target"; }

step "build $target (preset $preset)" configure_and_build
