"""Coloured digits with captions, the smallest text-to-image data: scikit-learn's 8x8 digits, each in several colours.

A row's image and caption are functions of its digit, its class and its colour, so an image shows whether a model
follows its caption.
"""

from collections.abc import Iterator

import numpy as np

from ditlab.data.images.captions import CAPTION, caption_column, encode_captions
from ditlab.data.stores.manifest import MANIFEST_NAME, Column, Source
from ditlab.data.stores.store import Store
from ditlab.data.stores.written import write_store
from ditlab.home import Home
from ditlab.spec.data import CaptionedDigitsData

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
COLOURS = {
    "red": (1, 0, 0),
    "green": (0, 1, 0),
    "blue": (0, 0, 1),
    "yellow": (1, 1, 0),
    "cyan": (0, 1, 1),
    "magenta": (1, 0, 1),
    "white": (1, 1, 1),
}
"""Shares of red, green and blue in the ink; the ground is black."""
INK = 16
"""Largest value of scikit-learn's digits."""


def open_captioned_digits(spec: CaptionedDigitsData, home: Home, verify: bool = True) -> Store:
    """Open the spec's store under `home.stores`, written at its first use.

    Two processes may write it at once: they write the same files.

    Columns: image uint8 (3, size, size) in [0, 255], caption uint8 (bytes,) ("a red seven"), digit and colour int64.
    Rows: digit after digit as scikit-learn has them, each in `spec.colours` colours.
    """
    path = home.stores / f"captioned-digits-{spec.size}-{spec.colours}"
    if not (path / MANIFEST_NAME).exists():
        home.ensure()
        colours = tuple(COLOURS)[: spec.colours]
        longest = max(len(_caption(colour, digit)) for colour in colours for digit in DIGITS)
        pixels = Column(
            dtype="uint8",
            shape=(3, spec.size, spec.size),
            value_range=(0, 255),
            unit="pixel intensity",
            description="channel (red, green, blue), row, column",
        )
        columns = {
            "image": pixels,
            CAPTION: caption_column(longest),
            "digit": _classes("the digit", DIGITS),
            "colour": _classes("of the ink", colours),
        }
        write_store(
            path,
            columns,
            _batches(spec.size, colours, longest),
            name=path.name,
            description=f"1,797 digits of {spec.size}x{spec.size} pixels, each in {spec.colours} colours, captioned",
            source=Source(
                kind="captioned_digits",
                citation="E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI (1998), test part",
                license="CC BY 4.0 (UCI Machine Learning Repository)",
                note="embedded in scikit-learn (sklearn.datasets.load_digits); enlarged, coloured, captioned by ditlab",
            ),
        )
    return Store.open(path, verify)


def _classes(description: str, names: tuple[str, ...]) -> Column:
    return Column(dtype="int64", num_classes=len(names), unit="class index", description=description, names=names)


def _caption(colour: str, digit: str) -> bytes:
    return f"a {colour} {digit}".encode()


def _batches(size: int, colours: tuple[str, ...], caption_length: int) -> Iterator[dict[str, np.ndarray]]:
    from sklearn.datasets import load_digits

    data = load_digits()
    inks = np.array([COLOURS[colour] for colour in colours], np.uint8)  # (colours, 3)
    for image, label in zip(data.images, data.target, strict=True):
        shades = _enlarged(image / INK, size)
        captions = [_caption(colour, DIGITS[label]) for colour in colours]
        yield {
            "image": shades * inks[:, :, None, None],
            CAPTION: encode_captions(captions, caption_length),
            "digit": np.full(len(colours), label, np.int64),
            "colour": np.arange(len(colours)),
        }


def _enlarged(image: np.ndarray, size: int) -> np.ndarray:
    """Enlarge an image with values in [0, 1] to (size, size) by bicubic interpolation, uint8."""
    from PIL import Image

    smooth = Image.fromarray(image.astype(np.float32)).resize((size, size), Image.Resampling.BICUBIC)
    return (np.asarray(smooth) * 255).round().clip(0, 255).astype(np.uint8)
