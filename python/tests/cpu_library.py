"""Does on the CPU, from addresses, what kvant.h says of libkvant_cuda: an independent model of the interface for tests
of the code above it.

Formats keep 4 bits per value and a scale per token. tcq1 to tcq3 use fewer levels, and tcq formats other than tcq4 have
larger pages. Formats with a codebook (vq...) have the nearest of 256 centroids for each two channels. A sealed page
holds NaN codes for the sink's tokens, which exposes any reader of them."""

import ctypes
import functools
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are too small for more; NumPy reads this when it is imported

import numpy as np
import torch

from kvant import PAGE
from kvant.c_api import BF16, F16, F32, Layer, NewRows, PageMetrics, PromptPages, Shape, StepTable
from kvant.paged.recipes import has_codebook
from kvant.torch import TorchLibrary

torch.set_num_threads(1)

SCALE_BYTES = 4 * PAGE


LEVELS = {"tcq1": 1, "tcq2": 2, "tcq3": 4}  # levels on either side of 0; other formats have 7


def page_bytes(head_dim):
    """Bytes of a page that are read and written."""
    return PAGE * head_dim // 2 + SCALE_BYTES


def unused_bytes(format):
    """Unused bytes after the page."""
    return 256 * int(format[3]) if format.startswith("tcq") and format != "tcq4" else 0


def memory(address, dtype, count):
    """A view of `count` numbers at an address."""
    size = int(count) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * size).from_address(int(address)), dtype)


def matrix(address, dtype, n_rows, row_stride, n_columns):
    """Returns a view of rows that begin row_stride numbers apart."""
    flat = memory(address, dtype, (n_rows - 1) * row_stride + n_columns)
    return np.lib.stride_tricks.as_strided(flat, (n_rows, n_columns), (row_stride * flat.itemsize, flat.itemsize))


def from_bf16(words):
    return (words.astype(np.uint32) << 16).view(np.float32)


def to_bf16(x):
    return torch.from_numpy(np.ascontiguousarray(x, np.float32)).bfloat16().view(torch.uint16).numpy()


def from_f16(words):
    return words.view(np.float16).astype(np.float32)


def to_f16(x):
    return np.asarray(x, np.float16).view(np.uint16)


# This maps each kvant_type to a NumPy type of as many bits, and the conversions to F32 and from F32.
NUMBERS = {BF16: (np.uint16, from_bf16, to_bf16), F16: (np.uint16, from_f16, to_f16), F32: (np.float32, np.array, np.array)}


def number_bytes(kind):
    return np.dtype(NUMBERS[kind][0]).itemsize


@functools.cache
def hadamard(d):
    h = np.ones((1, 1))
    while len(h) < d:
        h = np.block([[h, h], [h, -h]])
    return (h / np.sqrt(d)).astype(np.float32)


