#!/usr/bin/env python3
"""Measures ONNX Runtime's GroupQueryAttention on the CPU, in the setting of `kvant bench attention`.

One token attends to several layers in turn. Together the layers fill twice the last-level cache, with caches of FP32,
FP16, INT8 and INT4. Past and present share their buffers, so a step writes one token and copies nothing.

    pip install onnxruntime onnx numpy
    scripts/bench-onnxruntime.py --heads 9 --kv-heads 3 --dim 64 --ctx 16384 --threads 2 --json FILE
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

# The values of PAGE tokens repeat through the cache, as in kvant's benchmark.
PAGE = 128
# The model has at most DEEPEST layers.
DEEPEST = 64


class Cache:
    """Describes how one kind of cache is stored: types of numpy and ONNX, bits per value, and attributes of the node.
    """

    def __init__(self, name, activation, stored, bits, quantization=None):
        self.name, self.activation, self.stored, self.bits = name, activation, stored, bits
        self.quantization = quantization

    def bytes_per_head_row(self, dim):
        return dim * self.bits // 8


CACHES = [
    Cache("f32", np.float32, np.float32, 32),
    Cache("f16", np.float16, np.float16, 16),
    Cache("int8", np.float32, np.int8, 8, "PER_TENSOR"),
    Cache("int8-channels", np.float32, np.int8, 8, "PER_CHANNEL"),
    Cache("int8-f16", np.float16, np.int8, 8, "PER_TENSOR"),
    Cache("int4", np.float32, np.uint8, 4, "PER_TENSOR"),
    Cache("int4-channels", np.float32, np.uint8, 4, "PER_CHANNEL"),
    Cache("int4-f16", np.float16, np.uint8, 4, "PER_TENSOR"),
]


def last_level_cache_bytes():
    sizes = []
    for size in pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = size.read_text().strip()
        sizes.append(int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[text[-1]])
    return max(sizes, default=32 << 20)


def onnx_type(dtype):
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def make_model(cache, shape, context, n_layers):
    """Makes a graph of n_layers GroupQueryAttention nodes that share the query, the new token and the length."""
    heads, kv_heads, dim = shape
    stored_dim = dim if cache.bits >= 8 else dim // 2
    inputs = [
        helper.make_tensor_value_info("query", onnx_type(cache.activation), [1, 1, heads * dim]),
        helper.make_tensor_value_info("key", onnx_type(cache.activation), [1, 1, kv_heads * dim]),
        helper.make_tensor_value_info("value", onnx_type(cache.activation), [1, 1, kv_heads * dim]),
        helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, [1]),
        helper.make_tensor_value_info("total", TensorProto.INT32, [1]),
    ]
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads}
    scales = []
    if cache.quantization:
        attributes |= {"k_quant_type": cache.quantization, "v_quant_type": cache.quantization,
                       "kv_cache_bit_width": cache.bits}
        n = 1 if cache.quantization == "PER_TENSOR" else kv_heads * dim
        scales = ["k_scale", "v_scale"]
        shape_of_scale = [1] if n == 1 else [1, kv_heads, 1, dim]
        inputs += [helper.make_tensor_value_info(s, TensorProto.FLOAT, shape_of_scale) for s in scales]
    past_shape = [1, kv_heads, context, stored_dim]
    nodes, outputs = [], []
    for layer in range(n_layers):
        for side in "kv":
            inputs.append(helper.make_tensor_value_info(f"past_{side}{layer}", onnx_type(cache.stored), past_shape))
            outputs.append(helper.make_tensor_value_info(f"present_{side}{layer}", onnx_type(cache.stored), past_shape))
        outputs.append(helper.make_tensor_value_info(f"out{layer}", onnx_type(cache.activation), [1, 1, heads * dim]))
        names = ["query", "key", "value", f"past_k{layer}", f"past_v{layer}", "seqlens_k", "total"]
        names += ["", "", "", "", ""] + scales if scales else []
        nodes.append(helper.make_node("GroupQueryAttention", names,
                                      [f"out{layer}", f"present_k{layer}", f"present_v{layer}"],
                                      domain="com.microsoft", **attributes))
    graph = helper.make_graph(nodes, "attention", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)],
                             ir_version=10)


def encode(cache, values, scale):
    """Encodes values [..., dim] as the cache stores them. INT4 codes are two's complement plus 8, with the even channel
    in the low bits."""
    if not cache.quantization:
        return values.astype(cache.stored)
    top = 127 if cache.bits == 8 else 7
    codes = np.clip(np.rint(values / scale), -top - 1, top).astype(np.int8)
    if cache.bits == 8:
        return codes
    nibbles = (codes + 8).astype(np.uint8)
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)


def decoded(cache, values, scale):
    if not cache.quantization:
        return values.astype(cache.stored).astype(np.float64)
    top = 127 if cache.bits == 8 else 7
    return np.clip(np.rint(values / scale), -top - 1, top) * np.asarray(scale, np.float64)


def expected(query, k, v, group):
    """Computes attention in double precision: query [heads, dim], k and v [kv_heads, tokens, dim]."""
    rows = []
    for head in range(query.shape[0]):
        scores = k[head // group] @ query[head] / np.sqrt(query.shape[1])
        weights = np.exp(scores - scores.max())
        rows.append(weights @ v[head // group] / weights.sum())
    return np.stack(rows)


class Run:
    """Runs one kind of cache at one shape and context."""

    def __init__(self, cache, shape, context, n_layers, threads):
        heads, kv_heads, dim = shape
        self.cache, self.n_layers = cache, n_layers
        random = np.random.default_rng(1)
        query = random.standard_normal((heads, dim)).astype(cache.activation)
        page = {side: random.standard_normal((kv_heads, PAGE, dim)).astype(np.float32) for side in "kv"}
        per_channel = cache.quantization == "PER_CHANNEL"
        top = 127 if cache.bits == 8 else 7
        scale = {s: (np.abs(x).max(axis=1, keepdims=True) / top if per_channel else np.abs(x).max() / top)
                 for s, x in page.items()}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        model = make_model(cache, shape, context, n_layers)
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                                    providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        # OrtValues must outlive the binding.
        self.values = []

        def bind(name, array):
            value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
            self.values.append(value)
            self.binding.bind_ortvalue_input(name, value)
            return value

        bind("query", query.reshape(1, 1, -1))
        # The new token equals the cache's last token, so the expected result depends only on the repeated page.
        for name, side in (("key", "k"), ("value", "v")):
            bind(name, page[side][:, (context - 1) % PAGE].astype(cache.activation).reshape(1, 1, -1))
        bind("seqlens_k", np.array([context - 1], np.int32))
        bind("total", np.array([context], np.int32))
        if cache.quantization:
            for side in "kv":
                s = np.asarray(scale[side], np.float32)
                bind(f"{side}_scale", s.reshape(1, kv_heads, 1, dim) if per_channel else s.reshape(1))
        repeats = -(-context // PAGE)
        for layer in range(n_layers):
            for side in "kv":
                stored = np.tile(encode(cache, page[side], scale[side]), (1, repeats, 1))[None, :, :context]
                past = bind(f"past_{side}{layer}", stored)
                self.binding.bind_ortvalue_output(f"present_{side}{layer}", past)
            self.binding.bind_output(f"out{layer}", "cpu")
        tokens = np.arange(context) % PAGE
        known = {s: decoded(cache, page[s], scale[s])[:, tokens] for s in "kv"}
        self.expected = expected(query.astype(np.float64), known["k"], known["v"], heads // kv_heads)

    def layer_seconds(self):
        start = time.perf_counter()
        self.session.run_with_iobinding(self.binding)
        return (time.perf_counter() - start) / self.n_layers

    def error(self):
        """Returns the relative RMS error of the last layer's output."""
        names = [o.name for o in self.session.get_outputs()]
        out = self.binding.get_outputs()[names.index(f"out{self.n_layers - 1}")].numpy()
        out = out.astype(np.float64).reshape(self.expected.shape)
        return float(np.sqrt(((out - self.expected) ** 2).sum() / (self.expected**2).sum()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("heads", 32), ("kv-heads", 8), ("dim", 128), ("threads", 2), ("repetitions", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ctx", default="32768", help="tokens in the cache, such as 4096,32768")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    shape = (options.heads, options.kv_heads, options.dim)
    results = []
    for context in map(int, options.ctx.split(",")):
        for cache in CACHES:
            name = f"onnxruntime:{cache.name}"
            layer_bytes = 2 * context * options.kv_heads * cache.bytes_per_head_row(options.dim)
            n_layers = min(DEEPEST, max(1, -(-2 * last_level_cache_bytes() // layer_bytes)))
            try:
                run = Run(cache, shape, context, n_layers, options.threads)
                run.layer_seconds()
                seconds = statistics.median(run.layer_seconds() for _ in range(options.repetitions))
                error = run.error()
            # ONNX Runtime refuses some kinds of caches on some machines.
            except Exception as failure:
                print(f"{name} at {context}: {str(failure).splitlines()[0]}", file=sys.stderr)
                continue
            results.append({"recipe": name, "ctx": context, "bits": cache.bits, "layers": n_layers,
                            "us": seconds * 1e6, "gbps": layer_bytes / seconds / 1e9, "rms_error": error})
            print(f"{context:>8}  {name:26} {cache.bits:>4} {seconds * 1e6:>11.1f} us/layer "
                  f"{layer_bytes / seconds / 1e9:>7.2f} GB/s  error {error:.1e}", flush=True)
            del run
    if options.json:
        document = {"schema": "kvant.bench.onnxruntime/1", "version": onnxruntime.__version__, "heads": shape[0],
                    "kv_heads": shape[1], "dim": shape[2], "threads": options.threads,
                    "repeats": options.repetitions, "results": results}
        pathlib.Path(options.json).write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
