"""Digest of a tensor."""

import hashlib

import torch
from torch import Tensor


def tensor_digest(values: Tensor) -> str:
    """Return a digest of a tensor's dtype and bytes."""
    raw = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(raw, digest_size=8, person=str(values.dtype)[-16:].encode()).hexdigest()
