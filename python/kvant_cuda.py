"""libkvant_cuda for Python: the structures of include/kvant/kvant.h, and calls on the current PyTorch stream."""

import ctypes
import sys

import torch

PAGE = 128  # tokens
BF16, F32 = 0, 1


def _fields(kind, names):
    return [(name, kind) for name in names.split()]


class Pages(ctypes.Structure):
    _fields_ = (_fields(ctypes.c_void_p, "table") + _fields(ctypes.c_int64, "seq_stride layer_stride head_stride side_stride")
                + _fields(ctypes.c_void_p, "pool")
                + _fields(ctypes.c_int64, "page_stride layer_offset head_offset side_offset"))


class Shape(ctypes.Structure):
    _fields_ = (_fields(ctypes.c_size_t, "struct_size") + _fields(ctypes.c_int32, "n_seqs n_kv_heads group head_dim")
                + _fields(ctypes.c_float, "softmax_scale") + _fields(ctypes.c_char_p, "key_format value_format"))


class Lengths(ctypes.Structure):
    _fields_ = (_fields(ctypes.c_size_t, "struct_size")
                + _fields(ctypes.c_void_p, "sealed_pages tail_tokens protected_tokens")
                + _fields(ctypes.c_int64, "protected_seq_stride protected_head_stride"))


class Layer(ctypes.Structure):
    _fields_ = (_fields(ctypes.c_size_t, "struct_size") + _fields(ctypes.c_int32, "layer")
                + _fields(Pages, "sealed tail side") + _fields(ctypes.c_int32, "sink") + _fields(ctypes.c_void_p, "masks")
                + _fields(ctypes.c_int64, "mask_seq_stride mask_head_stride")
                + _fields(ctypes.c_void_p, "key_codebooks value_codebooks")
                + _fields(ctypes.c_int64, "key_codebook_stride value_codebook_stride")
                + _fields(ctypes.c_void_p, "q") + _fields(ctypes.c_int64, "q_seq_stride q_head_stride")
                + _fields(ctypes.c_void_p, "out") + _fields(ctypes.c_int, "out_type")
                + _fields(ctypes.c_int64, "out_seq_stride out_head_stride") + _fields(ctypes.c_int32, "settled")
                + _fields(ctypes.c_void_p, "lse"))


class NewRows(ctypes.Structure):
    _fields_ = (_fields(ctypes.c_size_t, "struct_size") + _fields(ctypes.c_int32, "n_rows")
                + _fields(ctypes.c_void_p, "seq tail_token keys") + _fields(ctypes.c_int64, "key_row_stride key_head_stride")
                + _fields(ctypes.c_void_p, "values") + _fields(ctypes.c_int64, "value_row_stride value_head_stride")
                + _fields(ctypes.c_void_p, "key_factors value_factors")
                + _fields(ctypes.c_int32, "key_hadamard value_hadamard"))


class SealRange(ctypes.Structure):
    _fields_ = (_fields(ctypes.c_size_t, "struct_size") + _fields(ctypes.c_void_p, "tail_page sealed_page n_pages")
                + _fields(ctypes.c_int32, "max_pages"))


class Dequantization(ctypes.Structure):
    _fields_ = (_fields(ctypes.c_size_t, "struct_size") + _fields(ctypes.c_int32, "n_seqs") + _fields(ctypes.c_void_p, "seqs")
                + _fields(ctypes.c_int32, "first_page n_pages first_head n_heads") + _fields(ctypes.c_void_p, "keys values")
                + _fields(ctypes.c_int64, "seq_stride token_stride head_stride"))


class Partial(ctypes.Structure):
    _fields_ = (_fields(ctypes.c_size_t, "struct_size") + _fields(ctypes.c_void_p, "out") + _fields(ctypes.c_int, "out_type")
                + _fields(ctypes.c_int64, "seq_stride token_stride head_stride") + _fields(ctypes.c_void_p, "lse")
                + _fields(ctypes.c_int64, "lse_seq_stride lse_token_stride lse_head_stride"))


def made(kind, **members):
    """A structure with its size and these members set; tensors become their addresses, and must be kept alive."""
    result = kind(**{name: x.data_ptr() if isinstance(x, torch.Tensor) else x for name, x in members.items()})
    if hasattr(result, "struct_size"):
        result.struct_size = ctypes.sizeof(kind)
    return result


class Library:
    def __init__(self, path="build/cuda/libkvant_cuda.so"):
        self._library = ctypes.CDLL(path)
        self._library.kvant_page_bytes.restype = ctypes.c_size_t
        self._library.kvant_status_text.restype = ctypes.c_char_p
        self._library.kvant_decode_kernel.restype = ctypes.c_char_p

    def page_bytes(self, name, head_dim):
        """Of a page of the format called `name`; 0 if no kernel reads it."""
        return self._library.kvant_page_bytes(ctypes.c_char_p(name.encode()), head_dim)

    def decode_kernel(self, shape):
        return (self._library.kvant_decode_kernel(ctypes.byref(shape)) or b"").decode()

    def call(self, name, *arguments):
        """kvant_`name` on the current stream: structures go by reference, tensors as their addresses."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = getattr(self._library, "kvant_" + name)(*map(self._argument, arguments), stream)
        if status != 0:
            sys.exit(f"kvant_{name}: {self._library.kvant_status_text(status).decode()}")

    def decode_workspace(self, shape):
        """Workspace for a shape, as the two arguments that calls take."""
        size = ctypes.c_size_t()
        if self._library.kvant_decode_workspace(ctypes.byref(shape), ctypes.byref(size)) != 0:
            sys.exit("kvant_decode_workspace: invalid shape")
        return torch.empty(size.value, dtype=torch.uint8, device="cuda"), size

    @staticmethod
    def _argument(x):
        if isinstance(x, torch.Tensor):
            return ctypes.c_void_p(x.data_ptr())
        return ctypes.byref(x) if isinstance(x, ctypes.Structure) else x


def page_pool(table, key_bytes, value_bytes):
    """Zeroed pages for all entries [seq][head][page] of a table, a key page and its value page side by side: the
    pool, and the structure that describes both."""
    stride = key_bytes + value_bytes
    pool = torch.zeros(table.numel() * stride, dtype=torch.uint8, device="cuda")
    return pool, made(Pages, table=table, seq_stride=table.stride(0), head_stride=table.stride(1), pool=pool,
                      page_stride=stride, side_offset=key_bytes)
