#!/usr/bin/env python3
"""Compares kvant.hf with transformers' own caches on a GPU, and prints a line of JSON for each measurement:

    hf_cache.py divergence FOLDER PROMPTS     KvantCache against an unquantized one: PROMPTS.npy, int [n, length], or a text
    hf_cache.py generation SHAPE|FOLDER       tokens per second, memory and the time of a prompt

SHAPE is llama-8b or smollm2, with random weights. `divergence` runs the model in F32, so only the cache differs. The
script prints the mean KL divergence over the second half of each prompt. That half is read at once and token by token
(--steps); the reference is transformers' own cache with the prompt read at once. With --dtype bfloat16, the cache named
bf16, which is transformers' own with equal steps, shows the effect of rounding alone. transformers' quantized caches
leave new tokens unquantized until the next step, so comparisons use --steps 128, a page of kvant.

RECIPE+constants uses what kvant.hf.calibrate learns about the model from the text that ships with kvant. RECIPE+FILE
uses a file of constants. A text is cut into --contexts prompts of --length tokens from its beginning, as in kvant eval.
The tokenizer of a text comes from --tokenizer, a GGUF file, or from the model's folder."""

import argparse
import functools
import json
import pathlib
import time
import warnings

import numpy as np
import torch
import transformers

from kvant import PAGE
from kvant.hf import KvantCache, calibrate

SHAPES = {"llama-8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                           num_key_value_heads=8, head_dim=128, vocab_size=128256),
          "smollm2": dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                          num_key_value_heads=3, head_dim=64, vocab_size=49152, tie_word_embeddings=True)}
OURS = ("uniform-4bit", "uniform-2bit", "kvant-fast4")
CONSTANTS = "+constants"


def say(**what):
    print(json.dumps(what), flush=True)


def is_ours(name):
    return name.startswith(("kvant-", "uniform-")) or "=" in name


def new_cache(model, name, **options):
    if name in ("quanto", "hqq"):
        more = dict(axis_key=0, axis_value=0) if name == "quanto" else dict(axis_key=1, axis_value=1)
        return transformers.QuantizedCache(backend=name, config=model.config, nbits=4, q_group_size=64,
                                           residual_length=128, **more)
    recipe, plus, constants = name.partition("+/") if "+/" in name else name.partition(CONSTANTS)
    if plus:
        options["constants"] = constants_of(model, name) if plus == CONSTANTS else "/" + constants
    return transformers.DynamicCache(config=model.config) if name == "bf16" else KvantCache(model.config, recipe, **options)


@functools.cache
def constants_of(model, name):
    start = time.perf_counter()
    path = calibrate(model, transformers.AutoTokenizer.from_pretrained(model.config._name_or_path), name.removesuffix(CONSTANTS))
    say(constants=str(path), seconds=round(time.perf_counter() - start, 1), peak_MiB=round(torch.cuda.max_memory_allocated() / 2**20))
    return path


def use_attention(model, name):
    model.set_attn_implementation("kvant" if is_ours(name) else "sdpa")


@torch.no_grad()
def last_layer(model, tokens, name, step):
    """Returns what the last layer gives for the second half of each prompt except the last token: F32 [batch, length /
    2 - 1, hidden]. `step` tokens of the second half are read at a time."""
    use_attention(model, name)
    cache, half = new_cache(model, name), tokens.shape[1] // 2
    hidden = [model.model(tokens[:, :half], past_key_values=cache).last_hidden_state[:, :0]]
    for first in range(half, tokens.shape[1] - 1, step):
        end = min(first + step, tokens.shape[1] - 1)
        hidden.append(model.model(tokens[:, first:end], past_key_values=cache).last_hidden_state)
    return torch.cat(hidden, 1)


