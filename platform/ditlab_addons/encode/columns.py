"""Columns of frozen encoders: their types and shapes, and the rows that the encoders give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ditlab.encoders.autoencoder import FrozenAutoencoder
from ditlab.encoders.image import FrozenImageEncoder
from ditlab.encoders.text import FrozenTextEncoder
from ditlab.errors import UserError
from ditlab.spec.encoders import LATENTS

Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape of a row, by column."""


def text_shapes(encoder: FrozenTextEncoder, longest: int) -> Shapes:
    """Return the columns of captions of at most `longest` tokens."""
    return {
        "text": ("float16", (longest, encoder.width)),
        "text_mask": ("bool", (longest,)),
        "text_pooled": ("float32", (encoder.width,)),
    }


def text_columns(encoder: FrozenTextEncoder, captions: Sequence[str], longest: int) -> dict[str, np.ndarray]:
    """Compute columns of captions, at most `longest` tokens each. Raises UserError for features that are not finite."""
    features = encoder.encode(captions)
    behind = longest - features["text"].shape[1]
    features["text"] = pad(features["text"], (0, 0, 0, behind))
    features["text_mask"] = pad(features["text_mask"], (0, behind))
    return _columns(features, text_shapes(encoder, longest), "text encoder")


def image_shapes(encoder: FrozenImageEncoder, height: int, width: int) -> Shapes:
    """Return the columns of images of a size in pixels."""
    num_patches = (height // encoder.patch) * (width // encoder.patch)
    return {"image_features": ("float16", (num_patches, encoder.width))}


def image_columns(encoder: FrozenImageEncoder, images: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the column of images (num, 3, H, W) uint8. Raises UserError for a feature not finite in float16."""
    features = encoder.encode(torch.from_numpy(images).float().div(127.5).sub(1))
    return _columns({"image_features": features}, image_shapes(encoder, *images.shape[2:]), "image encoder")


def latent_shapes(encoder: FrozenAutoencoder, height: int, width: int) -> Shapes:
    """Return the column of latents of images of a size in pixels."""
    return {LATENTS: ("float32", (2 * encoder.channels, height // encoder.pixels, width // encoder.pixels))}


def latent_columns(encoder: FrozenAutoencoder, images: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the column of images (num, 3, H, W) uint8. Raises UserError for a latent that is not finite."""
    moments = encoder.encode(torch.from_numpy(images).float().div(127.5).sub(1))
    return _columns({LATENTS: moments}, latent_shapes(encoder, *images.shape[2:]), "autoencoder")


def _columns(features: dict[str, Tensor], shapes: Shapes, source: str) -> dict[str, np.ndarray]:
    columns = {}
    for name, (dtype, shape) in shapes.items():
        values = features[name].to(getattr(torch, dtype)).cpu()
        assert values.shape[1:] == shape, f"{name} {tuple(values.shape[1:])} is not {shape}"
        if not torch.isfinite(values).all():
            damaged = not torch.isfinite(features[name]).all()
            cause = "the checkpoint is damaged" if damaged else "they are beyond its range"
            raise UserError(
                f"the {source} gives {name} that is NaN or infinite in {dtype} ({cause}); name another checkpoint, or "
                "encode in the step (encoders.text, encoders.image)."
            )
        columns[name] = values.numpy()
    return columns
