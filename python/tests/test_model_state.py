"""Steps of several requests through the plug-in's own code, on the CPU model of the library, against attention that is
computed token by token from the rule alone."""

import types
import unittest
import unittest.mock

try:
    import numpy as np
    import torch
except ImportError:
    raise unittest.SkipTest("no PyTorch") from None

import cpu_library

from kvant import PAGE
from kvant.paged import filled_pages, model_state, prefill
from kvant.paged.block_layout import BlockLayout
from kvant.paged.recipes import Recipe

N_KV_HEADS, N_HEADS, D, N_LAYERS = 2, 4, 64, 2
SCALE = D ** -0.5
PLAIN = Recipe("plain", "any", "any")
ROTATED = Recipe("rotated", "any", "any", key_hadamard=True, value_hadamard=True)
SINK = Recipe("sink", "any", "any", key_hadamard=True, value_hadamard=True, sink=1)
LONG_SINK = Recipe("long sink", "any", "any", sink=4)


class Request:
    def __init__(self, n_tokens, rng):
        self.q, self.k, self.v = (torch.from_numpy(rng.standard_normal((N_LAYERS, n_tokens, heads, D))).bfloat16()
                                  for heads in (N_HEADS, N_KV_HEADS, N_KV_HEADS))
        self.out = torch.full((N_LAYERS, n_tokens, N_HEADS, D), float("nan"), dtype=torch.bfloat16)
        self.computed, self.blocks, self.tail = 0, [], []

    def expected(self, layer, recipe):
        """float [n_tokens, heads, d]: every token sees earlier pages encoded and its own as it is."""
        h = cpu_library.hadamard(D)
        n = self.k.shape[1]
        out = np.zeros((n, N_HEADS, D), np.float32)
        for head in range(N_HEADS):
            sides = []
            for x, is_rotated in ((self.k, recipe.key_hadamard), (self.v, recipe.value_hadamard)):
                x = x[layer, :, head * N_KV_HEADS // N_HEADS].float().numpy()
                x = cpu_library.from_bf16(cpu_library.to_bf16(x @ h)) if is_rotated else x
                coded = x.copy()
                for page in range(n // PAGE):
                    rows = slice(page * PAGE, (page + 1) * PAGE)
                    coded[rows] = cpu_library.decode(cpu_library.encode(x[rows]), D)
                coded[:recipe.sink] = x[:recipe.sink]
                back = h if is_rotated else np.eye(D, dtype=np.float32)
                sides.append((x @ back, coded @ back))
            q = self.q[layer, :, head].float().numpy()
            for border in range(0, n, PAGE):
                rows = np.arange(border, min(border + PAGE, n))
                keys, values = (np.concatenate([coded[:border], plain[rows]]) for plain, coded in sides)
                scores = SCALE * q[rows] @ keys.T
                scores[np.arange(len(keys)) > rows[:, None]] = -np.inf
                weights = np.exp(scores - scores.max(1, keepdims=True))
                out[rows, head] = weights @ values / weights.sum(1, keepdims=True)
        return out


class Server:
    """Hands out blocks and builds vLLM's metadata."""

    def __init__(self, recipe, library=None, device="cpu", n_blocks=64):
        library, self.device = library or cpu_library.CpuLibrary(), torch.device(device)
        sizes = [library.page_bytes(format, D) for format in (recipe.key_format, recipe.value_format)]
        self.layout = BlockLayout(N_KV_HEADS, D, *sizes, recipe.sink)
        self.state = model_state.ModelState(recipe, self.layout, N_HEADS, SCALE)
        pool = torch.randint(0, 255, (N_LAYERS, n_blocks, self.layout.block_bytes), dtype=torch.uint8).to(device)
        self.state.layers = [types.SimpleNamespace(kv_cache=pool[layer]) for layer in (1, 0)]
        self.state.start(library, 8, 1024, self.device)
        self.free = list(np.random.default_rng(3).permutation(np.arange(1, n_blocks)))

    def take(self, n):
        return [self.free.pop() for _ in range(n)]

    def step(self, work, padding=0):
        """work: requests and how many tokens of each; those with one token first."""
        work = sorted(work, key=lambda item: item[1] > 1)
        for request, n in work:
            request.tail = request.tail or self.take(self.layout.tail_blocks)
            request.blocks += self.take(-(-(request.computed + n) // PAGE) - len(request.blocks))
        counts = [n for _, n in work] + [0] * padding
        lens = [request.computed + n for request, n in work] + [0] * padding

        def table(rows):
            width = max(map(len, rows))
            return torch.tensor([list(row) + [0] * (width - len(row)) for row in rows], dtype=torch.int32,
                                device=self.device)

        common = dict(num_reqs=len(counts), num_actual_tokens=sum(counts),
                      query_start_loc_cpu=torch.tensor(np.concatenate(([0], np.cumsum(counts))), dtype=torch.int32),
                      seq_lens=torch.tensor(lens, dtype=torch.int32, device=self.device),
                      seq_lens_cpu_upper_bound=torch.tensor(lens, dtype=torch.int32))
        kinds = {"sealed": [r.blocks for r, _ in work] + [[0]] * padding, "tail": [r.tail for r, _ in work] + [[0]] * padding}
        for kind, blocks in kinds.items():
            step = self.state.add(kind, types.SimpleNamespace(block_table_tensor=table(blocks), **common))
        for layer, of_layer in zip((1, 0), self.state.layers):
            q, k, v = (torch.cat([getattr(r, name)[layer, r.computed:r.computed + n] for r, n in work]
                                 + [torch.zeros(padding, *getattr(work[0][0], name).shape[2:], dtype=torch.bfloat16)]).to(self.device)
                       for name in "qkv")
            out = torch.zeros(len(q), N_HEADS, D, dtype=torch.bfloat16, device=self.device)
            model_state.attend(step, of_layer.kv_cache, q, k, v, out, cpu_library.varlen_attention)
            row = 0
            for request, n in work:
                request.out[layer, request.computed:request.computed + n] = out[row:row + n].cpu()
                row += n
        for request, n in work:
            request.computed += n


class Steps(unittest.TestCase):
    def check(self, recipe, *requests):
        for request in requests:
            for layer in range(N_LAYERS):
                n = request.computed
                error = (request.out[layer, :n].float().numpy() - request.expected(layer, recipe)[:n])
                self.assertLess(np.abs(error).max(), 0.03)

    def test_prompts_cut_anyhow_and_decoding(self):
        for recipe in (PLAIN, ROTATED, SINK, LONG_SINK):
            rng = np.random.default_rng(1)
            server, a, b, c = Server(recipe), *(Request(n, rng) for n in (400, 300, 140))
            server.step([(a, 200)])
            server.step([(a, 1), (b, 100), (c, 126)])
            server.step([(a, 130), (b, 1), (c, 1)])
            for _ in range(4):
                server.step([(a, 1), (b, 1), (c, 1)])
            server.step([(b, 150), (a, 1), (c, 1)])
            server.step([(a, 40), (c, 5)])
            self.check(recipe, a, b, c)

    def test_a_page_filled_by_decoding_is_sealed_before_the_next_step(self):
        for recipe in (PLAIN, SINK, LONG_SINK):
            server, a, b = Server(recipe), *(Request(n, np.random.default_rng(2)) for n in (262, 10))
            server.step([(a, 126)])
            for _ in range(4):
                server.step([(a, 1)], padding=2)
            server.step([(a, 125)])
            server.step([(a, 1)])  # fills a page,
            server.step([(b, 10)])  # which is sealed though its request waits
            server.step([(a, 4)])
            self.check(recipe, a, b)

    def test_sinks_kept_by_decoding_reach_all_layers_wherever_they_lie(self):
        for most in (filled_pages.MAX_SEQS, 1):  # one launch for all layers, or one each
            with unittest.mock.patch.object(filled_pages, "MAX_SEQS", most):
                server, a, b = Server(SINK), *(Request(n, np.random.default_rng(6)) for n in (133, 133))
                server.step([(a, 127), (b, 127)])
                for _ in range(6):
                    server.step([(a, 1), (b, 1)])
                self.check(SINK, a, b)

    def test_a_hit_in_the_same_step_sees_what_the_step_seals(self):
        for recipe in (PLAIN, SINK, LONG_SINK):
            self.check_a_hit_in_the_same_step(recipe)

    def check_a_hit_in_the_same_step(self, recipe):
        rng = np.random.default_rng(4)
        server, a, b, c = Server(recipe), *(Request(300, rng) for _ in range(3))
        for name in "qkv":
            for other in (b, c):
                getattr(other, name)[:, :256] = getattr(a, name)[:, :256]
        a.blocks = server.take(3)
        b.blocks, b.computed = a.blocks[:2], 256
        c.blocks, c.computed = a.blocks[:2], 256
        server.step([(a, 300), (b, 1), (c, 40)])
        for other, rows in ((b, slice(256, 257)), (c, slice(256, 296))):
            error = other.out[0, rows].float().numpy() - other.expected(0, recipe)[rows]
            self.assertLess(np.abs(error).max(), 0.03)

    def test_long_prefixes_are_attended_to_in_stretches(self):
        with unittest.mock.patch.object(prefill, "STRETCH", 2):
            rng = np.random.default_rng(5)
            server, a, b = Server(SINK), Request(700, rng), Request(500, rng)
            server.step([(a, 650)])
            server.step([(a, 50), (b, 300)])
            server.step([(b, 200)])
            self.check(SINK, a, b)


if __name__ == "__main__":
    unittest.main()