@functools.cache
def plain_order(d):
    """Returns [2, 128, d]: where numbers of keys and of values lie in an unquantized page, in the order for the GPU's
    tensor cores."""
    token, channel = np.arange(PAGE)[:, None], np.arange(d)[None]
    tile, row, g = token // 16, token // 8 % 2, token % 8
    within, lane = channel % (d // 4), g * 4 + channel // (d // 4)
    keys = ((tile * (d // 16) + within // 4) * 32 + lane) * 8 + (row + within % 4 // 2 * 2) * 2 + within % 2
    within, lane = channel % (d // 8), channel // (d // 8) * 4 + g // 2
    values = ((tile * (d // 16) + within // 2) * 32 + lane) * 8 + (within % 2 + row * 2) * 2 + g % 2
    return np.stack([keys, values])


def encode(x, sink=0, book=None, levels=7):
    """Encodes [128, d] into bytes: codes of two channels per byte, then the tokens' scales. book: [256, 2]; None: the
    format has none."""
    if book is not None:
        scale = np.ones(PAGE, np.float32)
        scale[:sink] = np.nan
        distances = np.square(x.reshape(PAGE, -1, 1, 2) - book).sum(-1)
        return np.concatenate([distances.argmin(-1).astype(np.uint8).reshape(-1), scale.view(np.uint8)])
    scale = np.maximum(np.abs(x).max(1), 1e-20).astype(np.float32) / levels
    scale[:sink] = np.nan
    x = np.where(np.isnan(scale)[:, None], 0, x)
    codes = np.clip(np.rint(x / np.nan_to_num(scale, nan=1)[:, None]), -levels, levels).astype(np.int8) + 8
    return np.concatenate([(codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8).reshape(-1), scale.view(np.uint8)])


def decode(page, d, book=None):
    codes, scale = page[:-SCALE_BYTES].reshape(PAGE, d // 2), page[-SCALE_BYTES:].copy().view(np.float32)
    if book is not None:
        return book[codes].reshape(PAGE, d) * scale[:, None]
    x = np.stack([codes & 15, codes >> 4], -1).reshape(PAGE, d).astype(np.float32) - 8
    return x * scale[:, None]


def page_address(pages, seq, head, side, page):
    seq, page = int(seq), int(page)
    entry = pages.table + 4 * (seq * pages.seq_stride + head * pages.head_stride + side * pages.side_stride + page)
    number = int(memory(entry, np.int32, 1)[0])
    return pages.pool + number * pages.page_stride + head * pages.head_offset + side * pages.side_offset


def sealed_address(layer, seq, head, side, page):
    offset = memory(layer.sealed_offsets + 8 * (2 * head + side), np.int64, 1)[0] if layer.sealed_offsets else 0
    return page_address(layer.sealed, seq, head, side, page) + int(offset)


def format_of(shape, head, side):
    names = (shape.head_key_formats, shape.head_value_formats)[side]
    if names:
        return (ctypes.c_char_p * (head + 1)).from_address(names)[head].decode()
    return (shape.key_format, shape.value_format)[side].decode()


def book_of(shape, layer, head, side):
    """Returns the codebook, F32 [256, 2], or None if the side's format has none."""
    address, stride = ((layer.key_codebooks, layer.key_codebook_stride), (layer.value_codebooks, layer.value_codebook_stride))[side]
    if not has_codebook(format_of(shape, head, side)):
        return None
    return from_f16(memory(address + 2 * head * stride, np.uint16, 512)).reshape(256, 2)


def counts(address, n):
    return memory(address, np.int32, n) if address else np.zeros(n, np.int32)


def in_bytes(x, axis):
    """Returns whole numbers up to 127 and their factors: one scale for all numbers along an axis."""
    scale = np.maximum(np.abs(x).max(axis, keepdims=True), 1e-20) / 127
    return np.rint(x / scale), scale


TILE = 64  # number of tokens whose weights share a scale


def capped(scores, softcap):
    return softcap * np.tanh(scores / softcap) if softcap else scores


def attend_in_bytes(q, keys, values, hidden, softmax_scale):
    """Attends with queries [rows, d] by FlashQ (TurboAttention, section 3), with keys and values less their means.
    Returns outputs and log-sum-exps [rows]. hidden: [rows, tokens]."""
    centre, middle = (x.mean(0) if len(x) else 0 for x in (keys, values))
    (q8, of_q), (k8, of_k), (v8, of_v) = in_bytes(q, 1), in_bytes(keys - centre, 1), in_bytes(values - middle, 0)
    scores = np.where(hidden, -np.inf, softmax_scale * (q8 @ k8.T * of_q * of_k.T + (q @ centre)[:, None]))
    top = scores.max(1, keepdims=True)
    weights, out = np.exp(scores - top), np.zeros_like(q)
    for tile in range(0, len(keys), TILE):
        rounded, of_tile = in_bytes(weights[:, tile:tile + TILE], 1)
        weights[:, tile:tile + TILE] = rounded * of_tile
        out += rounded @ v8[tile:tile + TILE] * of_tile * of_v
    total = weights.sum(1, keepdims=True)
    return out / total + middle, np.log(total[:, 0]) + top[:, 0]


def attend_exactly(q, keys, values, hidden, softmax_scale, softcap=0, sink_logit=None):
    """sink_logit: a logit that joins the denominators."""
    scores = np.where(hidden, -np.inf, capped(softmax_scale * q @ keys.T, softcap))
    top = scores.max(1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(1, keepdims=True) + (0 if sink_logit is None else np.exp(sink_logit - top))
    return weights @ values / total, np.log(total[:, 0]) + top[:, 0]


class CpuLibrary(TorchLibrary):
    def __init__(self):
        self.prompts_in_bytes = self.prompts_of_rows = 0  # numbers of calls
        self.formats_sealed = set()  # formats and sides of sealed pages
        self.metrics_seen = {}  # for sealed pages of keys, by address: the head's first direction and the page's number

    def serves(self, device):
        return device.type == "cpu"

    def page_bytes(self, format, head_dim):
        return page_bytes(head_dim) + unused_bytes(format)

    def can_seal(self, format):
        return True

    def can_seal_rows(self, format):
        return not format.startswith("tcq")

    def decode_kernel(self, shape):
        return "cpu"

    def workspace_bytes(self, shape):
        return 16

    def prompt_workspace_bytes(self, shape):
        return 16

    def call(self, name, *arguments):
        getattr(self, "_" + name)(*arguments)

    def _plain(self, shape, pages, seq, head, side, page):
        """Returns an unquantized page's numbers and where each lies."""
        words = memory(page_address(pages, seq, head, side, page), np.uint16, PAGE * shape.head_dim)
        return words, plain_order(shape.head_dim)[side]

    def _plain_rows(self, shape, pages, seq, head, side, n_tokens):
        """Returns F32 [n_tokens, head_dim], the first tokens of a sequence's unquantized pages."""
        rows = [np.zeros((0, shape.head_dim), np.float32)]
        for first in range(0, n_tokens, PAGE):
            words, order = self._plain(shape, pages, seq, head, side, first // PAGE)
            rows.append(from_bf16(words[order[:n_tokens - first]]))
        return np.concatenate(rows)

    def _stored(self, rows, d, first, n, head, side):
        """Returns BF16 [n, d], rows from the first one on, as they are stored."""
        address, row_stride, head_stride, is_rotated, n_channels = (
            (rows.keys, rows.key_row_stride, rows.key_head_stride, rows.key_hadamard, rows.key_channels or d),
            (rows.values, rows.value_row_stride, rows.value_head_stride, rows.value_hadamard, rows.value_channels or d))[side]
        dtype, convert, _ = NUMBERS[rows.type]
        new = np.zeros((n, d), np.float32)
        at = address + number_bytes(rows.type) * (head * head_stride + int(first) * row_stride)
        new[:, :n_channels] = convert(matrix(at, dtype, n, row_stride, n_channels))
        if factors := (rows.key_factors, rows.value_factors)[side]:
            new *= memory(factors + 4 * d * head, np.float32, d)
        return to_bf16(new @ hadamard(d) if is_rotated else new)

    def _append(self, shape, layer, rows):
        d = shape.head_dim
        seqs, tokens = memory(rows.seq, np.int32, rows.n_rows), memory(rows.tail_token, np.int32, rows.n_rows)
        dtype, convert, back = NUMBERS[rows.type]
        for head in range(shape.n_kv_heads):
            for side in range(2):
                new = self._stored(rows, d, 0, rows.n_rows, head, side)
                for seq, page in {(seq, token // PAGE) for seq, token in zip(seqs, tokens) if token >= 0}:
                    mine = np.flatnonzero((seqs == seq) & (tokens >= 0) & (tokens // PAGE == page))
                    words, order = self._plain(shape, layer.tail, seq, head, side, page)
                    words[order[tokens[mine] % PAGE]] = new[mine]
        for head in range(shape.n_kv_heads * shape.group if rows.queries else 0):
            factors = rows.query_factors and memory(rows.query_factors + 4 * d * (head // shape.group), np.float32, d)
            of_head = matrix(rows.queries + number_bytes(rows.type) * head * rows.query_head_stride, dtype, rows.n_rows,
                             rows.query_row_stride, d)
            new = convert(of_head) * (1 if factors is None else factors)
            of_head[:] = back(new @ hadamard(d) if rows.key_hadamard else new)

    def _protect(self, shape, layer, rows):
        names = ("seq", "head", "tail_token", "protected_token")
        for seq, head, token, to in zip(*(memory(getattr(rows, name), np.int32, rows.n_rows).tolist() for name in names)):
            for side in range(2):
                words, order = self._plain(shape, layer.tail, seq, head, side, token // PAGE)
                copy, order_there = self._plain(shape, layer.protected_pages, seq, head, side, to // PAGE)
                copy[order_there[to % PAGE]] = words[order[token % PAGE]]

    def _seal_pages(self, shape, layer, pages):
        none, to = np.full(shape.n_seqs, -1), memory(pages.sealed_page, np.int32, shape.n_seqs)
        first = memory(pages.tail_page, np.int32, shape.n_seqs) if pages.tail_page else none
        rows = NewRows.from_address(pages.rows) if pages.rows else None
        first_rows = memory(pages.first_rows, np.int32, shape.n_seqs) if pages.rows else none
        n_pages = memory(pages.n_pages, np.int32, shape.n_seqs) if pages.n_pages else np.full(shape.n_seqs, pages.max_pages)
        n_layers = max(pages.n_layers, 1)
        assert n_layers == 1 or not (layer.key_codebooks or layer.value_codebooks or shape.head_key_formats)
        offsets = memory(pages.layer_offsets, np.int64, n_layers) if pages.layer_offsets else [0] * n_layers
        for nth, away in enumerate(offsets):
            at = Layer.from_buffer_copy(layer)
            for of in (at.sealed, at.tail, at.protected_pages):
                of.pool = (of.pool or 0) + int(away)
            for seq in np.flatnonzero((first >= 0) | (first_rows >= 0)):
                for page in range(n_pages[seq]):
                    if first_rows[seq] >= 0:
                        row = first_rows[seq] + page * PAGE
                        assert row + PAGE <= rows.n_rows
                        numbers = functools.partial(self._stored, rows, shape.head_dim, row, PAGE)
                    else:
                        numbers = functools.partial(self._tail_rows, shape, at, seq, first[seq] + page)
                    self._seal_page(shape, at, seq, numbers, to[seq] + page, pages.keep_sink)
                    if pages.page_metrics:
                        self._see_metrics(shape, at, PageMetrics.from_address(pages.page_metrics), nth, seq, to[seq] + page, page)

    def _see_metrics(self, shape, layer, metrics, nth, seq, to, behind_first):
        d = shape.head_dim
        if metrics.basis:  # the basis keeps the lengths of queries
            basis = memory(metrics.basis, np.float32, d * d).reshape(d, d)
            assert np.abs(basis @ basis.T - np.eye(d)).max() < 1e-5
        number = memory(metrics.first_pages, np.int32, shape.n_seqs)[seq] + behind_first if metrics.first_pages else to
        for head in range(shape.n_kv_heads):
            at = metrics.directions + 4 * (nth * metrics.direction_layer_stride + head * d * 8)
            self.metrics_seen[sealed_address(layer, seq, head, 0, to)] = float(memory(at, np.float32, 1)[0]), int(number)

    def _tail_rows(self, shape, layer, seq, page, head, side):
        words, order = self._plain(shape, layer.tail, seq, head, side, page)
        return words[order]

    def _seal_page(self, shape, layer, seq, numbers, to, keep_sink):
        """numbers: BF16 [PAGE, head_dim], a page of one head and side."""
        sink = layer.sink if to == 0 else 0
        for head in range(shape.n_kv_heads):
            for side in range(2):
                rows = numbers(head, side)
                address, format = sealed_address(layer, seq, head, side, to), format_of(shape, head, side)
                self.formats_sealed.add((format, "KV"[side]))
                page = encode(from_bf16(rows), sink, book_of(shape, layer, head, side), LEVELS.get(format, 7))
                memory(address, np.uint8, page_bytes(shape.head_dim) + unused_bytes(format))[:len(page)] = page
                if sink and keep_sink:
                    copy, order = self._plain(shape, layer.protected_pages, seq, head, side, 0)
                    copy[order[:sink]] = rows[:sink]

    def _plan_step(self, step):
        """Plans request by request and token by token."""
        n, parts = step.n_requests, step.n_seqs // step.n_requests
        out = {name: memory(getattr(step, name), np.int32, size) for name, size in (
            *((name, step.n_seqs) for name in ("sealed_pages", "tail_tokens", "protected_tokens", "first_tokens")),
            ("part_begins", step.n_seqs + 1), *((name, step.n_rows) for name in ("row_seq", "row_tail_token")),
            *((name, n) for name in ("due_tail_page", "due_sealed_page", "n_due_pages", "sealed_after"))) if getattr(step, name)}
        begins = memory(step.query_begins, np.int32, n + 1) if step.query_begins else np.arange(n + 1) * step.max_new_tokens
        lens = memory(step.seq_lens, np.int32, n)
        slots = memory(step.slots, np.int64, step.n_rows) if step.slots else np.zeros(step.n_rows)
        before = memory(step.sealed_before, np.int32, n).copy() if step.sealed_before else np.zeros(n, np.int32)

        def write(seq=slice(None), **numbers):
            for name, x in numbers.items():
                if name in out:
                    out[name][seq] = x

        write(sealed_pages=0, tail_tokens=0, protected_tokens=0, first_tokens=0, row_seq=0, row_tail_token=-1, due_tail_page=-1,
              due_sealed_page=0, n_due_pages=0, sealed_after=before, part_begins=begins[n])
        for i in range(n):
            n_new = begins[i + 1] - begins[i]
            is_there = n_new > 0 and lens[i] > 0 and slots[begins[i + 1] - 1] >= 0
            tokens = [lens[i] - begins[i + 1] + row for row in range(begins[i], begins[i + 1])]
            sealed = [max((t - step.window) // PAGE, before[i], 0) if is_there else 0 for t in tokens]
            groups = []
            for row, count in enumerate(sealed):
                if not groups or sealed[groups[-1][0]] != count or len(groups[-1]) == max(step.max_queries, 1):
                    groups.append([])
                groups[-1].append(row)
            assert len(groups) <= parts
            for part in range(parts):
                group, seq = groups[part] if part < len(groups) else [], i * parts + part
                write(seq, part_begins=begins[i] + (group[0] if group else n_new))
                write([begins[i] + row for row in group], row_seq=seq)
                if group and is_there:
                    self._plan_part(step, write, i, seq, [tokens[row] for row in group], sealed[group[0]], begins[i] + group[0], lens[i])
            if is_there:
                demanded = max((lens[i] - step.window) // PAGE, before[i], 0)
                first = max(sealed[0], self._first_seen(step, tokens[0]) // PAGE)
                if demanded > first:
                    write(i, due_tail_page=0, due_sealed_page=first, n_due_pages=demanded - first)
                write(i, sealed_after=demanded)

    def _first_seen(self, step, token):
        return max(0, token + 1 - step.sliding_window) if step.sliding_window else 0

    def _plan_part(self, step, write, request, seq, tokens, sealed, first_row, n_tokens):
        first_page = self._first_seen(step, tokens[0]) // PAGE
        first_tail = max(sealed, first_page)
        n_sealed = first_tail - first_page
        write(seq, sealed_pages=n_sealed, tail_tokens=max(0, tokens[-1] + 1 - first_tail * PAGE),
              protected_tokens=step.sink if n_sealed else 0, first_tokens=self._first_seen(step, tokens[-1]) - first_page * PAGE)
        for row, token in enumerate(tokens):
            write(first_row + row, row_tail_token=max(token - first_tail * PAGE, -1))
        pages = dict(sealed=range(first_page, first_page + n_sealed), tail=range(first_tail, -(-n_tokens // PAGE)), protected_pages=[0])
        for name, numbers in pages.items():
            if not getattr(step, name):
                continue
            table = StepTable.from_address(getattr(step, name))
            if name == "tail":
                assert table.n_pages * PAGE >= step.window + PAGE
                assert not table.ring or table.ring * PAGE >= step.window + step.max_new_tokens + PAGE - 1
            for entry in range(table.n_entries):
                for i, page in enumerate(numbers[:table.n_pages]):
                    place, offset = (page % table.ring if table.ring else page) * table.n_entries + entry, 0
                    if table.places:
                        place, offset = memory(table.places + 8 * place, np.int32, 2)
                    block = memory(table.blocks + 4 * (request * table.block_stride + int(place)), np.int32, 1)[0]
                    at = table.table + 4 * ((seq * table.n_entries + entry) * table.n_pages + i)
                    memory(at, np.int32, 1)[0] = block * table.units + offset

    def _rows(self, shape, lengths, layer, seq, head, side):
        """Returns all tokens of a sequence except masked ones, F32 [n_tokens, head_dim]: quantized ones, then the
        tail's."""
        d = shape.head_dim
        sealed = counts(lengths.sealed_pages, seq + 1)[seq]
        tail = counts(lengths.tail_tokens, seq + 1)[seq]
        parts = [self._decoded(shape, layer, seq, head, side, page) for page in range(sealed)]
        if sealed:
            parts[0] = parts[0][layer.sink:]
        return np.concatenate(parts + [self._plain_rows(shape, layer.tail, seq, head, side, tail)])

    def _decoded(self, shape, layer, seq, head, side, page):
        """Decodes a sealed page into F32 [128, head_dim]."""
        at = sealed_address(layer, seq, head, side, page)
        return decode(memory(at, np.uint8, page_bytes(shape.head_dim)), shape.head_dim, book_of(shape, layer, head, side))

    def _protected_rows(self, shape, lengths, layer, seq, head, side):
        at = seq * lengths.protected_seq_stride + head * lengths.protected_head_stride
        return self._plain_rows(shape, layer.protected_pages, seq, head, side, counts(lengths.protected_tokens, at + 1)[at])

    def _decode_schedule(self, shape, lengths, *workspace):
        pass

    def _decode_attention(self, shape, lengths, layer, *workspace):
        n_queries = max(shape.max_queries, 1)
        begins = (memory(lengths.query_begins, np.int32, shape.n_seqs + 1) if lengths.query_begins else
                  np.arange(shape.n_seqs + 1) * n_queries)
        assert (np.diff(begins) >= 0).all()
        for seq in range(shape.n_seqs):
            rows = range(begins[seq], min(begins[seq + 1], begins[seq] + n_queries))
            tail = counts(lengths.tail_tokens, seq + 1)[seq]
            assert not rows or begins[seq + 1] - begins[seq] == len(rows) and tail in (0, *range(len(rows), PAGE + 1))
            for head in range(shape.n_kv_heads):
                keys, values = (np.concatenate([self._protected_rows(shape, lengths, layer, seq, head, side),
                                                self._rows(shape, lengths, layer, seq, head, side)]) for side in range(2))
                for behind, row in enumerate(reversed(rows) if len(keys) else ()):
                    n = len(keys) - behind
                    self._attend_query(shape, layer, row, head, keys[:n], values[:n])

    def _attend_query(self, shape, layer, row, head, keys, values):
        d = shape.head_dim
        (of_q, convert, _), (of_out, _, back) = NUMBERS[layer.q_type], NUMBERS[layer.out_type]
        for query_head in range(head * shape.group, (head + 1) * shape.group):
            at = layer.q + number_bytes(layer.q_type) * (row * layer.q_seq_stride + query_head * layer.q_head_stride)
            scores = capped(shape.softmax_scale * keys @ convert(memory(at, of_q, d)), shape.score_softcap)
            weights = np.exp(scores - scores.max())
            total = weights.sum()
            if layer.sink_logits:
                total += np.exp(memory(layer.sink_logits + 4 * query_head, np.float32, 1)[0] - scores.max())
            at = layer.out + number_bytes(layer.out_type) * (row * layer.out_seq_stride + query_head * layer.out_head_stride)
            out = weights @ values / total
            memory(at, of_out, d)[:] = back(out @ hadamard(d) if layer.out_hadamard else out)

    def _prompt_attention(self, shape, prompt, *workspace):
        n, d = shape.n_seqs, shape.head_dim
        pages = PromptPages.from_address(prompt.pages)
        assert not shape.window and not shape.sas and bool(prompt.k) == bool(prompt.v)
        self.prompts_of_rows += bool(prompt.k)
        if not shape.half_products:
            assert prompt.q_type == prompt.out_type == BF16
            self.prompts_in_bytes += 1
        queries, tokens = (memory(begins, np.int32, n + 1) for begins in (prompt.query_begins, prompt.token_begins))
        sealed = counts(pages.sealed_begins, n + 1)
        assert queries[n] <= shape.n_queries and tokens[n] <= shape.n_tokens and sealed[n] <= shape.n_sealed_pages
        of_pages, layer = Shape.from_address(pages.shape), Layer.from_address(pages.layer)
        for seq in range(n):
            n_pages, n_rows = sealed[seq + 1] - sealed[seq], tokens[seq + 1] - tokens[seq]
            first = memory(pages.first_row_tokens, np.int32, n)[seq] if pages.first_row_tokens else n_pages * PAGE
            rows = np.arange(queries[seq], queries[seq + 1])
            seen = memory(pages.query_sealed_pages, np.int32, queries[n])[rows] if pages.query_sealed_pages else n_pages + 0 * rows
            assert len(rows) == 0 or first <= seen[0] * PAGE and (np.diff(seen) >= 0).all() and seen[-1] <= n_pages
            end = first + n_rows if n_rows else n_pages * PAGE
            limit = end - len(rows) + np.arange(len(rows)) + 1 if shape.causal else np.full(len(rows), end)
            for head in range(shape.n_kv_heads):
                in_pages = [self._sealed_rows(of_pages, layer, seq, head, side, n_pages) for side in range(2)]
                in_rows = [self._prompt_rows(prompt, of_pages, layer, seq, head, side, tokens[seq], n_rows) for side in range(2)]
                for count in np.unique(seen):
                    mine = np.flatnonzero(seen == count)
                    keys, values = (np.concatenate([x[:count * PAGE], y[count * PAGE - first:]]) for x, y in zip(in_pages, in_rows))
                    hidden = np.arange(len(keys)) >= limit[mine, None]
                    self._attend_rows(shape, prompt, head, rows[mine], keys, values, hidden)

    def _prompt_rows(self, prompt, shape, layer, seq, head, side, first, n_rows):
        """Returns F32 [n_rows, head_dim]: the prompt's rows, which begin at row `first` of all rows, or the tail's."""
        if not prompt.k:
            return self._plain_rows(shape, layer.tail, seq, head, side, n_rows)
        address, row_stride, head_stride = ((prompt.k, prompt.k_token_stride, prompt.k_head_stride),
                                            (prompt.v, prompt.v_token_stride, prompt.v_head_stride))[side]
        at = address + 2 * (head * head_stride + int(first) * row_stride)
        return from_bf16(matrix(at, np.uint16, n_rows, row_stride, shape.head_dim))

    def _sealed_rows(self, shape, layer, seq, head, side, n_pages):
        """Decodes the sealed pages into F32 [tokens, head_dim]; the sink comes from its own page."""
        pages = [self._decoded(shape, layer, seq, head, side, page) for page in range(n_pages)]
        if pages and layer.sink:
            pages[0][:layer.sink] = self._plain_rows(shape, layer.protected_pages, seq, head, side, layer.sink)
        return np.concatenate([np.zeros((0, shape.head_dim), np.float32), *pages])

    def _attend_rows(self, shape, prompt, head, rows, keys, values, hidden):
        group, d = shape.n_heads // shape.n_kv_heads, shape.head_dim
        n_rows = rows[-1] + 1
        for query_head in range(head * group, (head + 1) * group):
            (of_q, convert, _), (of_out, _, back) = NUMBERS[prompt.q_type], NUMBERS[prompt.out_type]
            at = prompt.q + number_bytes(prompt.q_type) * query_head * prompt.q_head_stride
            q = convert(matrix(at, of_q, n_rows, prompt.q_token_stride, d)[rows])
            q = q @ hadamard(d) if prompt.q_hadamard else q
            if shape.half_products:
                logit = memory(prompt.sink_logits + 4 * query_head, np.float32, 1)[0] if prompt.sink_logits else None
                out, of_rows = attend_exactly(q, keys, values, hidden, shape.softmax_scale, shape.score_softcap, logit)
            else:
                assert not shape.score_softcap and not prompt.sink_logits
                out, of_rows = attend_in_bytes(q, keys, values, hidden, shape.softmax_scale)
            at = prompt.out + number_bytes(prompt.out_type) * query_head * prompt.out_head_stride
            out = out @ hadamard(d) if prompt.out_hadamard else out
            matrix(at, of_out, n_rows, prompt.out_token_stride, d)[rows] = back(out)
            if prompt.lse:
                lse = matrix(prompt.lse + 4 * query_head * prompt.lse_head_stride, np.float32, n_rows, prompt.lse_token_stride, 1)
                lse[rows, 0] = of_rows

    def _dequantize(self, shape, lengths, layer, what):
        d, n = shape.head_dim, what.n_seqs
        n_channels = what.channels or d
        seqs = memory(what.seqs, np.int32, n) if what.seqs else range(n)
        first_pages = memory(what.first_pages, np.int32, n) if what.first_pages else [what.first_page] * n
        n_pages = memory(what.page_counts, np.int32, n) if what.page_counts else [what.n_pages] * n
        begins = ([begin * what.token_stride for begin in memory(what.row_begins, np.int32, n).tolist()] if what.row_begins else
                  [i * what.seq_stride for i in range(n)])
        for i, seq in enumerate(seqs):
            for head in range(what.n_heads):
                for side, (rows, is_rotated) in enumerate(((what.keys, what.key_hadamard), (what.values, what.value_hadamard))):
                    at = (shape, layer.protected_pages, seq, what.first_head + head, side)
                    sink = self._plain_rows(*at, layer.sink) if counts(lengths.sealed_pages, seq + 1)[seq] else []
                    x = self._rows(shape, lengths, layer, seq, what.first_head + head, side)
                    x = np.concatenate([sink, x]) if len(sink) else x
                    x = x[first_pages[i] * PAGE:(first_pages[i] + min(n_pages[i], what.n_pages)) * PAGE]
                    x = x @ hadamard(d) if is_rotated else x
                    at = rows + 2 * (begins[i] + head * what.head_stride)
                    if len(x):
                        dtype, _, back = NUMBERS[what.type]
                        matrix(at, dtype, len(x), what.token_stride, n_channels)[:] = back(x[:, :n_channels])

    def merge(self, into, into_lse, other, other_lse):
        total = torch.logaddexp(into_lse, other_lse)
        into.copy_(into * (into_lse - total).exp()[..., None] + other.float() * (other_lse - total).exp()[..., None])
        into_lse.copy_(total)

    def _transform(self, what):
        kind, convert, back = NUMBERS[what.type]
        source = ((what.source, what.source_row_stride, what.source_head_stride) if what.source else
                  (what.rows, what.row_stride, what.head_stride))
        for head in range(what.n_heads):
            to, read = (matrix(address + np.dtype(kind).itemsize * head * head_stride, kind, what.n_rows, row_stride, what.head_dim)
                        for address, row_stride, head_stride in ((what.rows, what.row_stride, what.head_stride), source))
            before, after = (memory(x + 4 * what.head_dim * (head // what.heads_of_factors), np.float32, what.head_dim) if x else 1
                             for x in (what.factors, what.factors_after))
            x = convert(read) * before
            to[:] = back((x @ hadamard(what.head_dim) if what.hadamard else x) * after)


def varlen_attention(q, k, v, *, cu_seqlens_q, max_seqlen_q, max_seqlen_k, softmax_scale, causal, return_softmax_lse,
                     cu_seqlens_k=None, seqused_k=None, block_table=None, out=None):
    """flash_attn_varlen_func by its documentation: q [rows, heads, d]; keys and values [rows, kv heads, d], or pages
    [pages, 128, kv heads, d] with a block table; a causal mask is aligned to the last row and key."""
    out = torch.empty_like(q) if out is None else out
    lse = torch.empty(q.shape[1], q.shape[0], device=q.device)
    for i in range(len(cu_seqlens_q) - 1):
        rows = slice(cu_seqlens_q[i], cu_seqlens_q[i + 1])
        if block_table is None:
            keys, values = (x[cu_seqlens_k[i]:cu_seqlens_k[i + 1]] for x in (k, v))
        else:
            n = int(seqused_k[i])
            keys, values = (x[block_table[i, :-(-n // PAGE)].long()].flatten(0, 1)[:n] for x in (k, v))
        group = q.shape[1] // keys.shape[1]
        keys, values = (x.float().repeat_interleave(group, 1).transpose(0, 1) for x in (keys, values))
        scores = q[rows].float().transpose(0, 1) @ keys.transpose(1, 2) * softmax_scale  # [heads, rows, keys]
        n_rows, n_keys = scores.shape[1:]
        assert n_rows <= max_seqlen_q and n_keys <= max_seqlen_k and n_keys > 0
        if causal:
            behind = torch.ones(n_rows, n_keys, dtype=torch.bool, device=q.device).triu(n_keys - n_rows + 1)
            scores = scores.masked_fill(behind, float("-inf"))
        lse[:, rows] = scores.logsumexp(-1)
        out[rows] = (scores.softmax(-1) @ values).transpose(0, 1).to(out.dtype)
    return out, lse
