"""Feature columns of a store, so that training needs no encoder. Arrays in, arrays out.

    encoder = FrozenTextEncoder.open(place, None, length, device, knob="--encode-text")
    longest = longest_caption(encoder, captions)
    columns = text_columns(encoder, some_captions, longest)     # batch by batch

Type and shape of a row are in `text_shapes` and `image_shapes`. The same items give the same columns: bit by bit on the
CPU, and on a GPU in the same batches.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ditlab.encoders.image import FrozenImageEncoder
from ditlab.encoders.text import FrozenTextEncoder
from ditlab.errors import UserError

Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape of a row, by column."""
CAPTIONS_AT_A_TIME = 4096
"""Captions that are tokenised together."""


def encoding_device() -> torch.device:
    """Return the device that columns are computed on: a GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def longest_caption(
    encoder: FrozenTextEncoder, captions: Sequence[str], progress: Callable[[int], None] = lambda num: None
) -> int:
    """Return the tokens of the longest caption, at most the encoder's length: the length of every row's `text`.

    `progress` gets the number of captions that are done.
    """
    longest = 0
    for start in range(0, len(captions), CAPTIONS_AT_A_TIME):
        longest = max(longest, *encoder.num_tokens(captions[start : start + CAPTIONS_AT_A_TIME]))
        progress(min(start + CAPTIONS_AT_A_TIME, len(captions)))
    return longest


def text_shapes(encoder: FrozenTextEncoder, longest: int) -> Shapes:
    """Return the columns of captions of at most `longest` tokens."""
    return {
        "text": ("float16", (longest, encoder.width)),
        "text_mask": ("bool", (longest,)),
        "text_pooled": ("float32", (encoder.width,)),
    }


def text_columns(encoder: FrozenTextEncoder, captions: Sequence[str], longest: int) -> dict[str, np.ndarray]:
    """Compute the columns of some captions, none of which has more than `longest` tokens once cut.

    Raises UserError for a feature that is not finite in its column's type.
    """
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
    pixels = torch.from_numpy(images).float().div(127.5).sub(1)
    return _columns(
        {"image_features": encoder.encode(pixels)}, image_shapes(encoder, *images.shape[2:]), "image encoder"
    )


def _columns(features: dict[str, Tensor], shapes: Shapes, source: str) -> dict[str, np.ndarray]:
    columns = {}
    for name, (dtype, shape) in shapes.items():
        values = features[name].to(getattr(torch, dtype)).cpu()
        assert values.shape[1:] == shape, f"{name} {tuple(values.shape[1:])} is not {shape}"
        if not torch.isfinite(values).all():
            cause = (
                "the checkpoint is damaged" if not torch.isfinite(features[name]).all() else "they are beyond its range"
            )
            raise UserError(
                f"the {source} gives {name} that is NaN or infinite in {dtype} ({cause}); name another checkpoint, or "
                "encode in the step (encoders.text, encoders.image)."
            )
        columns[name] = values.numpy()
    return columns
