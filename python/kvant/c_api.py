"""Declares the structures and functions of include/kvant/kvant.h under the names of the header. The header describes
their members."""

from __future__ import annotations

import ctypes
import pathlib

BF16, F32, F16 = 0, 1, 2  # kvant_type
KEY, VALUE = 0, 1  # kvant_side
# These are the bits of kvant_feature.
SEALING, SEALED_ROWS, PROTECTION, CORRECTION, SLIDING_WINDOW, SINK_LOGITS, EVICTION, INTEGER_PROMPTS, HALF_PROMPTS = (1 << i for i in range(9))
# MAJOR_VERSION and MINOR_VERSION make up KVANT_VERSION. Libraries with a later minor version work too.
MAJOR_VERSION, MINOR_VERSION = 1, 0

_pointer, _int, _long, _float, _text = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float,
                                        ctypes.c_char_p)


def _fields(*groups):
    """Takes a type and "names of members" in turn, and returns the pairs that ctypes expects."""
    return [(name, kind) for kind, names in groups for name in names.split()]


# ctypes accepts values of the types in _PLAIN as they are.
_PLAIN = frozenset((int, float, bool, bytes, type(None)))


class Struct(ctypes.Structure):
    """Mirrors a structure of the C API. The constructor sets the member `struct_size` if the structure has one."""

    c_name: str
    _kinds: dict[str, type]  # types of the members

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls._kinds = dict(cls._fields_)

    def __init__(self, **members):
        """Takes members by name. For anything that has an address (a tensor's `data_ptr`, a structure), the address is
        stored, and the object lives as long as this structure. A layer makes a dozen structures in each step, so this
        function must be fast."""
        kinds, values = self._kinds, members.copy()
        for name, x in members.items():
            if name not in kinds:
                raise TypeError(f"{self.c_name} has no member {name}")
            if type(x) in _PLAIN:
                continue
            if hasattr(x, "data_ptr"):
                values[name] = x.data_ptr()
            elif kinds[name] is _pointer and isinstance(x, ctypes.Structure):
                values[name] = ctypes.addressof(x)
        if "struct_size" in kinds:
            values["struct_size"] = ctypes.sizeof(self)
        super().__init__(**values)
        self._members = members


class Pages(Struct):
    c_name = "kvant_pages"
    _fields_ = _fields((_pointer, "table"), (_long, "seq_stride layer_stride head_stride side_stride"),
                       (_pointer, "pool"), (_long, "page_stride layer_offset head_offset side_offset"))


class Shape(Struct):
    c_name = "kvant_decode_shape"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_int, "n_seqs n_kv_heads group head_dim"),
                       (_float, "softmax_scale"), (_text, "key_format value_format"), (_int, "corrected"),
                       (_pointer, "head_key_formats head_value_formats"), (_int, "sas"), (_float, "skip_threshold score_softcap"),
                       (_int, "max_queries"), (_text, "kernels"))


class Lengths(Struct):
    c_name = "kvant_decode_lengths"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_pointer, "sealed_pages tail_tokens protected_tokens"),
                       (_long, "protected_seq_stride protected_head_stride"), (_pointer, "first_tokens"),
                       (_int, "max_tail_tokens max_sealed_pages"), (_pointer, "query_begins"))


class Correction(Struct):
    c_name = "kvant_correction"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_pointer, "query_maps key_maps states"),
                       (_long, "state_seq_stride state_head_stride"), (_pointer, "state_of_seq"), (_int, "absolute reserved"),
                       (_long, "state_page_stride"))