def prompts_of(options):
    """Returns the prompts, int64 [n, length]."""
    if options.prompts.endswith(".npy"):
        return torch.from_numpy(np.load(options.prompts)).long()
    text = pathlib.Path(options.prompts).read_bytes().decode()  # as kvant eval reads it, with its line ends
    if options.tokenizer:
        import kvant

        tokens = kvant.Model(options.tokenizer, "bf16", context=256).tokenizer.encode(text).tolist()
    else:
        tokens = transformers.AutoTokenizer.from_pretrained(options.model)(text)["input_ids"]
    n = min(options.contexts, len(tokens) // options.length)
    return torch.tensor(tokens[:n * options.length]).view(n, -1)


def bits_of(cache):
    """Returns the mean bits per value of sealed pages."""
    layout = cache.layout
    longer = cache.planned_bytes(1, 2 * PAGE) - cache.planned_bytes(1, PAGE)
    return 8 * longer / (len(cache.layers) * 2 * layout.n_kv_heads * layout.head_dim * PAGE)


@torch.no_grad()
def divergence(options):
    torch.backends.cuda.matmul.allow_tf32 = False
    dtype = getattr(torch, options.dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype).to(options.device).eval()
    tokens = prompts_of(options).to(options.device)
    batches = tokens.split(options.batch)
    reference = [last_layer(model, batch, "bf16", tokens.shape[1]) for batch in batches]
    # The weight is F32, because logits in BF16 would differ by more than caches do.
    weights = model.lm_head.weight.float()
    for step in options.steps:
        for name in options.kv:
            means, same, worst, start = [], [], [], time.perf_counter()
            for batch, base in zip(batches, reference):
                found = last_layer(model, batch, name, step)
                for rows, base_rows in zip(found, base):
                    p, q = ((x.float() @ weights.t()).log_softmax(-1) for x in (base_rows, rows))
                    kld = (p.exp() * (p - q)).sum(-1)
                    means.append(kld.mean().item())
                    worst.append(kld.quantile(0.999).item())
                    same.append((p.argmax(-1) == q.argmax(-1)).float().mean().item())
            served = new_cache(model, name) if is_ours(name) else None
            say(cache=name, serves=served and served.recipe.name, bits=served and round(bits_of(served), 3), dtype=options.dtype, step=step,
                prompts=len(means), kld=float(np.mean(means)), standard_error=float(np.std(means, ddof=1) / len(means) ** 0.5),
                kld_999=float(np.mean(worst)), same_top=float(np.mean(same)), seconds=round(time.perf_counter() - start, 1))


class Clock(transformers.StoppingCriteria):
    """Records the time of each token."""

    def __init__(self):
        self.times = []

    def __call__(self, *args, **kwargs):
        torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        return torch.zeros(args[0].shape[0], dtype=torch.bool, device=args[0].device)


@torch.no_grad()
def fill(model, cache, batch, n_tokens):
    """Fills all layers with random keys and values of n_tokens tokens."""
    config, rng = model.config, torch.Generator("cuda").manual_seed(1)
    shape = (batch, config.num_key_value_heads, n_tokens, config.head_dim)
    # With attention "sdpa", update() stores rows without queries.
    model.set_attn_implementation("sdpa")
    for layer in range(config.num_hidden_layers):
        cache.update(torch.randn(shape, dtype=torch.bfloat16, device="cuda", generator=rng),
                     torch.randn(shape, dtype=torch.bfloat16, device="cuda", generator=rng), layer)


@torch.no_grad()
def generate(model, name, batch, n_tokens, n_new, is_filled):
    """Generates tokens and measures time and memory. With is_filled, the context consists of random keys and values,
    which take no time; otherwise the model reads random tokens."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    options = {"max_tokens": n_tokens + n_new} if is_ours(name) else {}
    cache = new_cache(model, name, **options)
    if is_filled:
        fill(model, cache, batch, n_tokens - 1)
    use_attention(model, name)
    tokens = torch.randint(3, 1000, (batch, n_tokens), device="cuda")
    clock, start = Clock(), time.perf_counter()
    model.generate(tokens, attention_mask=torch.ones_like(tokens), past_key_values=cache, max_new_tokens=n_new,
                   min_new_tokens=n_new, do_sample=False, stopping_criteria=[clock], pad_token_id=0)
    step = float(np.median(np.diff(clock.times)))
    held = torch.cuda.memory_allocated() - before
    planned = cache.planned_bytes(batch, n_tokens + n_new) if is_ours(name) else None
    say(cache=name, batch=batch, tokens=n_tokens, is_filled=is_filled, first_token_s=round(clock.times[0] - start, 3),
        ms_a_step=round(1000 * step, 3), tokens_a_s=round(batch / step, 1), held_MiB=round(held / 2**20),
        planned_MiB=planned and round(planned / 2**20, 1), cache_MiB=planned and round(cache.bytes / 2**20, 1),
        kernel=cache.kernel if is_ours(name) else None)


def generation(options):
    if options.model in SHAPES:
        config = transformers.LlamaConfig(**SHAPES[options.model], max_position_embeddings=1 << 17, eos_token_id=None)
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(config).bfloat16()
        model = model.to_empty(device="cuda")
        for weights in model.parameters():
            weights.data.normal_(std=0.02)
        model.model.rotary_emb = type(model.model.rotary_emb)(config=config, device="cuda")
        model.tie_weights()
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).cuda()
    model.eval()
    for batch in options.batches:
        for name in ("bf16", *options.kv):
            try:
                generate(model, name, batch, options.tokens, 4 if name in ("quanto", "hqq") else options.new, is_filled=True)
            except Exception as error:
                say(cache=name, batch=batch, error=f"{type(error).__name__}: {error}"[:300])
    for name in ("bf16", *options.prompts):
        generate(model, name, 1, options.tokens, 8, is_filled=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    compared = commands.add_parser("divergence")
    compared.add_argument("model")
    compared.add_argument("prompts")
    compared.add_argument("--kv", nargs="+", default=["uniform-4bit", "uniform-2bit"])
    compared.add_argument("--batch", type=int, default=8)
    compared.add_argument("--steps", nargs="+", type=int, default=[1 << 20, 1], help="tokens that are read at a time")
    compared.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the model")
    compared.add_argument("--contexts", type=int, default=8)
    compared.add_argument("--length", type=int, default=2048)
    compared.add_argument("--tokenizer", default="", help="a GGUF file with the model's tokenizer")
    compared.add_argument("--device", default="cuda", help="cpu: for transformers' own caches alone")
    timed = commands.add_parser("generation")
    timed.add_argument("model")
    timed.add_argument("--kv", nargs="+", default=list(OURS))
    timed.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    timed.add_argument("--tokens", type=int, default=32768)
    timed.add_argument("--new", type=int, default=48)
    timed.add_argument("--prompts", nargs="*", default=["uniform-4bit"], help="caches whose time for a prompt is measured")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="KvantCache: the model's attention")
    {"divergence": divergence, "generation": generation}[options.command](options)


if __name__ == "__main__":
    main()
