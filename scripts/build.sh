#!/usr/bin/env bash
# build.sh PRESET [TARGETS]: configures and builds a CMake preset; prints nothing unless a step fails.
#
# KVANT_KERNELS=here makes a first build faster, because it builds attention kernels only for this processor. A folder
# that was built with all kernels keeps all of them.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/step.sh

preset=$1
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=(all)

# A build folder that was copied from another place is unusable.
configure() {
  local cache=build/$preset/CMakeCache.txt
  if [ -f "$cache" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$cache"; then
    rm -rf "build/$preset"
  fi
  if [ ! -f "build/$preset/build.ninja" ]; then
    cmake --preset "$preset" "-DKVANT_KERNELS=${KVANT_KERNELS:-all}" "${cuda[@]}"
    return
  fi
  if [ "${KVANT_KERNELS:-all}" = all ] && grep -qxF KVANT_KERNELS:STRING=here "$cache"; then
    cmake --preset "$preset" -DKVANT_KERNELS=all || return
  fi
  # The folder was configured without a GPU.
  if has_gpu && grep -qxF KVANT_CUDA_UNOPTIMIZED:BOOL=ON "$cache"; then
    cmake --preset "$preset" "${cuda[@]}"
  fi
}
# The GPU library is compiled for this machine's GPU: for Hopper, for all GPUs of 8.x, or as code that the driver
# compiles. Without a GPU, the library is compiled only to PTX and without optimization, in a fifth of the time. A few
# files then check that the code for other GPUs compiles (cmake/cuda.cmake). KVANT_GPU=1 or rival compiles for a Hopper
# GPU, which may be in another machine.
has_gpu() { [ -e /dev/nvidiactl ] || [[ ${KVANT_GPU:-} =~ ^(1|rival)$ ]]; }
gpu_architectures() {
  has_gpu || { echo 90a-virtual; return; }
  case $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -n 1) in
    8.*) echo 80-real ;;
    9.0 | "") echo 90a-real ;;
    *) echo 80-virtual ;;
  esac
}
cuda=()
if [ "$preset" != cuda ]; then
  cuda=("-DKVANT_CUDA_ARCHITECTURES=$(gpu_architectures)" "-DKVANT_CUDA_UNOPTIMIZED=$(has_gpu && echo OFF || echo ON)")
fi

configure_and_build() { configure && cmake --build --preset "$preset" --target "${targets[@]}"; }

step "build ${targets[*]} (preset $preset)" configure_and_build
