#!/usr/bin/env bash
# build.sh PRESET [TARGETS]: configures and builds a CMake preset; quiet unless something fails.
#
# KVANT_KERNELS=here makes a first build quicker: attention kernels for this processor alone. A folder that has been
# built with all of them keeps them all.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/step.sh

preset=$1
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=(all)

# A build folder that belongs to another place (a copied tree) can't be used.
configure() {
  local cache=build/$preset/CMakeCache.txt
  if [ -f "$cache" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$cache"; then
    rm -rf "build/$preset"
  fi
  if [ ! -f "build/$preset/build.ninja" ]; then
    cmake --preset "$preset" "-DKVANT_KERNELS=${KVANT_KERNELS:-all}" "${cuda[@]}"
  elif [ "${KVANT_KERNELS:-all}" = all ] && grep -qxF KVANT_KERNELS:STRING=here "$cache"; then
    cmake --preset "$preset" -DKVANT_KERNELS=all
  fi
}
# Without a GPU nothing runs what the assembler makes of the GPU library: half of its time is saved.
cuda=()
[ -e /dev/nvidiactl ] || [ "$preset" = cuda ] || cuda=(-DKVANT_CUDA_ARCHITECTURES=90a-virtual)

configure_and_build() { configure && cmake --build --preset "$preset" --target "${targets[@]}"; }

step "build ${targets[*]} (preset $preset)" configure_and_build
