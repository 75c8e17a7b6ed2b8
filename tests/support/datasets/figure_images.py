"""Images of which figures are measured, and the fields that name a network for it."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def hash_of(folder: Path) -> str:
    """Return the SHA-256 of a network's weights."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def asked(kind: str, folder: Path, **fields: Any) -> dict[str, Any]:
    """Return an entry of `evaluation.features`."""
    return {"kind": kind, "weights": str(folder), "sha256": hash_of(folder), **fields}


def images_of(num: int, seed: int = 0, level: float = 1.0) -> Tensor:
    """Return blotches of 4 pixels, (num, 3, 16, 16) in [-1, 1]."""
    small = torch.rand(num, 3, 4, 4, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return level * small.repeat_interleave(4, 2).repeat_interleave(4, 3)
