"""Pictures are legible and whole, and are drawn without global state."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from ditlab.reports.rendering.image_grid import MARGIN, GridLayout
from ditlab.reports.rendering.render import save_figure, to_image
from ditlab_models.figures import (
    Curve,
    Figure,
    Heatmap,
    ImageGrid,
    Lines,
    Text,
    grid_columns,
)
from support.figures import check_whole

RNG = np.random.default_rng(0)
LONG = "a title so long that no single line of the picture could ever hold the whole of it, " * 3
PANELS = {
    "gray": ImageGrid(RNG.random((10, 8, 8)), [str(index) for index in range(10)], title=LONG),
    "colour": ImageGrid(
        RNG.random((3, 32, 48, 3)), ["$5 and $6 {of} a very long caption indeed", "b"], columns=2
    ),
    "one": ImageGrid(RNG.random((1, 256, 256))),
    "none": ImageGrid(RNG.random((0, 8, 8)), title="no samples"),
    "heat": Heatmap(RNG.normal(size=(6, 9)), LONG, "column", "row", diverging=True, mark=(2, 3)),
    "wide": Heatmap(RNG.random((4, 200)), "attention", extent=(0, 1, 4, 0), mark=(1, 100)),
    "constant": Heatmap(np.zeros((3, 3)), diverging=True),
    "holes": Heatmap(np.array([[1.0, np.nan], [np.inf, 2.0]])),
    "lines": Lines(
        [
            Curve(np.arange(1, 50), 1 / np.arange(1, 50), "train", np.full(49, 0.01)),
            Curve([3], [0.5], "eval"),
        ],
        "loss",
        "step",
        "nats",
        log_y=True,
    ),
    "many": Lines(
        [Curve(np.arange(9), RNG.random(9), f"run number {index}") for index in range(20)], LONG
    ),
    "no lines": Lines([], "nothing yet"),
    "text": Text(
        ["short", "cost: $5 $x$ \\frac{1}{2} tab\there \x00", "word " * 3000, "x" * 3000], LONG
    ),
    "much text": Text(["line\n" * 100] * 40),
    "no text": Text([]),
}


@pytest.mark.parametrize("name", PANELS)
def test_every_panel_is_drawn_whole(name):
    image = to_image(Figure([PANELS[name]], title=LONG))
    assert image.shape[2:] == (3,) and image.dtype == np.uint8 and max(image.shape) < 12_000
    check_whole(image)


def test_panels_are_laid_out_in_rows():
    panels = [PANELS["heat"], PANELS["lines"]]
    below, beside = (to_image(Figure(panels, columns=num)).shape for num in (1, 2))
    assert below[0] > beside[0] and below[1] < beside[1]


@pytest.mark.parametrize(
    ("num", "columns"),
    [(0, 1), (9, 9), (36, 9), (65, 11), (68, 10)],
)
def test_the_last_row_of_a_grid_is_full_or_nearly_so(num, columns):
    assert grid_columns(num) == columns
    assert GridLayout(ImageGrid(np.zeros((num, 8, 8)))).columns == columns


@pytest.mark.parametrize(
    ("caption", "lines"),
    [
        ("fried rice with vegetables", ["fried rice", "with", "vegetables"]),
        ("a_dish_of_pasta_with_a_very_long_name", ["a_dish_of_", "pasta_with_a_", "very_ ..."]),
        ("n02123045-tabby", ["n02123045-", "tabby"]),
        ("MSE -0.123 t=1.5", ["MSE -0.123", "t=1.5"]),
        ("x" * 100, ["x" * 13, "x" * 13, "..."]),
    ],
)
def test_captions_are_wrapped_between_words_to_three_lines(caption, lines):
    assert GridLayout(ImageGrid(np.zeros((8, 16, 16)), [caption] * 8)).wrapped[0] == lines


def test_small_images_are_enlarged_by_a_whole_factor():
    images = RNG.random((5, 8, 8))
    layout = GridLayout(ImageGrid(images, columns=3))
    assert layout.tile_height >= 80
    picture = layout.draw()
    top, left = layout.corner(4)
    tile = picture[top : top + layout.tile_height, left : left + layout.tile_width, 0]
    blocks = tile.reshape(8, layout.scale, 8, layout.scale)
    assert (blocks == np.round(images[4] * 255).astype(np.uint8)[:, None, :, None]).all()
    assert (picture[:, left - MARGIN + 1 : left - 1] == 255).all()  # a margin between neighbours


def test_frames_are_saved_as_gif_with_a_still_png(tmp_path):
    frames = [Figure([ImageGrid(np.full((num, 8, 8), num / 10))]) for num in (1, 2, 9)]
    figure = Figure([PANELS["gray"]], frames=frames, seconds_per_frame=0.1)
    path = save_figure(figure, tmp_path / "noise.png")
    assert path == tmp_path / "noise.gif" and (tmp_path / "noise.png").exists()
    with Image.open(path) as animation:
        assert animation.n_frames == 3 and animation.info["loop"] == 0
        assert animation.info["duration"] == 100
        assert animation.size[0] >= to_image(frames[2]).shape[1]


def test_still_of_a_figure_of_frames_is_the_last_frame():
    frames = [Figure([PANELS["heat"]]), Figure([PANELS["lines"]])]
    assert np.array_equal(to_image(Figure([], frames=frames)), to_image(frames[1]))


def test_threads_draw_the_same_as_one():
    text = Text(["two short", "texts"], "title")
    panels = (PANELS["colour"], PANELS["constant"], PANELS["lines"], text)
    figures = [Figure([panel]) for panel in panels] * 2
    alone = map(to_image, figures)
    with ThreadPoolExecutor(4) as pool:
        together = pool.map(to_image, figures)
    assert all(map(np.array_equal, alone, together))


@pytest.mark.slow
def test_pyplot_is_not_imported_and_the_font_cache_lies_under_home(tmp_path):
    code = (
        "import sys, os, numpy as np\nfrom ditlab_models.figures import *\n"
        "from ditlab.reports.rendering.render import to_image\n"
        "to_image(Figure([Heatmap(np.eye(3))]))\nassert 'matplotlib.pyplot' not in sys.modules"
    )
    environment = {**os.environ, "DITLAB_HOME": str(tmp_path), "HOME": str(tmp_path / "person")}
    environment.pop("MPLCONFIGDIR", None)
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert (tmp_path / "caches" / "matplotlib").is_dir() and not (tmp_path / "person").exists()
