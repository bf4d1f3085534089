# shellcheck shell=bash
# gpu-test, gpu-bench and gpu-layouts use this file to build programs of the GPU library. The file sets `programs` to
# the folder of the programs. If KVANT_GPU_PROGRAMS names a folder, the programs in that folder are used, which another
# machine may have built.
build_gpu_programs() {
  programs=${KVANT_GPU_PROGRAMS:-build/cuda}
  [ -z "${KVANT_GPU_PROGRAMS:-}" ] || return 0
  command -v nvcc > /dev/null || { echo "$(basename "$0"): no nvcc on the path; nothing was run" >&2; exit 2; }
  local program
  for program in "$@"; do scripts/build.sh cuda "$program"; done
}
