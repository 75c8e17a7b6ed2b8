"""Contact sheets: every image size in its true shape, with captions."""

import numpy as np
import pytest

from ditlab.data.importing import ImportRequest, run_import
from ditlab.home import Home
from ditlab.spec.importing import ImagesOptions
from ditlab_addons.inspection.contents import sample_grid
from ditlab_models.figures import ImageGrid
from support.datasets.photographs import captioned_folder, smooth


@pytest.fixture
def store(tmp_path):
    """Nine images of 32 x 32 and one of 32 x 640."""
    files = {f"{n}.png": (smooth(32, 32, n), f"square {n}") for n in range(9)} | {
        "w.png": (smooth(32, 640), "a line")
    }
    options = ImagesOptions(
        source=captioned_folder(tmp_path / "in", files), resolution=256, max_side=640, step=32
    )
    home = Home(tmp_path / "home")
    (imported,) = run_import("images", ImportRequest(home.stores, home.caches, options))
    return imported.store


def test_each_size_has_a_grid_of_its_own_with_captions(store):
    figure = sample_grid(store, 6)
    squares, lines = figure.panels
    assert isinstance(squares, ImageGrid) and squares.images.shape == (3, 32, 32, 3)
    assert squares.captions == ["square 0", "square 4", "square 8"]
    assert squares.title == "32x32: 3 of 9"
    assert np.allclose(squares.images[1] * 255, np.asarray(smooth(32, 32, 4)), atol=1e-6)
    assert lines.captions == ["a line"] and "10 images" in figure.title


def test_large_images_are_shrunk_by_averaging_and_keep_their_shape(store):
    (line,) = sample_grid(store, 2).panels[1].images
    assert line.shape == (8, 160, 3)  # a quarter of 32 x 640
    whole = np.asarray(smooth(32, 640)).astype(float)
    assert np.allclose(line[0, 0] * 255, whole[:4, :4].mean(axis=(0, 1)), atol=1e-6)


def test_a_set_is_shown_whatever_the_number_of_samples(store):
    assert [len(panel.images) for panel in sample_grid(store, 1).panels] == [1, 1]
    assert [len(panel.images) for panel in sample_grid(store, 1000).panels] == [9, 1]
