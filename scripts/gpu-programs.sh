# shellcheck shell=bash
# For gpu-test and gpu-bench: builds programs of the GPU library, and sets `programs` to their folder. Where
# KVANT_GPU_PROGRAMS names a folder, they are taken from there, built on another machine.
build_gpu_programs() {
  programs=${KVANT_GPU_PROGRAMS:-build/cuda}
  [ -z "${KVANT_GPU_PROGRAMS:-}" ] || return 0
  command -v nvcc > /dev/null || { echo "$(basename "$0"): no nvcc on the path; nothing was run" >&2; exit 2; }
  local program
  for program in "$@"; do scripts/build.sh cuda "$program"; done
}
