"""Lets kvant's blocks share vLLM's pool with the recurrent states of a hybrid model (Mamba, gated delta nets).

A recurrent state is much larger than a page of 128 tokens. vLLM gives each kind of layer the same blocks, so a block has
several pages of each of kvant's layers. vLLM's manager hands out whole blocks. vLLM's worker divides them into pages of
128 tokens, and the block tables that kvant's builders get name pages."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import torch

from kvant import PAGE

# vLLM puts as many states into a block as fit, and the states of more layers need more block tables. Each table costs
# time in each step.
MAX_STATE_TABLES = 10
OTHERS = "recurrent states stay as vLLM keeps them"


def pages_of_block(page_bytes: int, n_layers: int, n_states: int, state_bytes: int) -> int:
    """Returns how many pages of each of kvant's n_layers layers a block has that holds all layers."""
    of_block = -(-n_states // MAX_STATE_TABLES) * state_bytes
    return max(1, -(-of_block // (n_layers * page_bytes)))


class HybridPool:
    """Tells vLLM the size of blocks, once all layers of the model exist."""

    def __init__(self, vllm_config, state, is_packed: bool):
        """`state` is the ModelState of kvant's layers. `is_packed` says whether a block holds all layers."""
        self._vllm_config, self._state, self._is_packed = vllm_config, state, is_packed

    def of_token(self, spec):
        """Returns a specification whose page has the bytes that a token seems to take. vLLM asks for a block of one
        token, and chooses the smallest blocks of whole pages in which a recurrent state fits."""
        if spec.block_size != 1:
            return spec
        return replace(spec, dtype=torch.uint8, num_head_slots=1, state_content_bytes=self._token_bytes())

    def _token_bytes(self) -> int:
        page_bytes, sizes = self._state.layout.block_bytes, self._state_sizes()
        if not self._is_packed or not sizes:
            return -(-page_bytes // PAGE)
        n_pages = pages_of_block(page_bytes, len(self._state.layers), len(sizes), max(sizes))
        return -(-max(sizes) // (n_pages * PAGE))

    def _state_sizes(self) -> list[int]:
        """Returns the bytes of the recurrent state of each layer that has one."""
        from vllm.utils.torch_utils import get_dtype_size

        layers = self._vllm_config.compilation_config.static_forward_context.values()
        return [sum(math.prod(shape) * get_dtype_size(dtype) for shape, dtype in zip(layer.get_state_shape(), layer.get_state_dtype()))
                for layer in layers if hasattr(layer, "get_state_shape")]


def pages_of(vllm_config) -> int:
    """Returns how many pages a block has of each of kvant's layers. vLLM has chosen the size of blocks."""
    if not vllm_config.model_config.is_hybrid:
        return 1
    n_pages, rest = divmod(vllm_config.cache_config.block_size, PAGE)
    if rest or not n_pages:
        raise NotImplementedError(f"kvant needs blocks of whole pages of {PAGE} tokens for hybrid models, and vLLM has chosen blocks of "
                                  f"{vllm_config.cache_config.block_size} tokens: leave out --block-size")
    return n_pages


def seal_before_states(state_of) -> None:
    """Makes vLLM's worker seal filled pages before it moves recurrent states. A page's request may have ended, and the
    page's block may be the new place of another request's state. Sealing after the move would destroy that state.
    state_of() returns the ModelState of a configuration, or None."""
    from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState as States

    original = States.preprocess_state
    if getattr(original, "seals", False) is True:
        return

    @functools.wraps(original)
    def preprocess_state(self, *args, **kwargs):
        state = state_of(self.vllm_config)
        if state is not None:
            state.seal_filled()
        return original(self, *args, **kwargs)

    preprocess_state.seals = True
    States.preprocess_state = preprocess_state
