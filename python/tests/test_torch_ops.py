"""Tests the operators as PyTorch sees them (schemas, what they change, results by fakes, tracing), and their results on
libkvant_cpu."""

import unittest
from importlib.util import find_spec

if find_spec("torch") is None:
    raise unittest.SkipTest("no PyTorch")

import cpu_library
import torch

from kvant import PAGE
from kvant.torch import Layer, Lengths, ops, page_pool

N_SEQS, N_KV_HEADS, N_HEADS, D, N_PAGES = 3, 2, 4, 64, 2
FORMATS = dict(key_format="tok4g64", value_format="tok4g64")
SCHEMAS = {
    "rotate": "(Tensor rows) -> Tensor",
    "merge": "(Tensor(a0!) into, Tensor(a1!) into_lse, Tensor other, Tensor other_lse) -> ()",
    "append": "(Tensor(a0!) tail_pool, Tensor tail_table, Tensor seq, Tensor tail_token, Tensor keys, Tensor values, "
              "bool key_hadamard, bool value_hadamard) -> ()",
    "seal": "(Tensor(a0!) sealed_pool, Tensor sealed_table, Tensor tail_pool, Tensor tail_table, Tensor tail_page, "
            "Tensor sealed_page, str key_format, str value_format, SymInt head_dim) -> ()",
    "decode_attention": "(Tensor q, Tensor sealed_pool, Tensor sealed_table, Tensor sealed_pages, Tensor tail_pool, "
                        "Tensor tail_table, Tensor tail_tokens, str key_format, str value_format, float softmax_scale) -> Tensor",
    "dequantize": "(Tensor sealed_pool, Tensor sealed_table, Tensor sealed_pages, str key_format, str value_format, "
                  "SymInt head_dim, SymInt first_page, SymInt n_pages) -> (Tensor, Tensor)"}


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


class Cache:
    """Holds three sequences: two sealed pages and 5 tokens, one page and 1 token, and no page and 127 tokens."""

    def __init__(self, n_seqs=N_SEQS):
        rng = torch.Generator().manual_seed(1)
        self.table = torch.randperm(n_seqs * N_KV_HEADS * N_PAGES, generator=rng).int().view(n_seqs, N_KV_HEADS, N_PAGES)
        self.tail_table = torch.randperm(n_seqs * N_KV_HEADS, generator=rng).int().view(n_seqs, N_KV_HEADS, 1)
        self.sealed, _ = page_pool(self.table, *2 * [cpu_library.CpuLibrary().page_bytes("tok4g64", D)])
        self.tail, _ = page_pool(self.tail_table, *2 * [PAGE * D * 2])
        self.q = torch.randn(n_seqs, N_HEADS, D, generator=rng).bfloat16()
        self.counts, self.n_tail = int32(2, 1, 0)[:n_seqs], int32(5, 1, 127)[:n_seqs]
        self.rows = torch.randn(2, n_seqs, (N_PAGES + 1) * PAGE, N_KV_HEADS, D, generator=rng).bfloat16()
        for page in range(N_PAGES + 1):
            for seq in range(n_seqs):
                token = torch.arange(PAGE, dtype=torch.int32)
                ops.append(self.tail, self.tail_table, torch.full_like(token, seq), token,
                           *self.rows[:, seq, page * PAGE:(page + 1) * PAGE], False, False)
            if page < N_PAGES:
                where = torch.full((n_seqs,), page, dtype=torch.int32)
                ops.seal(self.sealed, self.table, self.tail, self.tail_table, torch.zeros_like(where), where, **FORMATS,
                         head_dim=D)

    def attend(self, q, n_tail=None):
        return ops.decode_attention(q, self.sealed, self.table, self.counts, self.tail, self.tail_table,
                                    self.n_tail if n_tail is None else n_tail, "tok4g64", "tok4g64", D ** -0.5)


