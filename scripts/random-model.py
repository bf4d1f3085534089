#!/usr/bin/env python3
"""random-model.py FROM.gguf TO.gguf [8b|1b|moe|hybrid|4b|e2b|31b] [q4_k|bf16|f16]: writes a model with random weights,
to measure speed with. Weights are in Q4_K, BF16 or F16; norms, routers and other small tensors are in F32. The
tokenizer comes from FROM.gguf.

8b and 1b have Llama's shapes. moe has 8 layers of Qwen3-30B-A3B's sizes with 32 experts, 8 of which are used per token.
hybrid is qwen35 with 24 layers: every fourth has attention, and the others are gated delta nets. 4b is gemma3 with the
4B's sizes and 34 layers, of which five in six see only 1,024 tokens. e2b is gemma4 with ten layers of E2B's sizes, the
last five of which share caches. 31b is gemma4 with twelve layers of the 31B's sizes; two of them have full attention,
with heads of 512 and K used as V.

In F16, embeddings have size 1, and the outputs of attention and feed-forward networks are 8 times smaller. Rounding
then moves predictions as little as in trained models.
"""
import random
import struct
import sys

SHAPES = {"8b": dict(layers=32, embd=4096, ff=14336, heads=32, kv=8, dim=128),
          "1b": dict(layers=16, embd=2048, ff=8192, heads=32, kv=8, dim=64),
          "moe": dict(layers=8, embd=2048, ff=768, heads=32, kv=4, dim=128, experts=32, used=8),
          "hybrid": dict(layers=24, embd=1024, ff=3584, heads=8, kv=2, dim=256, rot=64, attention_every=4, delta_heads=16,
                         delta_dim=128, kernel=4),
          "4b": dict(architecture="gemma3", layers=34, embd=2560, ff=10240, heads=8, kv=4, dim=256, sliding_kv=4, sliding_dim=256,
                     full_every=6, window=1024, sharing=0, layer_embd=0),
          "e2b": dict(layers=10, embd=1536, ff=6144, heads=8, kv=1, dim=512, sliding_kv=1, sliding_dim=256, full_every=5,
                      window=512, sharing=5, layer_embd=256),
          "31b": dict(layers=12, embd=5376, ff=21504, heads=32, kv=4, dim=512, sliding_kv=16, sliding_dim=256, full_every=6,
                      window=1024, sharing=0, layer_embd=0, k_for_v=True)}
