"""One worker's part of the state as a safetensors file, written and hashed in one pass.

The format: eight bytes of header length, a JSON header, the tensors' bytes one after the other
(safetensors reads and checks it). The library's own writer takes a path and no stream, and its file
would have to be read again for its hash.
"""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

CHUNK = 8 << 20
"""Bytes written at a time: one part of an upload, and few enough to stay in a processor's cache for
the hash.
"""

TensorKey = tuple[str, str, int]
"""(field, name, start)."""

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def encode_header(tensors: Sequence[tuple[TensorKey, Tensor]]) -> bytes:
    """The bytes of the file before the tensors' bytes."""
    entries = header_entries(
        (f"{field}/{name}/{start}", tensor.reshape(-1)) for (field, name, start), tensor in tensors
    )
    assert len(entries) == len(tensors), "two tensors of one name"
    return with_length(json.dumps(entries, separators=(",", ":")).encode())


def header_entries(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Any]:
    """Return the entry of each named tensor in the header; their bytes follow one another in this
    order.
    """
    entries = {}
    offset = 0
    for name, tensor in tensors:
        end = offset + tensor.nbytes
        entries[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    return entries


def with_length(header: bytes) -> bytes:
    """Return the bytes of the file before the tensors' bytes: the length of a header, and the
    header.
    """
    header += b" " * (-len(header) % 8)  # the tensors' bytes start at a multiple of eight
    return len(header).to_bytes(8, "little") + header


def raw_bytes(tensor: Tensor) -> memoryview:
    """View the bytes of a tensor on the host."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def is_finite(tensor: Tensor) -> bool:
    """Return True if a tensor holds neither NaN nor an infinity."""
    if not tensor.dtype.is_floating_point or tensor.numel() == 0:
        return True
    if tensor.is_cuda or tensor.dtype == torch.bfloat16:
        return all(map(math.isfinite, (float(end) for end in torch.aminmax(tensor))))
    # numpy uses one thread; torch would take the threads of the step loop. Both ends are NaN where
    # one value is, and no mask of the tensor's size is made.
    values = tensor.detach().reshape(-1).numpy()
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(values.min()) and np.isfinite(values.max()))
