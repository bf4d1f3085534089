"""Writes the lines about the cache that users read when the server starts."""

from __future__ import annotations

from kvant import PAGE
from kvant.paged.model_cache import ModelCache


def start_up_line(cache: ModelCache, n_layers: int, n_blocks: int, max_model_len: int, of_stage: str = "") -> str:
    """Returns the line for a model whose layers all use the cache. n_blocks is the number of the pool's blocks for all
    layers. of_stage names the stage of pipeline parallelism that has the layers."""
    layout = cache.layout
    tokens, bf16 = layout.tokens_that_fit(n_blocks, max_model_len), layout.bf16_tokens_that_fit(n_blocks)
    return (f"{_line(cache, f'all {n_layers} layers{of_stage}', n_layers)}; {tokens:,} tokens fit in requests of {max_model_len:,}, "
            f"{tokens / bf16:.2f} times as many as in BF16")


def line_next_to_others(cache: ModelCache, n_layers: int, others: str, of_stage: str = "") -> str:
    """Returns the line for a model in which n_layers layers use kvant's cache and other layers do not. `others` says how
    the other layers are stored."""
    return f"{_line(cache, f'{n_layers} layers{of_stage}', n_layers)}; {others}"


def _line(cache: ModelCache, where: str, n_layers: int) -> str:
    layout = cache.layout
    sealed, unquantized = n_layers * layout.block_bytes, n_layers * layout.bf16_block_bytes
    prompts = ", prompts in 8-bit integers" if cache.recipe.has_integer_prompts else ""
    return (f"kvant: {cache.recipe.name} ({cache.recipe.text}), {cache.kernel} in {where}{prompts}; "
            f"{sealed / PAGE:,.0f} bytes per token instead of {unquantized / PAGE:,.0f} in BF16, and "
            f"{layout.own_blocks * sealed / 1e6:.1f} MB per request for its newest tokens"
            f"{' and its sink' if layout.has_sink_block else ''}")
