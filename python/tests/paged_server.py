"""Stands in for vLLM: hands out blocks and runs steps of several requests through the plug-in's own code, on random
queries, keys and values. Also computes the expected attention from the visibility rule alone."""

import re
import types

import cpu_library
import numpy as np
import torch

from kvant import PAGE
from kvant.paged import model_state
from kvant.paged.arena_layout import ArenaLayout
from kvant.paged.block_layout import BlockLayout
from kvant.paged.codebooks import Codebooks, stacked
from kvant.paged.key_scales import smoothing
from kvant.paged.model_cache import formats_of_layers
from kvant.paged.model_constants import ModelConstants
from kvant.paged.recipes import Recipe

N_KV_HEADS, N_HEADS, D, N_LAYERS = 2, 4, 64, 2
SCALE = D ** -0.5
PLAIN = Recipe("plain", "tok4g64", "tok4g64")
ROTATED = Recipe("rotated", "tok4g64", "tok4g64", key_hadamard=True, value_hadamard=True)
SINK = Recipe("sink", "tok4g64", "tok4g64", key_hadamard=True, value_hadamard=True, sink=1)
LONG_SINK = Recipe("long sink", "tok4g64", "tok4g64", sink=4)
SMOOTH_CODEBOOKS = Recipe("smooth, codebooks", "vq-d2b8", "vq-d2b8", key_hadamard=True, sink=4, key_smooth=True)
CODEBOOKS = Recipe("codebooks", "vq-d2b8", "vq-d2b8")
# All formats differ, and the layers' pages differ in size.
BY_HEAD = Recipe("by head", "tok4g64", "tok4g64", key_hadamard=True, value_hadamard=True, sink=4,
                 by_head=((("tok4g64", "tok2g64"), ("ch2g128", "tok8g64")), (("tok6g64", "fp8"), ("tok3g64", "ch4g128"))))


def constants_of(recipe, n_kv_heads=None):
    """Returns random constants for a recipe with codebooks (vq-d2b8 has 256 centroids of 2 channels). The constants
    differ by layer and head."""
    rng, n_kv_heads, books = np.random.default_rng(11), n_kv_heads or N_KV_HEADS, []
    for format in (recipe.key_format, recipe.value_format):
        dim, bits = map(int, re.fullmatch(r"vq-d(\d+)b(\d+)", format).groups())
        books.append(stacked(rng.standard_normal((N_LAYERS, n_kv_heads, dim << bits))))
    roots = rng.uniform(0.5, 2, (N_LAYERS, n_kv_heads, D))
    return ModelConstants(codebooks=Codebooks(*books), key_scales=smoothing(roots) if recipe.key_smooth else None)


