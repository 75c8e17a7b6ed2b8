"""Pictures of the guides: each kind of each family stands there, small, with an alternative
text.
"""

import importlib.util
import re
import sys

import numpy as np
import pytest
from PIL import Image

from ditlab.reports.page import read_description
from ditlab.spec.files import load_experiment
from ditlab_models.figures import Curve, Figure, ImageGrid, Lines
from support.documents import CHECKOUT

DOCS = CHECKOUT / "docs"
FOLDER = DOCS / "images" / "figures"
FAMILIES = ("dit", "unet", "region", "dlm", "pixelhdm")


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script that draws them, with its folder and its documents below a temporary one."""
    for name in ("DITLAB_HOME", "DITLAB_FIGURES", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # the script sets them, and they are undone
    place = importlib.util.spec_from_file_location("draw_pictures", DOCS / "images" / "draw.py")
    assert place and place.loader
    module = importlib.util.module_from_spec(place)
    monkeypatch.setitem(sys.modules, "draw_pictures", module)
    place.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path / "docs" / "figures")
    monkeypatch.setattr(module, "CHECKOUT", tmp_path)
    yield module


def kinds_of_families():
    """The kinds that the page on figures promises, by family: of several in a row, the one that the
    cell names.
    """
    page = (DOCS / "figures.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()]
    rows = [row for row in rows if len(row) == 2 + len(FAMILIES) and row[0].startswith("`")]
    named = [re.findall(r"`(\w+)`", row[0]) for row in rows]
    every = {kind for kinds in named for kind in kinds}
    kinds = {family: set() for family in FAMILIES}
    for (first, *_), row in zip(named, rows, strict=True):
        for family, cell in zip(FAMILIES, row[2:], strict=True):
            if cell:
                kinds[family] |= (set(re.findall(r"`(\w+)`", cell)) & every) or {first}
    return kinds


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_a_family_stands_in_its_guide(family):
    kinds = kinds_of_families()[family]
    missing = [kind for kind in kinds if not list(FOLDER.glob(f"{family}-{kind}.*"))]
    assert len(kinds) >= 12 and not missing, f"run python docs/images/draw.py {family}"


def test_pictures_are_small_and_say_what_they_show():
    files = sorted(FOLDER.iterdir())
    assert sum(file.stat().st_size for file in files) < 8 * 2**20
    for file in files:
        assert file.stat().st_size < 200_000, file.name
        assert len(read_description(file)) > 20, file.name


def test_guides_name_the_runs_that_are_drawn(script):
    assert set(script.RUNS) == set(FAMILIES)
    for family, (experiment, changes) in script.RUNS.items():
        spec = load_experiment(CHECKOUT / "experiments" / experiment, changes)
        guide = (DOCS / "families" / f"{family}.md").read_text()
        assert (
            f"`{spec.name}` after {spec.training.steps:,} steps" in guide
            and f"<!-- figures of {family} -->" in guide
        )


def test_lines_are_vectors_and_images_few_colours(script):
    lines = Figure([Lines([Curve(np.arange(3), np.arange(3.0))])], "Loss")
    assert script.write("dit-loss", lines).name == "dit-loss.svg"
    noise = np.random.default_rng(0).random((4, 32, 32, 3))
    path = script.write("dit-loss", Figure([ImageGrid(noise)], alt="Noise"))
    assert [file.name for file in path.parent.iterdir()] == ["dit-loss.png"]  # not both
    assert read_description(path) == "Noise."
    with Image.open(path) as image:
        assert image.mode == "P" and len(image.getcolors() or []) <= 256


def test_pictures_that_no_guide_shows_are_removed(script, tmp_path):
    script.FOLDER.mkdir(parents=True)
    for name in ("dit-old.png", "dit-linked.png", "dit-adaln.svg", "dlm-old.png"):
        (script.FOLDER / name).touch()
    (tmp_path / "docs" / "page.md").write_text("![x](figures/dit-linked.png)")
    script.prune("dit", ["adaln"])
    assert {file.name for file in script.FOLDER.iterdir()} == {
        "dit-linked.png",
        "dit-adaln.svg",
        "dlm-old.png",
    }