F32, F16, Q4_K, BF16 = 0, 1, 12, 30
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
ALIGNMENT = 32


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, code):
        size = struct.calcsize("<" + code)
        value = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += size
        return value

    def string(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def skip(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            of, n = self.number("I"), self.number("Q")
            if of in SIZES:
                self.at += SIZES[of] * n
            else:
                for _ in range(n):
                    self.skip(of)
        else:
            self.at += SIZES[kind]


def tokenizer_of(path):
    """Returns the tokenizer's metadata as bytes of the file, {key: bytes}, and the size of the vocabulary."""
    with open(path, "rb") as file:
        r = Reader(file.read(32 << 20))
    r.at = 8
    r.number("Q")
    kept, n_vocab = {}, 0
    for _ in range(r.number("Q")):
        first = r.at
        key = r.string().decode()
        kind = r.number("I")
        if key == "tokenizer.ggml.tokens":
            n_vocab = struct.unpack_from("<Q", r.data, r.at + 4)[0]
        r.skip(kind)
        if key.startswith("tokenizer."):
            kept[key] = r.data[first:r.at]
    return kept, n_vocab


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def n_bytes_of(weight_type, n):
    return n // 256 * 144 if weight_type == Q4_K else 2 * n if weight_type in (BF16, F16) else 4 * n


def random_rows(random, weight_type, n_in, n_out, divisor):
    """Returns the bytes of a matrix whose values are small and repeat after one or two million. Q4_K has blocks of 256
    values with two F16 scales, 6-bit scales and 4-bit codes. BF16 and F16 values have either sign and magnitudes from
    divisor^-.5 to 2 divisor^-.5, with divisor rounded to a power of 4."""
    n_bytes = n_bytes_of(weight_type, n_in * n_out)
    if weight_type == BF16:
        exponent = 127 - (divisor.bit_length() - 1) // 2
        high = bytes((sign >> 7 << 7) | exponent >> 1 for sign in range(256))
        low = bytes((exponent & 1) << 7 | mantissa & 127 for mantissa in range(256))
        values = bytearray(2 << 20)
        values[0::2] = random.randbytes(1 << 20).translate(low)
        values[1::2] = random.randbytes(1 << 20).translate(high)
        return (values * (n_bytes // len(values) + 1))[:n_bytes]
    if weight_type == F16:
        exponent = 15 - (divisor.bit_length() - 1) // 2
        high = bytes((sign >> 7 << 7) | exponent << 2 | sign & 3 for sign in range(256))
        values = bytearray(random.randbytes(2 << 20))
        values[1::2] = bytes(values[1::2]).translate(high)
        return (values * (n_bytes // len(values) + 1))[:n_bytes]
    scale = 1.0 / (16 * 8 * divisor ** 0.5)
    head = struct.pack("<ee", scale, 7.5 * scale)
    blocks = b"".join(head + random.randbytes(140) for _ in range(4096))
    return (blocks * (n_bytes // len(blocks) + 1))[:n_bytes]


def random_floats(random, n_in, n_out):
    return struct.pack(f"<{n_in * n_out}f", *(random.gauss(0, n_in ** -0.5) for _ in range(n_in * n_out)))


def numbers(values):
    return struct.pack("<IQ", 5, len(values)) + struct.pack(f"<{len(values)}i", *values)


def write(target, weight_type, fields, tensors):
    small = ("gate_inp", "ssm_conv1d", "ssm_alpha", "ssm_beta")
    is_matrix = {name: len(dims) > 1 and not any(part in name for part in small) for name, *dims in tensors}
    with open(target, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)) + b"".join(fields))
        offset = 0
        for name, *dims in tensors:
            file.write(string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) +
                       struct.pack("<IQ", weight_type if is_matrix[name] else F32, offset))
            n_bytes = n_bytes_of(weight_type if is_matrix[name] else F32, n_values(dims))
            offset += (n_bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        for name, n_in, *rest in tensors:
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            if is_matrix[name]:
                divisor = n_in
                if weight_type == F16 and "token_embd" in name:
                    divisor = 1
                elif weight_type == F16 and ("attn_output" in name or "ffn_down" in name):
                    divisor = 64 * n_in
                file.write(random_rows(random, weight_type, n_in, n_values(rest), divisor))
            elif rest:
                file.write(random_floats(random, n_in, n_values(rest)))
            # RoPE turns a quarter of the pairs.
            elif name == "rope_freqs.weight":
                file.write(struct.pack("<f", 1) * (n_in // 4) + struct.pack("<f", 1e30) * (n_in - n_in // 4))
            else:
                value = -1 if "ssm_a" in name else -2 if "ssm_dt" in name else 1
                file.write(struct.pack("<f", value) * n_in)


def gemma(s, metadata, n_vocab):
    """Returns the fields and tensors of a gemma3 or gemma4 file. In gemma4, the last layers may have no K and V."""
    architecture, e, n, n_layers = s.get("architecture", "gemma4"), s["embd"], s["layer_embd"], s["layers"]
    is_4 = architecture == "gemma4"
    slides = [int(i % s["full_every"] < s["full_every"] - 1) for i in range(n_layers)]
    kv_heads = [s["sliding_kv"] if sliding else s["kv"] for sliding in slides]
    widths = [s["ff"] * (1 if i < n_layers - s["sharing"] else 2) for i in range(n_layers)]
    tensors = [("token_embd.weight", e, n_vocab), ("output_norm.weight", e)]
    if is_4:
        tensors += [("rope_freqs.weight", s["dim"] // 2)]
    if n > 0:
        tensors += [("per_layer_token_embd.weight", n * n_layers, n_vocab), ("per_layer_model_proj.weight", e, n * n_layers),
                    ("per_layer_proj_norm.weight", n)]
    for i in range(n_layers):
        dim = s["sliding_dim"] if slides[i] else s["dim"]
        of_layer = [("attn_norm", e), ("post_attention_norm", e), ("ffn_norm", e), ("post_ffw_norm", e),
                    ("attn_q", e, s["heads"] * dim), ("attn_q_norm", dim), ("attn_output", s["heads"] * dim, e),
                    ("ffn_gate", e, widths[i]), ("ffn_up", e, widths[i]), ("ffn_down", widths[i], e)]
        if is_4:
            of_layer += [("layer_output_scale", 1)]
        if n > 0:
            of_layer += [("post_norm", e), ("inp_gate", e, n), ("proj", n, e)]
        if i < n_layers - s["sharing"]:
            of_layer += [("attn_k", e, kv_heads[i] * dim), ("attn_k_norm", dim)]
            if slides[i] or not s.get("k_for_v"):
                of_layer += [("attn_v", e, kv_heads[i] * dim)]
        tensors += [(f"blk.{i}.{name}.weight", *dims) for name, *dims in of_layer]
    whole = dict(block_count=n_layers, context_length=131072, embedding_length=e)
    whole.update({"attention.head_count": s["heads"], "attention.key_length": s["dim"], "attention.value_length": s["dim"],
                  "attention.sliding_window": s["window"]})
    lists, real = {}, {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6}
    if is_4:
        whole.update({"attention.key_length_swa": s["sliding_dim"], "attention.value_length_swa": s["sliding_dim"],
                      "rope.dimension_count": s["dim"], "rope.dimension_count_swa": s["sliding_dim"],
                      "attention.shared_kv_layers": s["sharing"], "embedding_length_per_layer_input": n})
        lists = {"attention.sliding_window_pattern": slides, "attention.head_count_kv": kv_heads, "feed_forward_length": widths}
        real.update({"rope.freq_base_swa": 1e4, "final_logit_softcapping": 30.0})
    # The architecture gemma3 implies its windows.
    else:
        whole.update({"attention.head_count_kv": s["kv"], "feed_forward_length": s["ff"]})
    fields = list(metadata.values())
    fields += [string(key) + struct.pack("<I", STRING) + string(value) for key, value in (
        ("general.architecture", architecture), ("general.name", "random"))]
    fields += [string(f"{architecture}.{key}") + struct.pack("<II", 4, value) for key, value in whole.items()]
    fields += [string(f"{architecture}.{key}") + struct.pack("<I", ARRAY) + numbers(values) for key, values in lists.items()]
    fields += [string(f"{architecture}.{key}") + struct.pack("<If", 6, value) for key, value in real.items()]
    return fields, tensors


def n_values(dims):
    n = 1
    for d in dims:
        n *= d
    return n


def main():
    source, target = sys.argv[1:3]
    s = SHAPES[sys.argv[3] if len(sys.argv) > 3 else "8b"]
    weight_type = {"q4_k": Q4_K, "bf16": BF16, "f16": F16}[sys.argv[4] if len(sys.argv) > 4 else "q4_k"]
    metadata, n_vocab = tokenizer_of(source)
    random.seed(1)
    if "layer_embd" in s:
        return write(target, weight_type, *gemma(s, metadata, n_vocab))
    e, ff, experts = s["embd"], s["ff"], s.get("experts", 0)
    period = s.get("attention_every", 1)
    architecture = "llama" if period == 1 else "qwen35"
    tensors = [("token_embd.weight", e, n_vocab), ("output_norm.weight", e), ("output.weight", e, n_vocab)]
    for i in range(s["layers"]):
        q, kv = s["heads"] * s["dim"], s["kv"] * s["dim"]
        norms = (("attn_norm", e), ("ffn_norm" if period == 1 else "post_attention_norm", e))
        attention = (("attn_q", e, q if period == 1 else 2 * q), ("attn_k", e, kv), ("attn_v", e, kv), ("attn_output", q, e))
        if period > 1:
            attention += (("attn_q_norm", s["dim"]), ("attn_k_norm", s["dim"]))
        if i % period < period - 1:
            heads, dim = s["delta_heads"], s["delta_dim"]
            attention = (("attn_qkv", e, 3 * heads * dim), ("attn_gate", e, heads * dim), ("ssm_beta", e, heads),
                         ("ssm_alpha", e, heads), ("ssm_conv1d", s["kernel"], 3 * heads * dim), ("ssm_norm", dim),
                         ("ssm_out", heads * dim, e))
            tensors += [(f"blk.{i}.ssm_a", heads), (f"blk.{i}.ssm_dt.bias", heads)]
        tensors += [(f"blk.{i}.{name}.weight", *dims) for name, *dims in norms + attention]
        networks, suffix = ((experts,), "_exps") if experts else ((), "")
        tensors += [(f"blk.{i}.{name}{suffix}.weight", *dims, *networks) for name, *dims in (
            ("ffn_gate", e, ff), ("ffn_up", e, ff), ("ffn_down", ff, e))]
        if experts:
            tensors += [(f"blk.{i}.ffn_gate_inp.weight", e, experts)]
    fields = list(metadata.values())
    fields += [string(key) + struct.pack("<I", STRING) + string(value) for key, value in (
        ("general.architecture", architecture), ("general.name", "random"))]
    fields += [string(architecture + "." + key) + struct.pack("<II", 4, value) for key, value in (
        ("block_count", s["layers"]), ("context_length", 131072), ("embedding_length", s["embd"]),
        ("feed_forward_length", s["ff"]), ("attention.head_count", s["heads"]), ("attention.head_count_kv", s["kv"]),
        ("attention.key_length", s["dim"]), ("attention.value_length", s["dim"]),
        ("rope.dimension_count", s.get("rot", s["dim"]))) + (
            (("expert_count", experts), ("expert_used_count", s["used"])) if experts else ()) + (
            (("full_attention_interval", period), ("ssm.conv_kernel", s["kernel"]), ("ssm.state_size", s["delta_dim"]),
             ("ssm.group_count", s["delta_heads"]), ("ssm.time_step_rank", s["delta_heads"]),
             ("ssm.inner_size", s["delta_heads"] * s["delta_dim"])) if period > 1 else ())]
    if period > 1:
        fields += [string(architecture + ".rope.dimension_sections") +
                   struct.pack("<I", ARRAY) + numbers([11, 11, 10, 0])]
    fields += [string(architecture + "." + key) + struct.pack("<If", 6, value) for key, value in (
        ("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 500000.0))]
    write(target, weight_type, fields, tensors)


if __name__ == "__main__":
    main()
