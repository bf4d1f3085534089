#!/usr/bin/env bash
# install_test.sh BUILD_FOLDER VERSION: tests an installation. Installs kvant into a temporary folder, moves it, and
# runs the program there without the libraries of the build. Then installs again and uninstalls, which must leave
# nothing.
set -euo pipefail
build=$1 version=$2 source=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap '[ $? = 0 ] || cat "$folder/log"; rm -rf "$folder"' EXIT
fail() { echo "$*"; exit 1; }

# `theirs` keeps the manifest of an earlier installation from this build folder, `ours` the manifest of this test.
mkdir "$folder/theirs" "$folder/ours"
mv "$build/install_manifest.txt" "$folder/theirs" 2> /dev/null || true
cmake --install "$build" --prefix "$folder/first" > "$folder/log"
mv "$folder/first" "$folder/place with a space"
said=$("$folder/place with a space/bin/kvant" --version)
[ "$said" = "kvant $version" ] || fail "the program says '$said', not 'kvant $version'"
strange=$(ldd "$folder/place with a space/bin/kvant" | grep -v "place with a space" | grep -E 'llama|ggml|fmt|not found' || true)
[ -z "$strange" ] || fail "needed from elsewhere: $strange"
library=$(find "$folder/place with a space" -name 'libkvant_cuda.so.[0-9]')
[ -z "$library" ] || readelf -d "$library" | grep -q 'SONAME.*libkvant_cuda\.so\.[0-9]\]' || fail "the GPU library has no SONAME of its major version"

cmake --install "$build" --prefix "$folder/second" > "$folder/log"
mkdir -p "$folder/second/lib/others" && touch "$folder/second/bin/other"
mv "$build/install_manifest.txt" "$folder/ours"
mv "$folder/theirs/install_manifest.txt" "$build" 2> /dev/null || true
cmake "-DBUILD=$folder/ours" -P "$source/uninstall.cmake" > "$folder/log"
left=$(cd "$folder/second" && find . -type f -o -type l)
[ "$left" = ./bin/other ] || fail "left after uninstalling: $left"
left=$(cd "$folder/second" && find . -name "kvant*")
[ -z "$left" ] || fail "empty folders are left: $left"
