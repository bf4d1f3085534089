#!/usr/bin/env bash
# installed_library_test.sh BUILD_FOLDER: installs the GPU library into a folder of its own, moves it, and builds
# first_program.c against it in every way that docs/guide/c-library.md names: by the compiler alone, pkg-config, CMake.
set -euo pipefail
source=$(cd "$(dirname "$0")" && pwd)
readonly build=$1 source
folder=$(mktemp -d)
trap '[ $? = 0 ] || cat "$folder/log"; rm -rf "$folder"' EXIT

cmake --install "$build" --prefix "$folder/first" > "$folder/log"
mv "$folder/first" "$folder/place with a space"
cd "$folder"
readonly place="$folder/place with a space"
lib=$(dirname "$(find "$place" -name libkvant_cuda.so)")
test -f "$place/share/doc/kvant_cuda/LICENSE"

number=$(sed -n 's/^#define KVANT_VERSION //p' "$place/include/kvant/kvant.h")
readonly wanted="version $((number / 1000)).$((number % 1000)), cuda/sm"
expect() {  # PROGRAM
  LD_LIBRARY_PATH=$lib "$1" > said
  grep -qF "$wanted" said || { echo "$1 says: $(cat said); not '$wanted'"; exit 1; }
}

strict=(-Wall -Wextra -Werror -pedantic)
cc -std=c99 "${strict[@]}" "$source/first_program.c" -I"$place/include" -L"$lib" -lkvant_cuda -o by_cc
c++ -x c++ -std=c++11 "${strict[@]}" "$source/first_program.c" -I"$place/include" -L"$lib" -lkvant_cuda -o by_cxx
expect ./by_cc
expect ./by_cxx

if command -v pkg-config > /dev/null; then
  export PKG_CONFIG_PATH=$lib/pkgconfig
  eval "cc '$source/first_program.c' $(pkg-config --cflags --libs kvant_cuda) -o by_pkg_config"
  expect ./by_pkg_config
  pkg-config --exists 'kvant_cuda >= 1.0'
fi

mkdir project
cat > project/CMakeLists.txt << CMAKE
cmake_minimum_required(VERSION 3.20)
project(stranger C)
find_package(kvant_cuda 1.0 REQUIRED)
add_executable(by_cmake "$source/first_program.c")
target_link_libraries(by_cmake PRIVATE kvant::kvant_cuda)
CMAKE
cmake -S project -B project/build "-DCMAKE_PREFIX_PATH=$place" >> log
cmake --build project/build >> log
expect project/build/by_cmake
