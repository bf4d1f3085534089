#!/usr/bin/env bash
# bench-cpu.sh OUT [PART]...: measures the CPU speeds in the docs, and writes one JSON file per run into the folder OUT.
#
# The parts are: attention (KV shapes 9/3/64 and 32/8/128, product recipes, ggml); onnxruntime (the same shapes; needs
# pip's onnxruntime and onnx in PYTHON); model (the default model at several depths, and llama.cpp); prompts (the
# default model with weights as Q4_1, Q4_0 and F16); sparse (Sparse V on the text TEXT). Without a PART all parts run.
#
# Variables: THREADS (2), KVANT (build/default/kvant), MODEL, TEXT (a text of data/calibration), PYTHON (python3), RUN
# (a command that starts each measurement, such as one that waits for a quiet machine).
set -euo pipefail
cd "$(dirname "$0")/.."

readonly OUT=${1:?usage: bench-cpu.sh OUT [attention|onnxruntime|model|prompts|sparse]...}
shift
[ $# -gt 0 ] || set -- attention onnxruntime model prompts sparse
readonly THREADS=${THREADS:-2} KVANT=${KVANT:-build/default/kvant} PYTHON=${PYTHON:-python3}
readonly MODEL=${MODEL:-.venv/smollm2-135m-instruct.gguf}
mkdir -p "$OUT"

# The caches of each group of recipes fit into memory together.
readonly GROUPS_OF_RECIPES=(
  "bf16,f16,fp8,q8_0,q8_0/q4_0,q4_0,q4_0-h"
  "kvant-4bit,kvant-3bit,kvant-2bit,kivi-4bit,kivi-3bit,kivi-2bit,kivi-2bit-g32,kivi-1bit"
  "kvlinc-2bit,kvlinc-1bit,turboattention-4bit,turboattention-mix,turbo4,turbo3,turbo2,turbo3-sparse-v,q8-turbo3"
  "vecinfer-4bit,vecinfer-3bit,vecinfer-2bit,vecinfer-r2,vecinfer-1.5bit,vecinfer-1.25bit,vquant-k4v2,vquant-k4v2-1pct,vquant-k4v2-10pct"
)

run() { ${RUN:-} "$@"; }

attention_at() {  # HEADS KV_HEADS DIM CONTEXTS
  local backend i=0 group
  for backend in cpu/avx512 cpu/avxvnni cpu/avx2; do
    "$KVANT" bench attention --heads 1 --kv-heads 1 --dim 64 -c 128 -r 1 -t 1 --backend $backend \
      > /dev/null 2>&1 || continue  # another processor's instruction set
    i=0
    for group in "${GROUPS_OF_RECIPES[@]}"; do
      run "$KVANT" bench attention --heads "$1" --kv-heads "$2" --dim "$3" -c "$4" -r 10 -t "$THREADS" \
        --backend $backend --kv "$group" --json "$OUT/attention-$1-$2-$3-${backend#cpu/}-$i.json"
      i=$((i + 1))
    done
  done
}

onnxruntime_at() {
  run "$PYTHON" scripts/bench-onnxruntime.py --heads "$1" --kv-heads "$2" --dim "$3" --ctx "$4" \
    --threads "$THREADS" --json "$OUT/onnxruntime-$1-$2-$3.json"
}

at_shapes() {
  "$1" 9 3 64 16384,32768
  "$1" 32 8 128 32768
}

# Prints the path of the default model with weights of type $1, and makes the model first if necessary.
model_of() {
  local prefix
  [ "$1" = q4_1 ] && echo "$MODEL" && return
  if [ ! -e "$OUT/weights-$1.gguf" ]; then
    prefix=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    g++ -O1 scripts/requantize.cc -o "$OUT/requantize" -I"$prefix/include" -L"$prefix/lib" -lllama -lggml-base \
      -Wl,-rpath,"$prefix/lib"
    "$OUT/requantize" "$MODEL" "$OUT/weights-$1.gguf" "$1" > /dev/null 2>&1
  fi
  echo "$OUT/weights-$1.gguf"
}

measure_model() {
  local weights depth model
  for weights in q4_1 q4_0 f16; do
    model=$(model_of $weights)
    for depth in 64 16384; do
      run "$KVANT" bench -m "$model" -t "$THREADS" -d $depth -p 0 -n 16 -r 5 --against llama.cpp \
        --kv bf16,q8_0,q4_0,kvant-4bit,kvant-3bit,kvant-2bit --json "$OUT/model-$weights-$depth.json"
    done
  done
}

measure_prompts() {
  local weights length model
  for weights in q4_1 q4_0 f16; do
    model=$(model_of $weights)
    for length in 512 2048; do
      run "$KVANT" bench -m "$model" -t "$THREADS" -d 0 -p $length -n 0 -r 5 --kv bf16,kvant-4bit \
        --against llama.cpp --json "$OUT/prompt-$weights-$length.json"
    done
  done
}

measure_sparse() {
  run "$KVANT" bench -m "$MODEL" -t "$THREADS" -d 4096,8000 -p 0 -n 32 -r 5 --kv turbo3,turbo3-sparse-v \
    --file "${TEXT:?a text of more than 8,100 tokens}" --json "$OUT/sparse-v.json"
}

for part in "$@"; do
  case $part in
    attention) at_shapes attention_at ;;
    onnxruntime) at_shapes onnxruntime_at ;;
    model) measure_model ;;
    prompts) measure_prompts ;;
    sparse) measure_sparse ;;
    *) echo "bench-cpu.sh: no part is called '$part'" >&2 && exit 2 ;;
  esac
done
