"""Image files that sampling starts from, and image files of samples, which carry their settings."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from denoisers.contract import Picture
from ditlab.data.images.decoding import BROKEN, FORMATS, MAX_PIXELS, TooManyPixels, in_rgb, open_picture
from ditlab.errors import UserError
from ditlab.storage.files import write_whole

PREFIX = "ditlab."
"""Prefix of the keys of a PNG's texts."""


def start_image(path: Path, size: tuple[int, int]) -> Tensor:
    """Read a picture as (3, height, width) float32 in [-1, 1], scaled to cover `size` and cropped around its centre.

    Raises UserError for a file that is no picture.
    """
    height, width = size
    try:
        with warnings.catch_warnings(action="ignore"), open_picture(path) as image:
            fitted = ImageOps.fit(in_rgb(ImageOps.exif_transpose(image)), (width, height), Image.Resampling.LANCZOS)
    except TooManyPixels as error:
        raise UserError(f"--start {path} has {error}, and at most {MAX_PIXELS:,} are read; scale it down.") from error
    except BROKEN as error:
        reason = getattr(error, "strerror", None) or f"no picture in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise UserError(f"--start {path} cannot be read ({reason}); name another picture.") from error
    pixels = torch.from_numpy(np.asarray(fitted, dtype=np.float32).transpose(2, 0, 1).copy())
    return pixels / 127.5 - 1


def save_pictures(pictures: Sequence[Picture], origin: Mapping[str, str], folder: Path) -> Iterator[Path]:
    """Write `000.png`, `001.png`, ..., each with `origin` and its own settings as texts `ditlab.KEY`.

    Raises OSError where the disk refuses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digits = max(3, len(str(len(pictures) - 1)))
    for number, picture in enumerate(pictures):
        texts = PngInfo()
        for name, text in {**origin, **picture.settings}.items():
            texts.add_itxt(PREFIX + name, text)
        content = BytesIO()
        Image.fromarray(picture.pixels).save(content, format="PNG", pnginfo=texts)
        yield write_whole(folder / f"{number:0{digits}d}.png", content.getvalue())
