"""Starts vLLM for the checks in this folder: on token ids, without a tokenizer or the network."""

import contextlib
import fcntl
import os
import pathlib
import time

os.environ.update(VLLM_USE_FLASHINFER_SAMPLER="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
                  VLLM_HOST_IP="127.0.0.1", GLOO_SOCKET_IFNAME="lo", VLLM_ALLREDUCE_USE_SYMM_MEM="0")

# Workers find worker_extension in this folder.
os.environ["PYTHONPATH"] = os.pathsep.join([str(pathlib.Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])

# vLLM chooses the backend of its other cache types itself.
BACKENDS = {"auto": "FLASH_ATTN", "fp8": "FLASH_ATTN"}


def add_arguments(parser):
    parser.add_argument("--model", required=True, help="a folder with config.json")
    parser.add_argument("--kv", default="auto", help="--kv-cache-dtype: auto, fp8, kvant_uniform_4bit, ...")
    parser.add_argument("--recipe", help="with --kv kvant: k=...,v=...,sink=...")
    parser.add_argument("--constants", metavar="FILE", help="of kvant.hf.calibrate")
    parser.add_argument("--chunk", type=int, default=8192, help="the most tokens of a step")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"), help="of weights and activations")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--max-seqs", type=int, default=16)
    parser.add_argument("--cache-gib", type=float, help="of KV cache; as much as there is, if not given")
    parser.add_argument("--blocks", type=int, help="of KV cache, instead of as many as fit")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs of a stage")
    parser.add_argument("--pipeline-parallel", type=int, default=1, help="stages of pipeline parallelism")
    parser.add_argument("--custom-all-reduce", action="store_true", help="vLLM's own kernels for sums over GPUs, not NCCL's")
    parser.add_argument("--sync", action="store_true", help="no asynchronous scheduling")
    parser.add_argument("--drafts", type=int, default=0, help="tokens that are guessed, by n-grams if there is no --drafter")
    parser.add_argument("--drafter", metavar="METHOD[:FOLDER]", help="draft_model, eagle or eagle3 in FOLDER, or mtp")
    parser.add_argument("--delta-nets", metavar="BACKEND", help="prefill of gated delta nets: triton needs no FlashInfer")
    parser.add_argument("--in-turn", metavar="FOLDER", help="wait until --engines of them have started; one measures at a time")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--dummy", action="store_true", help="random weights, which vLLM makes up")


def start(args, max_model_len, **options):
    from vllm import LLM

    options |= dict(enforce_eager=True) if args.eager else dict(compilation_config=dict(
        mode=3 if args.compile else 0, cudagraph_mode="FULL_AND_PIECEWISE" if args.compile else "FULL_DECODE_ONLY",
        cudagraph_capture_sizes=[n * (1 + args.drafts) for n in (1, 2, 4, 8, *range(16, 513, 16)) if n < args.max_seqs] +
        [args.max_seqs * (1 + args.drafts)]))
    if args.cache_gib:
        options |= dict(kv_cache_memory_bytes=int(args.cache_gib * 2**30), gpu_memory_utilization=0.1)
    if args.blocks:
        options["num_gpu_blocks_override"] = args.blocks
    if args.tensor_parallel > 1:
        options |= dict(tensor_parallel_size=args.tensor_parallel,
                        disable_custom_all_reduce=not args.custom_all_reduce)
    if args.pipeline_parallel > 1:
        options["pipeline_parallel_size"] = args.pipeline_parallel
    if args.sync:
        options["async_scheduling"] = False
    if args.drafts:
        method, _, folder = (args.drafter or "ngram").partition(":")
        how = dict(model=folder) if folder else dict(prompt_lookup_min=1, prompt_lookup_max=4) if method == "ngram" else {}
        options["speculative_config"] = dict(method=method, num_speculative_tokens=args.drafts, **how)
    if own := {name: getattr(args, name) for name in ("recipe", "constants") if getattr(args, name)}:
        options["additional_config"] = {"kvant": own}
    if args.delta_nets:
        options["gdn_prefill_backend"] = args.delta_nets
    if args.dummy:
        options["load_format"] = "dummy"
    backend = "CUSTOM" if args.kv.startswith("kvant") else BACKENDS.get(args.kv)
    return LLM(model=args.model, skip_tokenizer_init=True, max_model_len=max_model_len, dtype=args.dtype, seed=0,
               kv_cache_dtype=args.kv, attention_backend=backend, max_num_seqs=args.max_seqs,
               max_num_batched_tokens=args.chunk, worker_extension_cls="worker_extension.Worker", **options)


def sampling(n_tokens, **options):
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=n_tokens, ignore_eos=True, detokenize=False, **options)


def only_new_tokens():
    """Returns the setting by which an output holds only the tokens since the previous output."""
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.DELTA


def prompts(tokens):
    return [dict(prompt_token_ids=list(map(int, ids))) for ids in tokens]


@contextlib.contextmanager
def turn(folder, n_engines):
    """Lets engines that were started side by side measure one after another: no other engine measures inside this
    context. The context begins when all engines have started, or after some minutes if one has not."""
    if folder is None:
        yield
        return
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(os.getpid())).touch()
    end = time.monotonic() + 180
    while len(list(folder.iterdir())) < n_engines and time.monotonic() < end:
        time.sleep(0.2)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