class Operators(unittest.TestCase):
    def setUp(self):
        library = cpu_library.CpuLibrary()
        self.addCleanup(setattr, ops, "library", ops.library)
        ops.library = lambda: library
        self.cache = Cache()

    def test_rows_are_rotated_wherever_their_channels_lie(self):
        rows = self.cache.q.transpose(1, 2).contiguous().transpose(1, 2)
        self.assertNotEqual(rows.stride(-1), 1)
        self.assertTrue(torch.equal(ops.rotate(rows), ops.rotate(self.cache.q)))

    def arguments(self):
        """Returns arguments for each operator."""
        cache, n = self.cache, int32(0, 1, 2)
        out, lse = torch.randn(2, 5, N_HEADS, D), torch.randn(2, 5, N_HEADS)
        return {
            "rotate": (cache.q,), "merge": (out[0], lse[0], out[1], lse[1]),
            "append": (cache.tail, cache.tail_table, n, int32(7, -1, 0), *cache.rows[:, :, 0], True, False),
            "seal": (cache.sealed, cache.table, cache.tail, cache.tail_table, int32(0, -1, 0), int32(1, 0, 0), "tok4g64", "tok4g64", D),
            "decode_attention": (cache.q, cache.sealed, cache.table, cache.counts, cache.tail, cache.tail_table, cache.n_tail,
                                 "tok4g64", "tok4g64", 0.125),
            "dequantize": (cache.sealed, cache.table, cache.counts, "tok4g64", "tok4g64", D, 0, 2)}

    def test_wrong_tensors_are_refused_by_name(self):
        cache, long = self.cache, self.cache.table.long()
        for name, place, wrong, error, message in (
                ("rotate", 0, cache.q[0], ValueError, "rows has the shape"),
                ("merge", 1, torch.randn(5, N_HEADS).half(), TypeError, "into_lse is torch.float16; it must be torch.float32"),
                ("merge", 2, torch.randn(5, D, N_HEADS).transpose(1, 2), ValueError, "other has gaps in its last dimension"),
                ("append", 0, cache.tail.float(), TypeError, "tail_pool is torch.float32; it must be torch.uint8"),
                ("append", 3, torch.tensor([7, -1, 0]), TypeError, "tail_token is torch.int64; it must be torch.int32"),
                ("append", 2, int32(0, 1), ValueError, r"seq has the shape \[2\]; it must be \[3\]"),
                ("append", 5, cache.rows[0, :, 0, :1], ValueError, "values has the shape"),
                ("seal", 1, long, TypeError, "sealed_table is torch.int64"),
                ("seal", 3, cache.tail_table[:2], ValueError, "tail_table has the shape"),
                ("decode_attention", 0, cache.q[:, :3], ValueError, "with a multiple of 2 heads"),
                ("decode_attention", 0, cache.q[:2], ValueError, "q has the shape"),
                ("decode_attention", 2, long, TypeError, "sealed_table is torch.int64"),
                ("decode_attention", 6, int32(5, 1), ValueError, "tail_tokens has the shape"),
                ("dequantize", 6, -1, ValueError, "first_page is -1")):
            arguments = list(self.arguments()[name])
            arguments[place] = wrong
            with self.subTest(name=name, message=message), self.assertRaisesRegex(error, message):
                getattr(ops, name)(*arguments)

    def test_tensors_of_the_cpu_are_refused(self):
        # __new__ makes the object without loading the library's file.
        of_gpus = ops.TorchLibrary.__new__(ops.TorchLibrary)
        ops.library = lambda: of_gpus
        with self.assertRaisesRegex(ValueError, "rows is on cpu, and the library is for NVIDIA GPUs"):
            ops.rotate(self.cache.q)

    def test_nothing_gives_nothing(self):
        cache, empty = self.cache, int32()
        table, tail_table = cache.table[:0], cache.tail_table[:0]
        self.assertEqual(ops.rotate(cache.q[:0]).shape, (0, N_HEADS, D))
        self.assertEqual(ops.decode_attention(cache.q[:0], cache.sealed, table, empty, cache.tail, tail_table, empty, "tok4g64", "tok4g64", 1.0)
                         .shape, (0, N_HEADS, D))
        ops.append(cache.tail, cache.tail_table, empty, empty, *cache.rows[:, 0, :0], False, False)
        ops.seal(cache.sealed, table, cache.tail, tail_table, empty, empty, "tok4g64", "tok4g64", D)
        self.assertEqual(ops.dequantize(cache.sealed, cache.table, cache.counts, "tok4g64", "tok4g64", D, 0, 0)[0].shape, (N_SEQS, 0, N_KV_HEADS, D))

    def test_queries_are_read_wherever_their_channels_lie(self):
        q = self.cache.q.transpose(1, 2).contiguous().transpose(1, 2)
        self.assertTrue(torch.equal(self.cache.attend(q), self.cache.attend(self.cache.q)))

    def test_schemas(self):
        for name, schema in SCHEMAS.items():
            self.assertEqual(str(getattr(torch.ops.kvant, name).default._schema), f"kvant::{name}{schema}")

    def test_pytorchs_own_checks(self):
        for name, arguments in self.arguments().items():
            torch.library.opcheck(getattr(torch.ops.kvant, name).default, arguments,
                                  test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))

    def test_fakes_have_the_shapes_of_results(self):
        mode = torch._subclasses.FakeTensorMode()
        for name, arguments in self.arguments().items():
            operator = getattr(torch.ops.kvant, name)
            with mode:
                faked = operator(*(mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in arguments))
            real = operator(*arguments)
            if real is not None:
                pairs = zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (faked, real)))
                for fake, result in pairs:
                    self.assertEqual((fake.shape, fake.dtype, fake.stride()), (result.shape, result.dtype, result.stride()))

    def test_attention_is_that_of_the_rows(self):
        cache, out = self.cache, self.cache.attend(self.cache.q)
        keys, values = ops.dequantize(cache.sealed, cache.table, cache.counts, **FORMATS, head_dim=D, first_page=0, n_pages=2)
        for seq in range(N_SEQS):
            n, first = int(cache.counts[seq]) * PAGE, N_PAGES * PAGE
            own = slice(first, first + int(cache.n_tail[seq]))
            k, v = (torch.cat([x[seq, :n], cache.rows[side, seq, own]]).float().repeat_interleave(2, 1).transpose(0, 1)
                    for side, x in enumerate((keys, values)))
            scores = (k @ cache.q[seq].float()[:, :, None])[..., 0] * D ** -0.5
            wanted = (scores.softmax(-1)[:, None] @ v)[:, 0]
            self.assertLess((out[seq].float() - wanted).abs().max(), 0.02)
            torch.testing.assert_close(keys[seq, :n].float(), cache.rows[0, seq, :n].float(), atol=0.4, rtol=0)
            self.assertFalse(keys[seq, n:].any())

    def test_rows_of_fewer_channels_are_appended_with_zeros_behind(self):
        cache, library, channels = self.cache, ops.library(), D - 16
        rows = cache.rows[:, 1, :1, :, :channels].to(torch.float16)
        library.append(ops._shape(cache.tail_table, D), Layer(tail=ops._tail_pages(cache.tail, cache.tail_table, D)), int32(1),
                       int32(7), *rows)
        keys = torch.zeros(1, PAGE, N_KV_HEADS, D, dtype=torch.bfloat16)
        library.dequantize(ops._shape(cache.tail_table, D), Lengths(tail_tokens=int32(5, 8, 5)),
                           Layer(tail=ops._tail_pages(cache.tail, cache.tail_table, D)), 0, 1, keys, keys.clone(), seqs=int32(1))
        self.assertTrue(torch.equal(keys[0, 7, :, :channels], rows[0, 0].bfloat16()))
        self.assertFalse(keys[0, 7, :, channels:].any())
        with self.assertRaisesRegex(TypeError, "of one type"):
            library.append(ops._shape(cache.tail_table, D), Layer(), int32(1), int32(7), rows[0], rows[1].float())

    def test_ranges_of_pages_are_packed(self):
        cache, library, channels = self.cache, ops.library(), D - 16
        whole = ops.dequantize(cache.sealed, cache.table, cache.counts, **FORMATS, head_dim=D, first_page=0, n_pages=2)
        for dtype, is_rotated in ((torch.bfloat16, False), (torch.float16, True)):
            packed = [torch.zeros(2 * PAGE, N_KV_HEADS, channels, dtype=dtype) for _ in range(2)]
            library.dequantize_ranges(
                ops._shape(cache.table, D, "tok4g64", "tok4g64"), Lengths(sealed_pages=cache.counts),
                Layer(sealed=ops._sealed_pages(cache.sealed, cache.table, "tok4g64", "tok4g64", D)), int32(0, 1), int32(1, 1), 1,
                int32(0, PAGE), *packed, seqs=int32(1, 0), key_hadamard=is_rotated)
            for side, rows in enumerate(packed):
                wanted = torch.cat([whole[side][1, :PAGE], whole[side][0, PAGE:]])
                wanted = ops.rotate(wanted) if is_rotated and side == 0 else wanted
                torch.testing.assert_close(rows.float(), wanted[..., :channels].float(), atol=0.03, rtol=0.01)

    def test_several_tokens_of_a_sequence_see_what_each_would_see_alone(self):
        n_tail, q = int32(5, 4, 127), torch.randn(N_SEQS, 4, N_HEADS, D).bfloat16()
        out = self.cache.attend(q, n_tail)
        for i in range(4):
            self.assertTrue(torch.equal(out[:, i], self.cache.attend(q[:, i].contiguous(), n_tail - (3 - i))))

    def test_a_traced_step_gives_what_an_untraced_one_gives(self):
        def step(cache, token, keys, values, q):
            ops.append(cache.tail, cache.tail_table, token, cache.n_tail - 1, keys, values, True, False)
            return ops.rotate(cache.attend(ops.rotate(q)) * 2)

        # The second shape is traced with symbols.
        for n_seqs in (3, 2):
            eager, traced = Cache(n_seqs), Cache(n_seqs)
            rest = torch.arange(n_seqs, dtype=torch.int32), *eager.rows[:, :, 0], eager.q
            wanted = step(eager, *rest)
            found = torch.compile(step, backend="aot_eager", fullgraph=True)(traced, *rest)
            self.assertTrue(torch.equal(found, wanted))
            self.assertTrue(torch.equal(traced.tail, eager.tail))


if __name__ == "__main__":
    unittest.main()
