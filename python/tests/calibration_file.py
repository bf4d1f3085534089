"""Writes calibration files as docs/guide/calibration-methods.md describes them, without using the engine."""

import struct

import numpy as np

# GGUF's numbers for the types of values follow.
TEXT, ARRAY, I32, I64 = 8, 9, 5, 11
# F32 is GGUF's number for tensors of F32.
F32 = 0
ALIGNMENT = 32
VERSION, ALGORITHM = 2, 8


def length_and_text(x):
    return struct.pack("<Q", len(x.encode())) + x.encode()


def _pair(key, value):
    if isinstance(value, str):
        return length_and_text(key) + struct.pack("<I", TEXT) + length_and_text(value)
    if isinstance(value, int):
        return length_and_text(key) + struct.pack("<Iq", I64, value)
    return length_and_text(key) + struct.pack("<IIQ", ARRAY, I32, len(value)) + np.asarray(value, "<i4").tobytes()


def aligned(x):
    return x + b"\0" * (-len(x) % ALIGNMENT)


def _sealed(x):
    """Returns the bytes followed by their FNV-1a hash of 64 bits."""
    h = 0xCBF29CE484222325
    for byte in x:
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return x + struct.pack("<Q", h)


def write(path, constants, fingerprint="0123456789abcdef", model="a tiny model"):
    """Writes a file. `constants` is {(layer, KV head, side, name): numbers}."""
    names = sorted({name for *_, name in constants})
    about = {"version": VERSION, "model": model, "fingerprint": fingerprint, "text_hash": 0, "algorithm": ALGORITHM, "recipes": "",
             "names": "".join(name + "\n" for name in names), "layer": [x[0] for x in constants], "kv_head": [x[1] for x in constants],
             "side": [x[2] for x in constants], "name": [names.index(x[3]) for x in constants]}
    pairs = {"general.type": "kvant-calibration"} | {f"kvant.calibration.{key}": value for key, value in about.items()}
    infos, data = b"", b""
    for i, numbers in enumerate(constants.values()):
        infos += length_and_text(str(i)) + struct.pack("<IQIQ", 1, np.size(numbers), F32, len(data))
        data = aligned(data + np.asarray(numbers, "<f4").tobytes())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(constants), len(pairs)) + b"".join(_pair(*pair) for pair in pairs.items())
    path.write_bytes(_sealed(aligned(head + infos) + data))
