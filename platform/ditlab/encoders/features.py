"""Features as columns of a store, so that training needs no encoder. Arrays in, arrays out.

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
"""(type, shape of a row) by column."""
COUNTED = 4096  # captions tokenised together


def encoding_device() -> torch.device:
    """The device that columns are made on: a GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def longest_caption(
    encoder: FrozenTextEncoder, captions: Sequence[str], progress: Callable[[int], None] = lambda num: None
) -> int:
    """Tokens of the longest of all captions, at most the encoder's length: as many as every row's `text` then has.

    `progress` hears how many captions are done.
    """
    longest = 0
    for start in range(0, len(captions), COUNTED):
        longest = max(longest, *encoder.num_tokens(captions[start : start + COUNTED]))
        progress(min(start + COUNTED, len(captions)))
    return longest


def text_shapes(encoder: FrozenTextEncoder, longest: int) -> Shapes:
    return {
        "text": ("float16", (longest, encoder.width)),
        "text_mask": ("bool", (longest,)),
        "text_pooled": ("float32", (encoder.width,)),
    }


def text_columns(encoder: FrozenTextEncoder, captions: Sequence[str], longest: int) -> dict[str, np.ndarray]:
    """The columns of some captions, none of which has more than `longest` tokens once cut.

    Raises UserError for a feature that is not finite in its column's type.
    """
    made = encoder.encode(captions)
    behind = longest - made["text"].shape[1]
    made["text"] = pad(made["text"], (0, 0, 0, behind))
    made["text_mask"] = pad(made["text_mask"], (0, behind))
    return _columns(made, text_shapes(encoder, longest), "text encoder")


def image_shapes(encoder: FrozenImageEncoder, height: int, width: int) -> Shapes:
    num_patches = (height // encoder.patch) * (width // encoder.patch)
    return {"image_features": ("float16", (num_patches, encoder.width))}


def image_columns(encoder: FrozenImageEncoder, images: np.ndarray) -> dict[str, np.ndarray]:
    """The column of some images, (num, 3, H, W) uint8. Raises UserError for a feature that is not finite in float16."""
    pixels = torch.from_numpy(images).float().div(127.5).sub(1)
    return _columns(
        {"image_features": encoder.encode(pixels)}, image_shapes(encoder, *images.shape[2:]), "image encoder"
    )


def _columns(made: dict[str, Tensor], shapes: Shapes, source: str) -> dict[str, np.ndarray]:
    columns = {}
    for name, (dtype, shape) in shapes.items():
        values = made[name].to(getattr(torch, dtype)).cpu()
        assert values.shape[1:] == shape, f"{name} {tuple(values.shape[1:])} is not {shape}"
        if not torch.isfinite(values).all():
            cause = "the checkpoint is damaged" if not torch.isfinite(made[name]).all() else "they are beyond its range"
            raise UserError(
                f"the {source} gives {name} that are no numbers in {dtype} ({cause}); name another checkpoint, or "
                "encode in the step (encoders.text, encoders.image)."
            )
        columns[name] = values.numpy()
    return columns
