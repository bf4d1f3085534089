#!/usr/bin/env bash
# bench-cpu.sh OUT [PART]...: measures the CPU speeds in the docs, and writes one JSON file per run into the folder OUT.
#
# The parts are: attention (four KV shapes, product recipes, ggml); onnxruntime (the same shapes; needs pip's
# onnxruntime and onnx in PYTHON); model (decode of MODELS at several depths, and llama.cpp); prompts (the same models);
# sparse (Sparse V on the text TEXT). Without a PART all parts run.
#
# Variables: THREADS (2), KVANT (build/default/kvant), MODELS (files, separated by spaces; the default model), TEXT (a
# text of data/calibration), PYTHON (python3), RUN (a command that starts each measurement, such as one that waits for a
# quiet machine).
set -euo pipefail
cd "$(dirname "$0")/.."

readonly OUT=${1:?usage: bench-cpu.sh OUT [attention|onnxruntime|model|prompts|sparse]...}
shift
[ $# -gt 0 ] || set -- attention onnxruntime model prompts sparse
readonly THREADS=${THREADS:-2} KVANT=${KVANT:-build/default/kvant} PYTHON=${PYTHON:-python3}
read -ra MODELS <<< "${MODELS:-.venv/smollm2-135m-instruct.gguf}"
mkdir -p "$OUT"

# The caches of each group of recipes fit into memory together.
readonly GROUPS_OF_RECIPES=(
  "bf16,f16,fp8,q8_0,q8_0/q4_0,q4_0,q4_0-h,uniform-4bit,uniform-3bit,uniform-2bit"
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
  "$1" 32 8 128 32768
  "$1" 12 2 128 32768
  "$1" 9 3 64 16384
  "$1" 4 1 256 8192
}

measure_models() {  # NAME OPTIONS...: measures all models, and llama.cpp on them
  local file name=$1
  shift
  for file in "${MODELS[@]}"; do
    run "$KVANT" bench -m "$file" -t "$THREADS" "$@" -r 3 --kv bf16,uniform-4bit,uniform-2bit --against llama.cpp \
      --json "$OUT/$name-$(basename "$file" .gguf)-$THREADS.json"
  done
}

# Tokens without a context are short, so a run at depth 0 has more of them.
measure_decode() {
  local depth
  measure_models model-0 -d 0 -p 0 -n 48
  for depth in 4096 16384 30000; do measure_models "model-$depth" -d $depth -p 0 -n 16; done
}

measure_prompts() {
  local length
  for length in 512 2048 8192; do measure_models "prompt-$length" -d 0 -p $length -n 0; done
}

measure_sparse() {
  run "$KVANT" bench -m "${MODELS[0]}" -t "$THREADS" -d 4096,8000 -p 0 -n 32 -r 5 --kv turbo3,turbo3-sparse-v \
    --file "${TEXT:?a text of more than 8,100 tokens}" --json "$OUT/sparse-v.json"
}

for part in "$@"; do
  case $part in
    attention) at_shapes attention_at ;;
    onnxruntime) at_shapes onnxruntime_at ;;
    model) measure_decode ;;
    prompts) measure_prompts ;;
    sparse) measure_sparse ;;
    *) echo "bench-cpu.sh: no part is called '$part'" >&2 && exit 2 ;;
  esac
done