class Request:
    def __init__(self, n_tokens, rng, dtype=torch.bfloat16):
        self.q, self.k, self.v = (torch.from_numpy(rng.standard_normal((N_LAYERS, n_tokens, heads, D))).to(dtype)
                                  for heads in (N_HEADS, N_KV_HEADS, N_KV_HEADS))
        self.out = torch.full((N_LAYERS, n_tokens, N_HEADS, D), float("nan"), dtype=dtype)
        self.computed, self.blocks, self.tail = 0, [], []

    def expected(self, layer, recipe, constants=None, softcap=0, sink_logits=None):
        """Returns the expected outputs, float [n_tokens, heads, d]: every token sees earlier pages encoded and its own
        page unquantized. `constants` are ModelConstants or None; sink_logits are [n_heads] or None."""
        # The layers of Server lie in memory in reverse order.
        of_model = N_LAYERS - 1 - layer
        h = cpu_library.hadamard(D)
        n = self.k.shape[1]
        out = np.zeros((n, N_HEADS, D), np.float32)
        for head in range(N_HEADS):
            sides, kv_head = [], head * N_KV_HEADS // N_HEADS
            formats = recipe.by_head[of_model][kv_head] if recipe.by_head else (recipe.key_format, recipe.value_format)
            for side, (x, is_rotated) in enumerate(((self.k, recipe.key_hadamard), (self.v, recipe.value_hadamard))):
                x, book = x[layer, :, kv_head].float().numpy(), None
                roots = constants.key_scales.of_queries[of_model, kv_head].numpy() if side == 0 and recipe.key_smooth else 1
                if constants is not None and constants.codebooks is not None:
                    book = (constants.codebooks.keys, constants.codebooks.values)[side][of_model, kv_head].float().numpy().reshape(-1, 2)
                x = x / roots
                # The tail stores keys in BF16, rotated if the recipe rotates them.
                x = cpu_library.from_bf16(cpu_library.to_bf16(x @ h if is_rotated else x))
                coded = x.copy()
                for page in range(n // PAGE):
                    rows = slice(page * PAGE, (page + 1) * PAGE)
                    coded[rows] = cpu_library.coded(x[rows], formats[side], recipe.sink if page == 0 else 0, book)
                coded[:recipe.sink] = x[:recipe.sink]
                back = h if is_rotated else np.eye(D, dtype=np.float32)
                sides.append((x @ back * roots, coded @ back * roots))
            q = self.q[layer, :, head].float().numpy()
            for border in range(0, n, PAGE):
                rows = np.arange(border, min(border + PAGE, n))
                keys, values = (np.concatenate([coded[:border], plain[rows]]) for plain, coded in sides)
                scores = SCALE * q[rows] @ keys.T
                scores = softcap * np.tanh(scores / softcap) if softcap else scores
                scores[np.arange(len(keys)) > rows[:, None]] = -np.inf
                top = scores.max(1, keepdims=True)
                weights = np.exp(scores - top)
                total = weights.sum(1, keepdims=True) + (0 if sink_logits is None else np.exp(sink_logits[head] - top))
                out[rows, head] = weights @ values / total
        return out


class RankRequest:
    """Shows a request with the heads of one rank of tensor parallelism. If there are fewer KV heads than ranks,
    several ranks have one head in common."""

    def __init__(self, request, rank, n_ranks, n_found=0):
        """`request` has all heads. n_found is the number of tokens whose pages another request already has."""
        n_heads, n_kv_heads = request.q.shape[2], request.k.shape[2]
        heads = slice(rank * n_heads // n_ranks, (rank + 1) * n_heads // n_ranks)
        first = rank * n_kv_heads // n_ranks
        kv_heads = slice(first, first + max(1, n_kv_heads // n_ranks))
        self.q, self.k, self.v = request.q[:, :, heads], request.k[:, :, kv_heads], request.v[:, :, kv_heads]
        self.out = torch.full_like(self.q, float("nan"))
        self.computed, self.n_found, self.blocks, self.tail = n_found, n_found, [], []


def arena_of(layout, n_blocks, device="cpu"):
    """Returns a pool of blocks that hold all layers, with random contents, and the cells of each layer. Cells lie in
    a different order than layers, and the pool has a gap after the cells of each block."""
    n_layers = len(layout.layer_bytes)
    pool = torch.randint(0, 255, (n_blocks, (n_layers + 1) * layout.block_bytes), dtype=torch.uint8).to(device)
    return pool, [pool[:, i * layout.block_bytes:(i + 1) * layout.block_bytes] for i in reversed(range(n_layers))]


class Server:
    """Hands out blocks and builds vLLM's metadata for steps."""

    def __init__(self, recipe, library=None, device="cpu", n_blocks=64, max_drafts=0, max_seqs=8, constants=None,
                 softcap=0.0, sink_logits=None, has_arenas=False, has_sink_block=True):
        """sink_logits: F32 [N_HEADS], equal in all layers, or None. has_arenas says whether a block holds all layers,
        and has_sink_block whether sinks then have a block of their own."""
        library, self.device = library or cpu_library.CpuLibrary(), torch.device(device)
        sizes = [library.page_bytes(format, D) for format in (recipe.key_format, recipe.value_format)]
        common = dict(tail_pages=2 if max_drafts else 1, has_rows=library.has_rows)
        if has_arenas:
            formats = formats_of_layers(recipe, N_KV_HEADS, lambda name: library.page_bytes(name, D))
            layer_bytes = [x.block_bytes for x in formats] * (N_LAYERS // len(formats))
            self.layout = ArenaLayout(N_KV_HEADS, D, tuple(layer_bytes), recipe.sink, **common,
                                      has_sink_block=has_sink_block and recipe.sink > 0)
        else:
            self.layout = BlockLayout(N_KV_HEADS, D, *sizes, recipe.sink, **common)
        self.state = model_state.ModelState(recipe, self.layout, N_HEADS, SCALE, max_drafts, constants, softcap)
        self.sink_logits = sink_logits if sink_logits is None else sink_logits.to(self.device)
        self.rng = np.random.default_rng(3)
        if has_arenas:
            self.pool, blocks = arena_of(self.layout, n_blocks, device)
        else:
            self.pool = torch.randint(0, 255, (N_LAYERS, n_blocks, self.layout.block_bytes), dtype=torch.uint8).to(device)
            blocks = [self.pool[layer] for layer in (1, 0)]
        self.state.layers = [types.SimpleNamespace(kv_cache=x) for x in blocks]
        self.state.start(library, max_seqs, 1024, self.device)
        self.free = list(self.rng.permutation(np.arange(1, n_blocks)))

    def take(self, n):
        return [self.free.pop() for _ in range(n)]

    def share(self, a, request, n_pages):
        """Gives a request the first n_pages pages of `a`, and their sink."""
        request.blocks, request.computed = a.blocks[:n_pages], n_pages * PAGE
        if self.layout.has_sink_block:
            a.tail = a.tail or self.take(self.layout.own_blocks)
            request.tail = a.tail[:1] + self.take(self.layout.tail_blocks)

    def preempt(self, request):
        """Takes a request's blocks back. The next request receives them first."""
        self.free += request.blocks + request.tail
        request.blocks, request.tail, request.computed = [], [], 0

    def step(self, work, padding=0, rejected={}, late=0):
        """Runs a step. `work` lists requests with their numbers of tokens; a decoded request has at most 1 + max_drafts
        tokens, including drafts. `rejected` gives the number of wrong drafts by request. `late` is how much the host
        overestimates the lengths of requests with drafts."""
        most = 1 + self.state.max_drafts
        work = sorted(work, key=lambda item: item[1] > most)
        for request, n in work:
            request.tail = request.tail or self.take(self.tail_blocks or self.layout.own_blocks)
            request.blocks += self.take(-(-(request.computed + n) // self.block_tokens) - len(request.blocks))
        counts = [n for _, n in work] + [0] * padding
        lens = [request.computed + n for request, n in work] + [0] * padding
        bounds = [length + late * (0 < n <= most) for length, n in zip(lens, counts)]
        begins = torch.tensor(np.concatenate(([0], np.cumsum(counts))), dtype=torch.int32)
        common = dict(num_reqs=len(counts), num_actual_tokens=sum(counts), query_start_loc_cpu=begins,
                      query_start_loc=begins.to(self.device),
                      seq_lens=torch.tensor(lens, dtype=torch.int32, device=self.device),
                      seq_lens_cpu_upper_bound=torch.tensor(bounds, dtype=torch.int32))
        kinds = {"sealed": [r.blocks for r, _ in work] + [[0]] * padding, "tail": [r.tail for r, _ in work] + [[0]] * padding}
        for kind, blocks in kinds.items():
            step = self.describe(kind, block_table_tensor=self._table(blocks), **common)
        for layer, of_layer in zip((1, 0), self.state.layers):
            q, k, v = (torch.cat([self._rows(getattr(r, name)[layer], r.computed, n, rejected.get(r, 0)) for r, n in work]
                                 + [torch.zeros(padding, *getattr(work[0][0], name).shape[2:], dtype=work[0][0].q.dtype)]).to(self.device)
                       for name in "qkv")
            out = torch.zeros(len(q), N_HEADS, D, dtype=q.dtype, device=self.device)
            self.attend(step, of_layer, q, k, v, out)
            row = 0
            for request, n in work:
                n_right = n - rejected.get(request, 0)
                request.out[layer, request.computed:request.computed + n_right] = out[row:row + n_right].cpu()
                row += n
        for request, n in work:
            request.computed += n - rejected.get(request, 0)

    def describe(self, kind, **metadata):
        return self.state.add(kind, types.SimpleNamespace(**metadata))

    # Prompts use the library's attention.
    attention = None
    block_tokens = PAGE
    # The number of tail blocks of a request, if blocks have several pages.
    tail_blocks: int | None = None

    def attend(self, step, layer, q, k, v, out):
        model_state.attend(step, layer.kv_cache, q, k, v, out, self.attention, self.sink_logits)

    def _table(self, rows):
        width = max(map(len, rows))
        return torch.tensor([list(row) + [0] * (width - len(row)) for row in rows], dtype=torch.int32, device=self.device)

    def _rows(self, x, first, n, n_wrong):
        """Returns rows of a request's tokens, with random rows in place of wrong drafts."""
        wrong = torch.from_numpy(self.rng.standard_normal((n_wrong, *x.shape[1:]))).to(x.dtype)
        return torch.cat([x[first:first + n - n_wrong], 3 * wrong])
