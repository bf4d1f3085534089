#!/usr/bin/env bash
# Starts engines side by side, each with a small cache, and prints the lines of each engine that begin with RESULT. All
# engines share one GPU, except for `parallel` and `data-parallel`:
#
#     checks.sh random FOLDER      features, on a random model that is written into FOLDER
#     checks.sh drafts FOLDER      drafts by n-grams, on the model in FOLDER, or on a random one
#     checks.sh model-drafts FOLDER [MODEL]   drafts by models, on random models that are written into FOLDER. The model
#                                  in MODEL also drafts for itself.
#     checks.sh parallel FOLDER    tensor and pipeline parallelism on 2 GPUs, on a random model
#     checks.sh data-parallel FOLDER   a server with two engines on 2 GPUs next to a server with one, on the model in
#                                  FOLDER, or on a random one: "of all tokens" must be equal
#     checks.sh windows FOLDER     layers with a sliding window, on random models
#     checks.sh softcap FOLDER     capped scores, on random models
#     checks.sh hybrid FOLDER      recurrent states next to kvant's pages, on a random model
#     checks.sh offload FOLDER [CONSTANTS]   CPU offload, on the model in FOLDER, or on a random one. CONSTANTS, a file
#                                  of kvant.hf.calibrate, makes kvant_4bit the cache.
#     checks.sh sleep FOLDER       sleep mode, on the model in FOLDER, or on a random one
#     checks.sh model FOLDER NPY [CONSTANTS]   quality, on the model in FOLDER and its prompts, int [at least 8, 2048].
#                                  CONSTANTS, a file of kvant.hf.calibrate for kvant-4bit, adds runs with constants.
#     checks.sh integers FOLDER NPY [VECINFER-4BIT VECINFER-2BIT]   prompts in 8-bit integers, on the model in FOLDER.
#                                  Two files of kvant.hf.calibrate add VecInfer.
#
# `python3` must have vLLM and kvant. Logs are written next to the model. CHECK_SECONDS (400) limits each engine.
set -uo pipefail
limit=${CHECK_SECONDS:-400}
tests=$(cd "$(dirname "$0")" && pwd)
mode=$1 model=$2
mkdir -p "$model"
check() { # program, name, options...
  local program=$1 log=$model/$2.log
  shift 2
  env ${gpu:+CUDA_VISIBLE_DEVICES=$gpu} timeout $limit python3 "$tests/$program" --model "$model" --cache-gib 1 "$@" \
    > "$log" 2>&1 &
}
logits() { check vllm_logits.py "$@"; }
case $mode in
  random)
    python3 "$tests/random_llama.py" "$model" --layers 4
    bf16=$model/bf16.pt four=$model/4bit.pt fast=$model/fast4.pt
    logits bf16 --out "$bf16"
    logits bf16-300 --chunk 300 --against "$bf16"
    logits 4bit --kv kvant_uniform_4bit --out "$four" --against "$bf16"
    for chunk in 128 512 2048; do logits 4bit-$chunk --kv kvant_uniform_4bit --chunk $chunk --against "$four"; done
    logits 4bit-eager --kv kvant_uniform_4bit --eager --against "$four"
    logits 4bit-sync --kv kvant_uniform_4bit --sync --against "$four"
    logits 4bit-preempted --kv kvant_uniform_4bit --blocks 74 --against "$four"
    logits 4bit-single --kv kvant_uniform_4bit --single --against "$four"
    logits fast4 --kv kvant_fast4 --out "$fast" --against "$bf16"
    logits fast4-single --kv kvant_fast4 --single --against "$fast"
    logits recipe --kv kvant --recipe k=hadamard:tcq3,v=hadamard:tcq2,sink=4 --against "$bf16"
    timeout $limit python3 "$tests/serve_client.py" --model "$model" > "$model/serve.log" 2>&1 &
    ;;
  drafts)  # uses the model in the folder if there is one
    [ -e "$model/config.json" ] || python3 "$tests/random_llama.py" "$model" --layers 4
    four=$model/4bit.pt
    logits bf16-drafts --drafts 4
    logits 4bit --kv kvant_uniform_4bit --out "$four"
    for n in 1 4 12; do logits 4bit-drafts-$n --kv kvant_uniform_4bit --drafts $n --against "$four"; done
    logits 4bit-drafts-sync --kv kvant_uniform_4bit --drafts 4 --sync --against "$four"
    logits 4bit-drafts-preempted --kv kvant_uniform_4bit --drafts 4 --blocks 100 --against "$four"
    ;;
  model-drafts)
    python3 "$tests/random_drafters.py" "$model"
    target=(--model "$model/target" --rounds 4) mimo=(--model "$model/mimo" --rounds 4) four=(--kv kvant_uniform_4bit)
    logits bf16 "${target[@]}" --out "$model/bf16.pt"
    logits 4bit "${target[@]}" "${four[@]}" --out "$model/4bit.pt" --against "$model/bf16.pt"
    logits mimo-4bit "${mimo[@]}" "${four[@]}" --out "$model/mimo-4bit.pt"
    for drafter in draft_model:target draft_model:draft_model eagle:eagle eagle3:eagle3; do
      how=(--drafts 4 --drafter "${drafter%:*}:$model/${drafter#*:}") name=by-${drafter#*:}
      logits bf16-$name "${target[@]}" "${how[@]}"
      logits 4bit-$name "${target[@]}" "${four[@]}" "${how[@]}" --against "$model/4bit.pt"
    done
    logits bf16-by-mtp "${mimo[@]}" --drafts 4 --drafter mtp
    logits 4bit-by-mtp "${mimo[@]}" "${four[@]}" --drafts 4 --drafter mtp --against "$model/mimo-4bit.pt"
    # Steps with prompts of some requests and drafts of others.
    logits bf16-preempted "${target[@]}" "${how[@]}" --blocks 300 --against "$model/bf16.pt"
    logits 4bit-preempted "${target[@]}" "${four[@]}" "${how[@]}" --blocks 100 --against "$model/4bit.pt"
    logits 4bit-512 "${target[@]}" "${four[@]}" "${how[@]}" --chunk 512 --against "$model/4bit.pt"
    if [ -n "${3:-}" ]; then
      for kv in auto kvant_uniform_4bit; do
        logits own-$kv --model "$3" --kv $kv --rounds 4 --out "$model/own-$kv.pt"
        logits own-$kv-drafts --model "$3" --kv $kv --rounds 4 --drafts 4 --drafter "draft_model:$3" --against "$model/own-$kv.pt"
      done
    fi
    ;;
  parallel)
    python3 "$tests/random_llama.py" "$model" --layers 4
    bf16=$model/auto.pt
    gpu=0 logits auto --out "$bf16"
    gpu=1 logits auto-512 --chunk 512 --against "$bf16"
    logits auto-2 --tensor-parallel 2 --against "$bf16"
    logits auto-stages --pipeline-parallel 2 --against "$bf16"
    for kv in kvant_uniform_4bit kvant_uniform_2bit; do
      gpu=0 logits $kv --kv $kv --out "$model/$kv.pt" --against "$bf16"
      gpu=1 logits $kv-512 --kv $kv --chunk 512 --against "$model/$kv.pt" "$bf16"
      logits $kv-2 --kv $kv --tensor-parallel 2 --against "$model/$kv.pt" "$bf16"
      logits $kv-stages --kv $kv --pipeline-parallel 2 --against "$model/$kv.pt" "$bf16"
    done
    ;;
  data-parallel)
    [ -e "$model/config.json" ] || python3 "$tests/random_llama.py" "$model" --layers 4
    for n in 1 2; do
      timeout $limit python3 "$tests/serve_client.py" --model "$model" --data-parallel $n > "$model/serve-$n.log" 2>&1 &
    done
    ;;
  windows)
    python3 "$tests/random_llama.py" "$model" --layers 12 --windows 6
    python3 "$tests/random_llama.py" "$model/all" --layers 2 --windows 0
    bf16=$model/bf16.pt four=$model/4bit.pt
    logits bf16 --out "$bf16"
    logits bf16-512 --chunk 512 --against "$bf16"
    logits bf16-single --single --against "$bf16"
    logits 4bit --kv kvant_uniform_4bit --out "$four" --against "$bf16"
    logits 4bit-512 --kv kvant_uniform_4bit --chunk 512 --against "$four" "$bf16"
    logits 4bit-eager --kv kvant_uniform_4bit --eager --against "$four"
    logits 4bit-single --kv kvant_uniform_4bit --single --against "$four"
    { timeout $limit python3 "$tests/vllm_logits.py" --model "$model/all" --kv kvant_uniform_4bit --cache-gib 1 2>&1 |
      sed -n "s/.*NotImplementedError: kvant/RESULT refused: kvant/p" > "$model/all.log"; } &
    ;;
  model)
    bf16=$model/bf16.pt four=$model/4bit.pt short=(--tokens "${3%.npy}-short.npy" --prompts 4)
    python3 -c "import sys, numpy as np; np.save('${3%.npy}-short.npy', np.load('$3')[:4, :1024])"
    long=(--tokens "$3" --prompts 8)
    logits bf16 "${long[@]}" --out "$bf16"
    logits bf16-512 "${long[@]}" --chunk 512 --against "$bf16"
    for kv in uniform_4bit uniform_3bit uniform_2bit fast4; do logits ${kv#uniform_} --kv kvant_$kv "${long[@]}" --against "$bf16"; done
    if [ -n "${4:-}" ]; then
      logits 4bit-constants --kv kvant_uniform_4bit --constants "$4" "${long[@]}" --against "$bf16"
      logits 4bit-calibrated --kv kvant_4bit --constants "$4" "${long[@]}" --against "$bf16"
    fi
    logits 4bit-no-sink --kv kvant --recipe k=hadamard:tcq4,v=hadamard:tcq4 "${long[@]}" --against "$bf16"
    logits fast4-no-sink --kv kvant --recipe k=ch4g128,v=tok4g128 "${long[@]}" --against "$bf16"
    logits short-bf16 "${short[@]}" --out "$model/short.pt"
    logits short-4bit --kv kvant_uniform_4bit "${short[@]}" --out "$four" --against "$model/short.pt"
    logits short-4bit-single --kv kvant_uniform_4bit "${short[@]}" --single --against "$four"
    logits short-4bit-single-bf16 --kv kvant_uniform_4bit "${short[@]}" --single --against "$model/short.pt"
    timeout $limit python3 "$tests/serve_client.py" --model "$model" --chat > "$model/serve.log" 2>&1 &
    ;;
  softcap)
    python3 "$tests/random_llama.py" "$model" --layers 4 --softcap 5
    bf16=$model/bf16.pt four=$model/4bit.pt
    logits bf16 --out "$bf16"
    logits bf16-300 --chunk 300 --against "$bf16"
    logits 4bit --kv kvant_uniform_4bit --out "$four" --against "$bf16"
    logits 4bit-512 --kv kvant_uniform_4bit --chunk 512 --against "$four"
    logits 4bit-single --kv kvant_uniform_4bit --single --against "$four"
    logits fast4 --kv kvant_fast4 --against "$bf16"
    ;;
  hybrid)
    python3 "$tests/random_hybrid.py" "$model"
    bf16=$model/bf16.pt four=$model/4bit.pt nets=(--delta-nets triton)
    logits bf16 "${nets[@]}" --out "$bf16"
    logits bf16-512 "${nets[@]}" --chunk 512 --against "$bf16"
    logits 4bit "${nets[@]}" --kv kvant_uniform_4bit --out "$four" --against "$bf16"
    logits 4bit-512 "${nets[@]}" --kv kvant_uniform_4bit --chunk 512 --against "$four" "$bf16"
    logits 4bit-eager "${nets[@]}" --kv kvant_uniform_4bit --eager --against "$four"
    logits 4bit-single "${nets[@]}" --kv kvant_uniform_4bit --single --against "$four"
    logits 4bit-preempted "${nets[@]}" --kv kvant_uniform_4bit --blocks 60 --against "$four"
    VLLM_KV_CACHE_LAYOUT=LBNHC logits 4bit-apart "${nets[@]}" --kv kvant_uniform_4bit --against "$four"
    ;;
  offload)
    [ -e "$model/config.json" ] || python3 "$tests/random_llama.py" "$model" --layers 4
    rm -rf "$model/turn"
    own=(--kv kvant_uniform_4bit)
    [ -z "${3:-}" ] || own=(--kv kvant_4bit --constants "$3")
    options=(--cache-gib 3 --in-turn "$model/turn" --engines 5)
    check vllm_offload.py bf16 "${options[@]}" --decoded --cache-tokens 80000 --out "$model/bf16.pt"
    check vllm_offload.py bf16-offload "${options[@]}" --decoded --offload-gib 2 --against "$model/bf16.pt"
    check vllm_offload.py 4bit "${own[@]}" "${options[@]}" --decoded --cache-tokens 80000 --out "$model/4bit.pt"
    check vllm_offload.py 4bit-offload "${own[@]}" "${options[@]}" --decoded --offload-gib 2 --against "$model/4bit.pt"
    check vllm_offload.py 4bit-prompts "${own[@]}" "${options[@]}" --offload-gib 2 --against "$model/4bit.pt"
    ;;
  sleep)
    [ -e "$model/config.json" ] || python3 "$tests/random_llama.py" "$model" --layers 4
    rm -rf "$model/turn"
    for kv in auto kvant_uniform_4bit kvant_fast4; do check vllm_sleep.py $kv --kv $kv --in-turn "$model/turn" --engines 3; done
    ;;
  integers)
    bf16=$model/bf16.pt
    long=(--tokens "$3" --prompts 8)
    logits bf16 "${long[@]}" --out "$bf16"
    for kv in uniform-4bit kvant-fast4; do
      name=${kv#*-}
      logits $name --kv kvant --recipe $kv "${long[@]}" --out "$model/$name.pt" --against "$bf16"
      logits $name-300 --kv kvant --recipe $kv --chunk 300 "${long[@]}" --against "$model/$name.pt" "$bf16"
      logits $name-flashq --kv kvant --recipe "$kv,prompt=flashq" "${long[@]}" --against "$bf16" "$model/$name.pt"
    done
    logits 4bit-flashq-512 --kv kvant --recipe uniform-4bit,prompt=flashq --chunk 512 "${long[@]}" --against "$bf16" "$model/4bit.pt"
    logits turboattention --kv kvant_turboattention_4bit "${long[@]}" --against "$bf16"
    if [ -n "${4:-}" ]; then
      logits vecinfer-4 --kv kvant_vecinfer_4bit --constants "$4" "${long[@]}" --out "$model/vecinfer.pt" --against "$bf16"
      logits vecinfer-4-300 --kv kvant_vecinfer_4bit --constants "$4" --chunk 300 "${long[@]}" --against "$model/vecinfer.pt"
      logits vecinfer-4-eager --kv kvant_vecinfer_4bit --constants "$4" --eager "${long[@]}" --against "$model/vecinfer.pt"
      logits vecinfer-2 --kv kvant_vecinfer_2bit --constants "$5" "${long[@]}" --against "$bf16"
      { timeout $limit python3 "$tests/vllm_logits.py" --model "$model" --kv kvant_vecinfer_4bit --cache-gib 1 2>&1 |
        sed -n "s/.*ValueError: kvant/RESULT refused: kvant/p" > "$model/vecinfer-without.log"; } &
    fi
    ;;
  *) echo "checks.sh random|drafts|model-drafts|parallel|data-parallel|windows|softcap|hybrid|offload|sleep FOLDER | checks.sh model|integers FOLDER NPY [CONSTANTS...]" >&2; exit 2 ;;
esac
wait
for log in "$model"/*.log; do
  grep -h "^RESULT" "$log" | sed "s|^RESULT|$(basename "$log" .log)|" || { echo "FAILED $log"; grep -v "^ *$" "$log" | tail -8; }
done