class Layer(Struct):
    c_name = "kvant_decode_layer"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_int, "layer"), (Pages, "sealed tail protected_pages"),
                       (_int, "sink"), (_pointer, "masks"), (_long, "mask_seq_stride mask_head_stride"),
                       (_pointer, "key_codebooks value_codebooks"),
                       (_long, "key_codebook_stride value_codebook_stride"), (_pointer, "q"),
                       (_long, "q_seq_stride q_head_stride"), (_pointer, "out"), (ctypes.c_int, "out_type"),
                       (_long, "out_seq_stride out_head_stride"), (_int, "settled"), (_pointer, "lse correction"),
                       (_int, "reproducible"), (_pointer, "skip_counts pages_out_of_range sink_logits"),
                       (ctypes.c_int, "q_type"), (_int, "out_hadamard"),
                       (_pointer, "out_factors key_metrics sealed_offsets new_rows"), (_int, "q_channels out_channels"))


class NewRows(Struct):
    c_name = "kvant_new_rows"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_int, "n_rows"), (_pointer, "seq tail_token keys"),
                       (_long, "key_row_stride key_head_stride"), (_pointer, "values"),
                       (_long, "value_row_stride value_head_stride"), (_pointer, "key_factors value_factors"),
                       (_int, "key_hadamard value_hadamard"), (ctypes.c_int, "type"), (_int, "rows_reserved"),
                       (_pointer, "queries"), (_long, "query_row_stride query_head_stride"), (_pointer, "query_factors"),
                       (_int, "key_channels value_channels"))


class SealRange(Struct):
    c_name = "kvant_seal_range"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_pointer, "tail_page sealed_page n_pages"),
                       (_int, "max_pages reserved"), (_pointer, "page_metrics"), (_int, "n_layers keep_sink"),
                       (_pointer, "layer_offsets rows first_rows"))


class PageMetrics(Struct):
    c_name = "kvant_page_metrics"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_pointer, "directions turns basis"),
                       (_long, "basis_head_stride direction_layer_stride turn_layer_stride"), (_pointer, "first_pages"))


class Dequantization(Struct):
    c_name = "kvant_dequantization"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_int, "n_seqs"), (_pointer, "seqs"),
                       (_int, "first_page n_pages first_head n_heads"), (_pointer, "keys values"),
                       (_long, "seq_stride token_stride head_stride"),
                       (_pointer, "first_pages page_counts row_begins key_factors value_factors"),
                       (_int, "key_hadamard value_hadamard"), (ctypes.c_int, "type"), (_int, "channels"))


class Partial(Struct):
    c_name = "kvant_partial"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_pointer, "out"), (ctypes.c_int, "out_type"),
                       (_long, "seq_stride token_stride head_stride"), (_pointer, "lse"),
                       (_long, "lse_seq_stride lse_token_stride lse_head_stride"))


class Transformation(Struct):
    c_name = "kvant_transformation"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_int, "n_rows n_heads head_dim"), (_pointer, "rows"),
                       (ctypes.c_int, "type"), (_long, "row_stride head_stride"), (_pointer, "factors factors_after"),
                       (_int, "heads_of_factors hadamard"), (_pointer, "source"),
                       (_long, "source_row_stride source_head_stride"),
                       (_int, "source_is_bf16 source_is_f32 source_is_f16 source_channels row_channels reserved"))


class PromptShape(Struct):
    c_name = "kvant_prompt_shape"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_int, "n_seqs n_heads n_kv_heads head_dim n_queries n_tokens"),
                       (_float, "softmax_scale"), (_int, "causal window sas half n_sealed_pages half_products"),
                       (_float, "score_softcap"), (_int, "corrected n_kept_tokens"), (_text, "kernels"))


class PromptPages(Struct):
    c_name = "kvant_prompt_pages"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"),
                       (_pointer, "shape layer sealed_begins query_sealed_pages first_row_tokens"))


class Prompt(Struct):
    c_name = "kvant_prompt"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_pointer, "query_begins token_begins q"),
                       (_long, "q_token_stride q_head_stride"), (_pointer, "k"), (_long, "k_token_stride k_head_stride"),
                       (_pointer, "v"), (_long, "v_token_stride v_head_stride"), (_pointer, "out"),
                       (_long, "out_token_stride out_head_stride"), (_pointer, "lse"),
                       (_long, "lse_token_stride lse_head_stride"), (_pointer, "pages"), (ctypes.c_int, "q_type out_type"),
                       (_pointer, "sink_logits"), (_int, "q_hadamard out_hadamard"), (_pointer, "correction"))


