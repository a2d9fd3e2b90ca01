"""The files of the golden data: a minimal safetensors reader/writer, the token-file
and label-file formats, and JSON as it is laid out here. Needs only numpy.
"""
import json
import struct

import numpy as np

FORMAT_VERSION = 1
TOKENS_MAGIC = 20240520
TOKENS_VERSION = 1
HEADER_INTS = 256


# --------------------------------------------------------------------------
# safetensors
# --------------------------------------------------------------------------
_NP_OF = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8"),
          "I32": np.dtype("<i4"), "I64": np.dtype("<i8"),
          "BF16": np.dtype("<u2")}


def f32_to_bf16_bits(a):
    """float32 array -> uint16 bfloat16 bits, round to nearest, ties to even."""
    a = np.ascontiguousarray(a, dtype="<f4")
    if not np.all(np.isfinite(a)):
        raise ValueError("non-finite value in BF16 conversion")
    u = a.view("<u4").astype(np.uint64)
    u = u + np.uint64(0x7FFF) + ((u >> np.uint64(16)) & np.uint64(1))
    return (u >> np.uint64(16)).astype("<u2")


def bf16_bits_to_f32(bits):
    u = np.ascontiguousarray(bits, dtype="<u2").astype("<u4") << np.uint32(16)
    return u.astype("<u4").view("<f4")


def save_safetensors(path, tensors, dtype="F32", metadata=None):
    """tensors: {name: numpy array}. Floating arrays are stored as `dtype`
    ("F32" or "BF16"; float64 arrays stay F64 only when dtype is "F64"),
    int32/int64 arrays as I32/I64. Tensors are written in sorted name order,
    back to back, with no gaps."""
    header, blobs, off = {}, [], 0
    if metadata:
        header["__metadata__"] = {str(k): str(v) for k, v in metadata.items()}
    for name in sorted(tensors):
        a = np.asarray(tensors[name])
        if a.dtype.kind == "f":
            if dtype == "BF16":
                kind, raw = "BF16", f32_to_bf16_bits(a.astype("<f4")).tobytes()
            else:
                kind, raw = dtype, np.ascontiguousarray(a, dtype=_NP_OF[dtype]).tobytes()
        elif a.dtype == np.int32:
            kind, raw = "I32", np.ascontiguousarray(a, dtype="<i4").tobytes()
        elif a.dtype == np.int64:
            kind, raw = "I64", np.ascontiguousarray(a, dtype="<i8").tobytes()
        else:
            raise TypeError("unsupported dtype %s for %s" % (a.dtype, name))
        header[name] = {"dtype": kind, "shape": [int(d) for d in a.shape],
                        "data_offsets": [off, off + len(raw)]}
        off += len(raw)
        blobs.append(raw)
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for raw in blobs:
            f.write(raw)


def load_safetensors(path, raw_bf16=False):
    """-> ({name: numpy array}, metadata). BF16 is widened to float32 unless
    raw_bf16 is set. Checks the whole layout."""
    with open(path, "rb") as f:
        blob = f.read()
    if len(blob) < 8:
        raise ValueError("file too short")
    (hlen,) = struct.unpack("<Q", blob[:8])
    if 8 + hlen > len(blob) or hlen % 8:
        raise ValueError("bad header length %d" % hlen)
    header = json.loads(blob[8:8 + hlen].decode("utf-8"))
    meta = header.pop("__metadata__", {})
    data = memoryview(blob)[8 + hlen:]
    out, spans = {}, []
    for name, info in header.items():
        a, b = info["data_offsets"]
        n = 1
        for d in info["shape"]:
            n *= d
        dt = _NP_OF[info["dtype"]]
        if not (0 <= a <= b <= len(data)) or b - a != n * dt.itemsize:
            raise ValueError("bad offsets for " + name)
        spans.append((a, b))
        arr = np.frombuffer(data[a:b], dtype=dt)
        if info["dtype"] == "BF16" and not raw_bf16:
            arr = bf16_bits_to_f32(arr)
        out[name] = arr.reshape(info["shape"]).copy()
    pos = 0
    for a, b in sorted(spans):
        if a != pos:
            raise ValueError("gap or overlap in data")
        pos = b
    if pos != len(data):
        raise ValueError("trailing bytes")
    return out, meta


# --------------------------------------------------------------------------
# token and label files
# --------------------------------------------------------------------------
def save_tokens(path, tokens):
    t = np.asarray(tokens)
    if t.ndim != 1 or t.min() < 0 or t.max() > 65535:
        raise ValueError("tokens do not fit in uint16")
    h = np.zeros(HEADER_INTS, dtype="<i4")
    h[0], h[1], h[2] = TOKENS_MAGIC, TOKENS_VERSION, len(t)
    with open(path, "wb") as f:
        f.write(h.tobytes())
        f.write(t.astype("<u2").tobytes())


def load_tokens(path):
    with open(path, "rb") as f:
        blob = f.read()
    h = np.frombuffer(blob[:4 * HEADER_INTS], dtype="<i4")
    if h[0] != TOKENS_MAGIC or h[1] != TOKENS_VERSION:
        raise ValueError("bad token file header")
    t = np.frombuffer(blob[4 * HEADER_INTS:], dtype="<u2")
    if len(t) != h[2]:
        raise ValueError("token count mismatch")
    return t.astype(np.int64)


def save_labels(path, labels):
    np.asarray(labels).astype("<i4").tofile(path)


def load_labels(path):
    return np.fromfile(path, dtype="<i4").astype(np.int64)


# --------------------------------------------------------------------------
# JSON
# --------------------------------------------------------------------------
def compact(v):
    return json.dumps(v, separators=(",", ":"), allow_nan=False)


def dump(path, obj):
    """One top-level key per line; dictionaries of dictionaries (or of many
    entries) one entry per line. Floats are written by repr (round-trip exact)."""
    rows = []
    for k, v in obj.items():
        if isinstance(v, dict) and len(v) > 16:
            body = ",\n".join("%s:%s" % (json.dumps(a), compact(b)) for a, b in v.items())
            rows.append("%s: {\n%s}" % (json.dumps(k), body))
        else:
            rows.append("%s: %s" % (json.dumps(k), compact(v)))
    with open(path, "w") as f:
        f.write("{\n" + ",\n".join(rows) + "\n}\n")
