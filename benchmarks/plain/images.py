"""An import of photographs as a loop of a few lines: decoded, scaled, written into one array, on
the disk at the end.

python benchmarks/plain/images.py SOURCE TARGET.npy WIDTH HEIGHT
"""

import os
import sys
from pathlib import Path

import numpy as np
from PIL import Image


def main(source: str, target: str, width: int, height: int) -> None:
    files = sorted(Path(source).glob("*.jpg"))
    images = np.lib.format.open_memmap(target, "w+", np.uint8, (len(files), 3, height, width))
    captions = []
    for number, file in enumerate(files):
        with Image.open(file) as image:
            # the decoder scales down by whole factors for less
            image.draft(None, (2 * width, 2 * height))
            upright = image.convert("RGB")
        scaled = upright.resize((width, height), Image.Resampling.LANCZOS)
        images[number] = np.asarray(scaled).transpose(2, 0, 1)
        captions.append(file.with_suffix(".txt").read_text())
    images.flush()
    Path(target).with_suffix(".txt").write_text("\n".join(captions))
    with Path(target).open("rb") as written:
        os.fsync(written.fileno())


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