class TokenWeights(Struct):
    c_name = "kvant_token_weights"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_int, "n_queries n_tokens n_visible"), (ctypes.c_int, "q_type"),
                       (_pointer, "q"), (_long, "q_token_stride q_head_stride"), (_pointer, "lse"),
                       (_long, "lse_token_stride lse_head_stride"), (_pointer, "keys"),
                       (_long, "key_token_stride key_head_stride"), (_pointer, "weights"), (_long, "weight_head_stride"),
                       (_pointer, "found_lse"))


class ProtectedRows(Struct):
    c_name = "kvant_protected_rows"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_int, "n_rows reserved"),
                       (_pointer, "seq head tail_token protected_token"))


class StepTable(Struct):
    c_name = "kvant_step_table"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_pointer, "blocks"), (_long, "block_stride"), (_pointer, "places"),
                       (_int, "ring n_entries units n_pages"), (_pointer, "table"), (_int, "pages_of_block page_units"))


class Step(Struct):
    c_name = "kvant_step"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"),
                       (_int, "n_requests max_new_tokens max_queries n_seqs n_rows window sliding_window sink"),
                       (_pointer, "seq_lens query_begins slots sealed_before"),
                       (_pointer, "sealed_pages tail_tokens protected_tokens first_tokens part_begins"),
                       (_pointer, "row_seq row_tail_token"),
                       (_pointer, "due_tail_page due_sealed_page n_due_pages sealed_after"),
                       (_pointer, "sealed tail protected_pages"))


class Plan(Struct):
    c_name = "kvant_plan"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_pointer, "shape"), (_text, "tail_format"),
                       (ctypes.c_uint32, "features reserved"))


class Limits(Struct):
    c_name = "kvant_limits"
    _fields_ = _fields((ctypes.c_size_t, "struct_size"), (_int, "max_kv_heads max_group max_queries max_format_pairs"),
                       (ctypes.c_uint32, "features reserved"))


STRUCTS: tuple[type[Struct], ...] = (Pages, Shape, Lengths, Correction, Layer, NewRows, SealRange, PageMetrics, Dequantization,
                                     Partial, Transformation, PromptShape, PromptPages, Prompt, TokenWeights,
                                     ProtectedRows, StepTable, Step, Plan, Limits)


class KvantError(RuntimeError):
    """Reports that a call of the library failed, with the name of the call, the status as a number and the reason. The
    reason says which argument is wrong and what it must be."""

    def __init__(self, function: str, status: int, reason: str):
        super().__init__(f"{function}: {reason}")
        self.function, self.status, self.reason = function, status, reason


def library_candidates(device: str = "cuda") -> list[pathlib.Path]:
    """Returns the paths at which the library of a device, `cuda` or `cpu`, is searched. The package comes first, then
    the build folders of the source tree around the package."""
    package, name = pathlib.Path(__file__).resolve().parent, f"libkvant_{device}.so"
    root = package.parents[1]
    return [package / "lib" / name, root / "build" / "cuda" / name, root / "build" / "default" / name]


HOW_TO_GET = {"cuda": "`pip install . -Ccmake.define.KVANT_CUDA=ON` in kvant's source tree installs the package with it",
              "cpu": "`pip install .` in kvant's source tree installs the package with it"}


def find_library(device: str = "cuda") -> pathlib.Path:
    candidates = library_candidates(device)
    for path in candidates:
        if path.exists():
            return path
    raise FileNotFoundError(f"libkvant_{device}.so is neither at " + " nor at ".join(map(str, candidates))
                            + f": {HOW_TO_GET[device]} (docs/guide/python.md)")


