"""Values become bytes in one place, where those that no byte holds are found."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from ditlab.reports.rendering.image_grid import GridLayout
from ditlab_models import pixels
from ditlab_models.figures import ImageGrid
from ditlab_models.pixels import NOT_FINITE, NotFiniteError, num_not_finite, to_bytes, to_pixels
from ditlab_models.processes.flow_figures import to_pictures

ROOT = Path(pixels.__file__).parents[2]


def test_bytes_of_images():
    images = torch.tensor([-1.5, -1.0, 0.0, 0.5, 1.0, 2.0]).view(1, 1, 1, 6)
    assert to_bytes(images).flatten().tolist() == [0, 0, 128, 191, 255, 255]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_images_that_no_byte_holds_are_counted(value):
    images = torch.zeros(5, 3, 2, 2)
    images[1, 0, 0, 0] = value
    images[3] = value
    assert num_not_finite(images) == 2
    with pytest.raises(NotFiniteError, match="2 of 5 images hold values that are not finite"):
        to_bytes(images)
    assert num_not_finite(torch.zeros(3, 4, dtype=torch.int64)) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_pixels_that_are_not_finite_are_marked(value):
    grey = np.array([[-1.0, 2.0], [0.5, value]])
    assert to_pixels(grey)[1].tolist() == [[128] * 3, list(NOT_FINITE)]
    assert to_pixels(grey[:1]).tolist() == [[0, 255]], "clipped, and in grey"
    colours = np.zeros((1, 2, 3))
    colours[0, 1, 2] = value
    assert to_pixels(colours).tolist() == [[[0, 0, 0], list(NOT_FINITE)]]
    assert np.isnan(to_pictures(torch.full((1, 3, 2, 2), value))).all()


def test_a_grid_says_which_images_are_not_finite():
    images = np.zeros((3, 8, 8))
    images[1, 0, 0] = np.nan
    layout = GridLayout(ImageGrid(images, ("a cat", "a dog", "a cow")))
    assert [" ".join(lines) for lines in layout.wrapped] == ["a cat", "not finite a dog", "a cow"]
    assert (layout.draw() == NOT_FINITE).all(-1).any()
    assert GridLayout(ImageGrid(images)).wrapped == [[], ["not finite"], []]
    assert GridLayout(ImageGrid(images[:1])).wrapped == []


def test_no_other_file_makes_pixels_of_numbers():
    """Sources of data apart, whose values are whole numbers or checked by their importer."""
    rounding = re.compile(r"(255|127\.5).*(uint8|\.byte\(\))")
    found = {
        str(file.relative_to(ROOT))
        for folder in ("models", "platform")
        for file in (ROOT / folder).rglob("*.py")
        if any(rounding.search(line) for line in file.read_text().splitlines())
    }
    allowed = {"models/ditlab_models/pixels.py", "platform/ditlab/data/builtin.py"}
    assert found - allowed <= {"platform/ditlab/data/images/decoding.py"}
