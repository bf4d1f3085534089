"""Implements a cache of transformers that keeps a batch of sequences in low-bit pages."""

from __future__ import annotations

import contextlib
import os
import types
import warnings

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from kvant import PAGE
from kvant.hf.decode_graphs import DecodeGraphs
from kvant.hf.varlen_attention import PieceAttention
from kvant.paged import model_state, step_rules
from kvant.paged.block_layout import SIDES
from kvant.paged.checkpoint import check_fingerprint, of_config
from kvant.paged.constants import TURNS_NEIGHBOURS, ModelShape, read_constants
from kvant.paged.model_cache import formats_of_layers
from kvant.paged.model_state import ModelState, Step
from kvant.paged.recipes import parse_recipe, resolved_line, without_constants
from kvant.paged.sequence_layout import SequenceLayout
from kvant.torch import Layer, Lengths, TorchLibrary
from kvant.torch.library import current

HEAD_SIZES = (64, 128, 256)
MAX_GROUP, MAX_KV_HEADS = 16, 64
# A cache grows by at least SPARE_PAGES pages per sequence, which is room for 1024 tokens, and by at least a share of
# 1 / GROWTH.
SPARE_PAGES = 8
GROWTH = 8


class KvantCache(Cache):
    """Keeps the KV cache of a batch in low-bit pages, for `generate(..., past_key_values=KvantCache(model.config))` of
    a model with attn_implementation="kvant". With another attention, keys and values are dequantized in every step,
    which is slow; a warning says so.

    Padding on the left takes no memory. A cache serves one batch; beam search and crop() (assisted generation) are
    refused."""

    def __init__(self, config, kv: str = "uniform-4bit", *, constants: str | os.PathLike[str] | None = None, max_tokens: int = 0,
                 library: TorchLibrary | None = None):
        """Makes an empty cache for the model with the configuration `config`.

        kv is uniform-4bit, uniform-3bit, uniform-2bit, or another recipe from docs/guide/vllm.md. prompt=flashq in the
        recipe lets prompts attend in INT8. `recipe.name` is the recipe that serves.
        constants is the file that `kvant.hf.calibrate` made for the model; recipes with codebooks or smoothed keys need
        the file. With a file that was made for kvant-4bit or its relatives, these recipes have bits by layer, KV head
        and side. A file of `kvant calibrate` for the model's GGUF file works too.
        max_tokens is the number of tokens per sequence for which memory is allocated at once. With 0, the cache
        allocates memory when it needs memory."""
        if not hasattr(config, "get_text_config"):
            raise TypeError(f"KvantCache takes a model's configuration, model.config, not a {type(config).__name__}")
        if not isinstance(max_tokens, int) or max_tokens < 0:
            raise ValueError(f"max_tokens is {max_tokens!r}; it must be a whole number, 0 or more")
        if getattr(config, "is_encoder_decoder", False):
            raise NotImplementedError("KvantCache does not support models with an encoder")
        self._config = config.get_text_config(decoder=True)
        self.recipe, self._constants = parse_recipe(kv), None
        if constants is None:
            without_constants(self.recipe, "KvantCache(..., constants=FILE)")
        else:
            found = read_constants(constants, self.recipe, shape_of(self._config), serves_by_head=True)
            if found.is_of_gguf:
                warnings.warn(f"kvant: the constants '{constants}' were made from a GGUF file ({found.model}); kvant does not "
                              "check that this checkpoint has the same weights", stacklevel=2)
            else:
                check_fingerprint(of_config(self._config), found.fingerprint, found.model, constants)
            self.recipe, self._constants = found.recipe, found.of_model
        if (line := resolved_line(self.recipe, serves_by_head=True)) is not None:
            warnings.warn(line, stacklevel=2)
        heads, n_layers = _heads_of(self._config), self._config.num_hidden_layers
        self._max_tokens, self._may_change_library = max_tokens, library is None
        self._numbers = heads.n_heads, heads.softmax_scale
        self._take(library or TorchLibrary(device="cuda" if torch.cuda.is_available() else "cpu"), heads)
        super().__init__(layers=[KvantLayer(self) for _ in range(n_layers)])
        self._state.layers = self.layers
        self._forget()

    def _take(self, library: TorchLibrary, heads: types.SimpleNamespace) -> None:
        """Takes the library for the model's device, and computes everything about memory that depends on the library.
        """
        for format in sorted(self.recipe.formats):
            if not library.page_bytes(format, heads.head_dim) or not library.can_seal(format):
                raise ValueError(f"kvant has no format {format} for heads of {heads.head_dim} channels (recipe {self.recipe.text})")
        formats = formats_of_layers(self.recipe, heads.n_kv_heads, lambda name: library.page_bytes(name, heads.head_dim))
        n_layers = self._config.num_hidden_layers
        self._block_bytes = [x.block_bytes for x in formats] if len(formats) > 1 else n_layers * [formats[0].block_bytes]
        self.layout = SequenceLayout(heads.n_kv_heads, heads.head_dim, self.recipe.sink, has_rows=library.has_rows)
        self._library = library
        self._new_state()

    def _new_state(self) -> None:
        self._state = ModelState(self.recipe, self.layout, *self._numbers, constants=self._constants)

    def _forget(self) -> None:
        self.n_sequences, self._n_pages = 0, 0
        # All layers are on _device.
        self._device: torch.device | None = None
        # Counts the tokens per sequence after the step, including padding.
        self._n_padded = 0
        self._lens = np.zeros(0, np.int64)
        # Holds the lengths after the step: int32 [batch].
        self._seq_lens: torch.Tensor | None = None
        self._step: Step | None = None
        self._attention: PieceAttention | None = None
        # Holds the graphs that were captured for the current blocks.
        self._graphs_here: DecodeGraphs | None = None
        # Holds the graphs if they run the current step.
        self._graphs: DecodeGraphs | None = None
        # Holds the rows among the step's [batch * new] that are not padding, as int64. None means all rows.
        self._rows: torch.Tensor | None = None
        for layer in self.layers:
            layer.kv_cache, layer.n_padded = torch.empty(0, dtype=torch.uint8), 0

    @property
    def lengths(self) -> list[int]:
        """Returns the number of tokens of each sequence."""
        return self._lens.tolist()

    @property
    def kernel(self) -> str | None:
        """Returns the name of the decode kernel, such as cuda/sm90/tcq4+tcq4, or None before the first step."""
        return self._state.cache.kernel if self._state.cache else None

    @property
    def bytes(self) -> int:
        """Returns the bytes that are currently allocated for all layers."""
        return sum(layer.kv_cache.numel() for layer in self.layers)

    def planned_bytes(self, n_sequences: int, n_tokens: int) -> int:
        """Returns the bytes of n_sequences sequences of n_tokens each in all layers, including the newest, unquantized
        tokens."""
        before_blocks = self.layout.of_sequences(n_sequences).sealed_begin * len(self.layers)
        return before_blocks + n_sequences * -(-n_tokens // PAGE) * sum(self._block_bytes)

    @property
    def uses_kvant_attention(self) -> bool:
        return self._config._attn_implementation == "kvant"

    def on(self, device: torch.device) -> contextlib.AbstractContextManager:
        """Makes the device of a layer's rows the current one for calls of the library."""
        if device != self._device:
            if self._device is not None:
                raise NotImplementedError(f"KvantCache keeps all layers on one GPU, but this model has some on {self._device} and some on "
                                          f"{device}: device_map=\"{self._device}\" in from_pretrained")
            if not self._library.serves(device) and self._may_change_library and device.type in ("cuda", "cpu"):
                self._take(TorchLibrary(device=device.type), _heads_of(self._config))
                self._state.layers = self.layers
            if not self._library.serves(device):
                raise ValueError(f"KvantCache is for NVIDIA GPUs and CPUs, its library is for {self._library.device_type}, but the model is on "
                                 f"{device}: model.to(\"{self._library.device_type}\")")
            self._device = device
        return current(device)

    def attend(self, layer: KvantLayer, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
               mask: torch.Tensor | None, softmax_scale: float) -> torch.Tensor:
        """Adds new tokens to a layer, and attends.

        q: [batch, n_heads, n, head_dim]. keys, values: [batch, n_kv_heads, n, head_dim]. mask: [batch, all tokens so
        far] with 0 for padding, or None. Returns [batch, n, n_heads, head_dim] of q's type.

        Prompts attend in BF16. Single tokens pass their queries in F32, because rotating F32 queries rounds nothing."""
        if softmax_scale != self._state.softmax_scale:
            raise NotImplementedError(f"kvant: the model scales scores by {softmax_scale}, not by {self._state.softmax_scale}")
        n_sequences, n_heads, n_new, head_dim = q.shape
        self._check_heads(keys, n_heads)
        step = self._step_of(layer, n_sequences, n_new, mask, q.device)
        rows = [x.transpose(1, 2).reshape(n_sequences * n_new, -1, head_dim) for x in (q, keys, values)]
        if self._graphs is not None:
            return self._graphs.attend(layer.kv_cache, *rows).view(n_sequences, n_new, n_heads, head_dim)
        rows = [x.to(torch.float32 if n_new == 1 else torch.bfloat16) for x in rows]
        if self._rows is not None:
            rows = [x[self._rows] for x in rows]
        out = torch.empty_like(rows[0])
        model_state.attend(step, layer.kv_cache, *rows, out, self._attention)
        if self._rows is not None:
            padded = out.new_zeros(n_sequences * n_new, n_heads, head_dim)
            padded[self._rows] = out
            out = padded
        return out.view(n_sequences, n_new, n_heads, head_dim).to(q.dtype)

    def rows_for_other_attention(self, layer: KvantLayer, keys: torch.Tensor,
                                 values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds new tokens to a layer and returns all keys and values, [batch, n_kv_heads, tokens, head_dim]. Earlier
        tokens are dequantized, and new tokens are returned unchanged."""
        warnings.warn("KvantCache: the model's attention is not \"kvant\": keys and values are dequantized in every step, which "
                      "is slow and takes memory (attn_implementation=\"kvant\")", stacklevel=4)
        self._check_heads(keys, self._state.n_heads)
        n_sequences, n_kv_heads, n_new, head_dim = keys.shape
        before = layer.n_padded - n_new
        step = self._step_of(layer, n_sequences, n_new, None, keys.device)
        all_rows = torch.empty(SIDES, n_sequences, -(-max(before, 1) // PAGE) * PAGE + n_new, n_kv_heads, head_dim,
                               dtype=torch.bfloat16, device=keys.device)
        if before:
            self._dequantize(layer, before, all_rows[:, :, :-n_new])
        for side, new in enumerate((keys, values)):
            all_rows[side, :, before:before + n_new] = new.transpose(1, 2)
        model_state.append(step, layer.kv_cache, *(x.transpose(1, 2).flatten(0, 1).bfloat16() for x in (keys, values)))
        return tuple(x[:, :before + n_new].transpose(1, 2).to(keys.dtype) for x in all_rows)

    def _check_heads(self, keys: torch.Tensor, n_heads: int) -> None:
        found, mine = (n_heads, keys.shape[1], keys.shape[3]), (self._state.n_heads, self.layout.n_kv_heads, self.layout.head_dim)
        if found != mine:
            raise ValueError("KvantCache was made for {} query heads and {} KV heads of {} channels, and this model has {} and {} of {}: "
                             "KvantCache(model.config) of the model that runs".format(*mine, *found))

    def _dequantize(self, layer: KvantLayer, n_tokens: int, rows: torch.Tensor) -> None:
        """Dequantizes the first n_tokens of all sequences, as they were before the step. rows: BF16 [2, batch, tokens
        of whole pages, n_kv_heads, head_dim]."""
        cache, blocks, n = self._state.cache, layer.kv_cache, self.n_sequences
        sealed = torch.full((n,), n_tokens // PAGE, dtype=torch.int32, device=rows.device)
        tail = torch.full_like(sealed, n_tokens % PAGE)
        lengths, sink = Lengths(sealed_pages=sealed, tail_tokens=tail), {}
        if n_tokens >= PAGE and self.layout.sink_tokens:
            ids = cache.sink_ids(self._block_table[:, 0])
            sink = dict(sink=self.layout.sink_tokens, protected_pages=cache.sink_pages(ids, blocks))
        described = Layer(sealed=cache.sealed_pages(self._block_table, blocks),
                          tail=cache.tail_pages(cache.tail_ids(self._tail_table), blocks), **cache.of_sealed(blocks), **sink)
        cache.library.dequantize(cache.shape(n, blocks=blocks), lengths, described, 0, rows.shape[2] // PAGE, *rows)
        for keys, values in zip(*rows[:, :, :n_tokens]):
            cache.keys_back(keys, blocks)
            cache.rotate_back(values)

    def _step_of(self, layer: KvantLayer, n_sequences: int, n_new: int, mask: torch.Tensor | None,
                 device: torch.device) -> Step:
        """Returns the step that a layer takes part in. The first layer begins it."""
        if layer.n_padded > self._n_padded:
            self._begin(n_sequences, n_new, mask, device)
        return self._step

    def _begin(self, n_sequences: int, n_new: int, mask: torch.Tensor | None, device: torch.device) -> None:
        if not self.n_sequences:
            self.n_sequences, self._lens = n_sequences, np.zeros(n_sequences, np.int64)
            self._state.layout = self.layout = self.layout.of_sequences(n_sequences)
            self._state.start(self._library, n_sequences, self._max_tokens, device)
        elif n_sequences != self.n_sequences:
            raise ValueError(f"KvantCache holds a batch of {self.n_sequences} sequences, not of {n_sequences}: make a new one")
        counts = np.full(n_sequences, n_new)
        self._rows = None
        if mask is not None and n_new > 1:
            if mask.dim() != 2:
                raise NotImplementedError(f"KvantCache takes masks of padding, [batch, tokens], not one of {mask.dim()} dimensions")
            new = mask[:, -n_new:].bool()
            counts = new.sum(1).cpu().numpy()
            if counts.min() == 0 or not bool((new.int().diff(dim=1) >= 0).all()) or (self._n_padded and counts.min() < n_new):
                raise NotImplementedError("KvantCache takes padding at the left of prompts alone: padding_side=\"left\"")
            self._rows = new.flatten().nonzero()[:, 0]
        self._lens = self._lens + counts
        self._n_padded += n_new
        self._make_room(int(self._lens.max()), device)
        if n_new == 1 and self._seq_lens is not None:
            self._seq_lens += 1
        elif self._seq_lens is None:
            self._seq_lens = torch.tensor(self._lens, dtype=torch.int32, device=device)
        else:
            self._seq_lens.copy_(torch.from_numpy(self._lens))
        common = dict(num_reqs=n_sequences, num_actual_tokens=int(counts.sum()),
                      query_start_loc_cpu=torch.from_numpy(np.concatenate(([0], np.cumsum(counts)))), seq_lens=self._seq_lens,
                      seq_lens_cpu_upper_bound=torch.from_numpy(self._lens))
        for kind, table in (("sealed", self._block_table), ("tail", self._tail_table)):
            self._step = self._state.add(kind, types.SimpleNamespace(block_table_tensor=table, **common))
        if self._step.prefill is not None and not self.recipe.has_integer_prompts:
            self._attention = PieceAttention(self._step.prefill.plan, device)
        self._graphs = None
        if n_new == 1 and device.type == "cuda" and self.uses_kvant_attention:
            if self._graphs_here is None:
                self._graphs_here = DecodeGraphs(self._state.cache, self._seq_lens, self._block_table, self._tail_table)
            self._graphs = self._graphs_here
            self._graphs.begin()

    def _make_room(self, n_tokens: int, device: torch.device) -> None:
        """Makes room for n_tokens tokens per sequence. Page p of sequence s lies in block p * n_sequences + s, so
        blocks keep their place when the cache grows."""
        n_pages = -(-n_tokens // PAGE)
        if n_pages <= self._n_pages:
            return
        wanted = -(-self._max_tokens // PAGE)
        if wanted < n_pages:
            wanted = n_pages + max(SPARE_PAGES, n_pages // GROWTH)
        n = self.n_sequences
        for layer, block_bytes in zip(self.layers, self._block_bytes):
            grown = torch.empty(self.layout.sealed_begin + wanted * n * block_bytes, dtype=torch.uint8, device=device)
            grown[:len(layer.kv_cache)] = layer.kv_cache
            layer.kv_cache = grown
        self._block_table = torch.arange(wanted * n, dtype=torch.int32, device=device).view(-1, n).t().contiguous()
        self._tail_table = torch.arange(n, dtype=torch.int32, device=device)[:, None].contiguous()
        self._n_pages, self._graphs_here = wanted, None

    def reset(self) -> None:
        self._new_state()
        self._state.layers = self.layers
        self._forget()

    def crop(self, *args, **kwargs):
        raise NotImplementedError("KvantCache cannot be cropped: assisted generation is not supported")

    def batch_repeat_interleave(self, *args, **kwargs):
        raise NotImplementedError("KvantCache holds one batch: repeat the prompt for each completion that you want")

    batch_select_indices = batch_repeat_interleave

    def __deepcopy__(self, memo):
        raise NotImplementedError("KvantCache cannot be copied: make a new one and give the prompt again")


class KvantLayer(CacheLayerMixin):
    """Holds one layer's memory as uint8; SequenceLayout describes its parts."""

    is_sliding = False

    def __init__(self, cache: KvantCache):
        super().__init__()
        self._cache = cache
        self.kv_cache = torch.empty(0, dtype=torch.uint8)
        # Counts the tokens per sequence, including padding.
        self.n_padded = 0
        self.is_initialized = True

    def lazy_initialization(self, key_states, value_states) -> None:
        pass

    def update(self, key_states, value_states, *args, **kwargs):
        self.n_padded += key_states.shape[-2]
        if not self._cache.uses_kvant_attention:
            with self._cache.on(key_states.device):
                return self._cache.rows_for_other_attention(self, key_states, value_states)
        # transformers calls the attention function next, which finds the cache through `kvant_layer`.
        key_states.kvant_layer = self
        return key_states, value_states

    def attend(self, q, keys, values, mask, softmax_scale) -> torch.Tensor:
        """Calls KvantCache.attend for this layer."""
        with self._cache.on(q.device):
            return self._cache.attend(self, q, keys, values, mask, softmax_scale)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.n_padded + query_length, 0

    def get_seq_length(self) -> int:
        return self.n_padded

    def get_max_length(self) -> int:
        return -1

    def offload(self) -> None:
        raise NotImplementedError("KvantCache stays on the GPU")

    def reorder_cache(self, beam_idx) -> None:
        raise NotImplementedError("KvantCache does not support beams: num_beams=1")


def shape_of(config) -> ModelShape:
    """Reads a text model's configuration. Raises NotImplementedError if KvantCache does not support the model."""
    heads = _heads_of(config)
    return ModelShape(config.num_hidden_layers, heads.n_heads, heads.n_kv_heads, heads.head_dim, heads.softmax_scale,
                      config.max_position_embeddings, config.vocab_size, config.model_type in TURNS_NEIGHBOURS)


def _heads_of(config) -> types.SimpleNamespace:
    if not getattr(config, "num_attention_heads", None):
        raise NotImplementedError(f"KvantCache does not support models without attention heads ({type(config).__name__})")
    n_heads = config.num_attention_heads
    n_kv_heads = getattr(config, "num_key_value_heads", None) or n_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // n_heads
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    refusals = {
        f"layers of the kinds {', '.join(sorted(kinds))}": kinds != {"full_attention"},
        "layers with a sliding window": bool(getattr(config, "sliding_window", None)) and getattr(config, "use_sliding_window", True)
        and "full_attention" not in (getattr(config, "layer_types", None) or ()),
        "soft-capped scores": bool(getattr(config, "attn_logit_softcapping", None)),
        f"heads of {head_dim} channels (it has kernels for {', '.join(map(str, HEAD_SIZES))})": head_dim not in HEAD_SIZES,
        f"more than {MAX_GROUP} query heads per KV head": n_heads > MAX_GROUP * n_kv_heads,
        f"more than {MAX_KV_HEADS} KV heads": n_kv_heads > MAX_KV_HEADS}
    for what, is_asked in refusals.items():
        if is_asked:
            raise NotImplementedError(f"KvantCache does not support {what}")
    scale = getattr(config, "query_pre_attn_scalar", None) or head_dim
    return types.SimpleNamespace(n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, softmax_scale=scale ** -0.5)