class Library:
    """Calls the functions of libkvant_cuda or libkvant_cpu. A stream is the number of its cudaStream_t; on a CPU it is
    0."""

    device_type = "cuda"

    def __init__(self, path: str | pathlib.Path | None = None, device: str = "cuda"):
        """Loads the library at `path`, or the first of library_candidates() if `path` is None. `device` is `cuda` or
        `cpu`."""
        self.device_type = device
        self._library = ctypes.CDLL(str(path or find_library(device)))
        version = getattr(self._library, "kvant_version", None)
        if version is None:
            raise OSError(f"{self._library._name} is not a library of kvant's: it has no kvant_version")
        major, minor = divmod(version(), 1000)
        if major != MAJOR_VERSION or minor < MINOR_VERSION:
            raise OSError(f"{self._library._name} has version {major}.{minor} of the interface, and this package needs "
                          f"{MAJOR_VERSION}.{MINOR_VERSION}: install both from one release")
        self._library.kvant_page_bytes.restype = ctypes.c_size_t
        self._library.kvant_last_error.restype = ctypes.c_char_p
        self._library.kvant_decode_kernel.restype = ctypes.c_char_p

    @property
    def has_rows(self) -> bool:
        """Returns whether unquantized pages are rows in the order of tokens, and not in the order of tensor cores."""
        return self.device_type == "cpu"

    def check_device(self) -> None:
        """Raises KvantError with the reason if the kernels do not run on the current device."""
        self._check("check_device", self._library.kvant_check_device())

    def page_bytes(self, format: str, head_dim: int) -> int:
        """Returns the bytes of a page of one KV head and side, or 0 if no kernel reads the format at this head size."""
        return self._library.kvant_page_bytes(ctypes.c_char_p(format.encode()), head_dim)

    def can_seal(self, format: str) -> bool:
        return bool(self._library.kvant_can_seal(ctypes.c_char_p(format.encode())))

    def can_seal_rows(self, format: str) -> bool:
        """Returns whether pages of the format can be made of rows that are not in the tail."""
        return bool(self._library.kvant_can_seal_rows(ctypes.c_char_p(format.encode())))

    def decode_kernel(self, shape: Shape) -> str | None:
        """Returns the name of the kernel that serves a shape, such as cuda/sm90/tcq4+tcq4, or None if there is none."""
        name = self._library.kvant_decode_kernel(ctypes.byref(shape))
        return name.decode() if name else None

    def limits(self, plan: Plan) -> Limits:
        """Returns what the device has at most for a plan that it serves. Raises KvantError, which says what the device
        lacks, for any other."""
        limits = Limits()
        self._check("supports", self._library.kvant_supports(ctypes.byref(plan), ctypes.byref(limits)))
        return limits

    def workspace_bytes(self, shape: Shape) -> int:
        """Returns the bytes of workspace that a shape needs on the current device."""
        size = ctypes.c_size_t()
        self._check("decode_workspace", self._library.kvant_decode_workspace(ctypes.byref(shape), ctypes.byref(size)))
        return size.value

    def prompt_workspace_bytes(self, shape: PromptShape) -> int:
        """Returns the bytes of workspace that prompts of a shape need."""
        size = ctypes.c_size_t()
        self._check("prompt_workspace", self._library.kvant_prompt_workspace(ctypes.byref(shape), ctypes.byref(size)))
        return size.value

    def launch(self, name: str, stream: int, *arguments) -> None:
        """Calls kvant_`name`(arguments..., stream). Structures go by reference, numbers and addresses as they are."""
        converted = [ctypes.byref(x) if isinstance(x, ctypes.Structure) else x for x in arguments]
        self._check(name, getattr(self._library, "kvant_" + name)(*converted, ctypes.c_void_p(stream)))

    def _check(self, name: str, status: int) -> None:
        if status != 0:
            raise KvantError("kvant_" + name, status, self._library.kvant_last_error().decode())
