"""Image files that sampling starts from, and image files of samples."""

import zlib

import numpy as np
import torch
from PIL import Image

from ditlab.analysis.drawing import save_pictures, start_image
from ditlab_models.contract import Picture
from support.damage import refused


def test_a_start_is_cropped_around_its_centre_and_scaled(tmp_path):
    """A green square with red and blue beside it: only green is left, at twice the size."""
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, :10, 0], pixels[:, 10:20, 1], pixels[:, 20:, 2] = 255, 255, 255
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    image = start_image(tmp_path / "wide.png", (20, 20))
    assert image.shape == (3, 20, 20) and image.dtype == torch.float32
    torch.testing.assert_close(image[:, 10, 10], torch.tensor([-1.0, 1.0, -1.0]))
    # resampling mixes a little of the neighbours into the outermost columns
    assert image[1, :, 2:-2].min() > 0.9


def test_starts_of_any_colours_become_red_green_and_blue(tmp_path):
    for mode in ("L", "RGBA", "P", "I;16"):
        Image.new(mode, (16, 16)).save(tmp_path / "start.png")
        assert start_image(tmp_path / "start.png", (8, 8)).shape == (3, 8, 8)


def test_a_start_that_is_no_picture(tmp_path):
    missing, text, damaged = (tmp_path / name for name in ("start.png", "text.png", "damaged.png"))
    text.write_bytes(b"text")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(damaged)
    damaged.write_bytes(damaged.read_bytes()[:2000])
    for file, reason in (
        (missing, "No such file or directory"),
        (text, "no picture in BMP, JPEG, PNG, TIFF or WEBP"),
        (damaged, "no picture in .*"),
        (tmp_path, "it is no plain file"),
    ):
        expected = rf"--start {file} cannot be read \({reason}\); name another picture\."
        with refused(expected):
            start_image(file, (8, 8))


def test_a_start_of_too_many_pixels_is_refused_by_its_header(tmp_path):
    file = tmp_path / "a.png"
    Image.new("1", (8, 8)).save(file)
    content = bytearray(file.read_bytes())
    content[16:24] = (13_300).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    file.write_bytes(content)
    with refused(r"a\.png has 13,300x13,300 pixels, and at most 64,000,000 are read; scale it"):
        start_image(file, (8, 8))


def test_pictures_keep_their_pixels_and_carry_their_settings(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 4, 3), np.uint8)
    pictures = [Picture(one, {"prompt": f"Würfel 骰子 {i}"}) for i, one in enumerate(pixels)]
    files = list(save_pictures(pictures, {"run": "abc"}, tmp_path))
    assert [file.name for file in files] == ["000.png", "001.png"]
    for i, file in enumerate(files):
        with Image.open(file) as image:
            assert image.text == {"ditlab.run": "abc", "ditlab.prompt": f"Würfel 骰子 {i}"}
            assert np.array_equal(np.asarray(image), pixels[i])


def test_numbers_of_many_pictures_sort(tmp_path):
    pictures = [Picture(np.zeros((1, 1, 3), np.uint8), {})] * 1001
    names = [file.name for file in save_pictures(pictures, {}, tmp_path)]
    assert names[0] == "0000.png" and names[-1] == "1000.png" and names == sorted(names)
