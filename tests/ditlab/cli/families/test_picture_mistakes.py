"""Mistakes with pictures, captions and encoders: exit code 2, one sentence, nothing
half-written.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.command import Said, run_here
from support.datasets.photographs import captioned_folder, smooth
from support.datasets.tiny_encoders import write_image_encoder, write_text_encoder

SPEC = """\
name: painter
model:
  {family: pixelhdm, width: 32, pixel_width: 4, patch_size: 8, patch_depth: 1, pixel_depth: 1, num_heads: 2,
   num_kv_heads: 1, bottleneck_width: 8, time_width: 8, max_resolution: 64, mrope_widths: [4, 6, 6], text_length: 24}
objective: {alignment_block: 1, alignment_width: 24}
encoders: {text: TEXT, image: IMAGE}
data: {kind: arrow, path: pictures, hold_out: 0.2}
batch: {size: 4}
training: {steps: 1}
evaluation: {every: null, samples: 0}
sampling: {steps: 1, height: 32, width: 32}
tracking: {system_metrics: false}
"""
SIZES = ("--resolution", "32", "--patch", "8", "--step", "16")
IMPORT = ("data", "import", "images", "--processes", "1", *SIZES)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of encoders by what is wrong with them; `text` and `image` are right."""
    folder = tmp_path_factory.mktemp("encoders")
    write_text_encoder(folder / "text")
    write_text_encoder(folder / "wide", width=48)
    write_text_encoder(folder / "left", padding_side="left")
    (write_text_encoder(folder / "incomplete") / "model.safetensors").unlink()
    write_image_encoder(folder / "image", patch=8)
    write_image_encoder(folder / "fine", patch=4)
    write_image_encoder(folder / "broad", patch=8, width=32)
    return folder


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 x 32 pixels each."""
    files: dict[str, Any] = {f"{n:02}.png": (smooth(32, 32, n), f"slope {n}") for n in range(10)}
    return captioned_folder(tmp_path_factory.mktemp("photographs"), files)


@pytest.fixture
def elsewhere(encoders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in the encoders' folder."""
    monkeypatch.chdir(encoders)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory, photographs: Path) -> Path:
    """The DITLAB_HOME of a store `pictures` without features."""
    from ditlab.data.importing import ImportRequest, run_import
    from ditlab.home import Home
    from ditlab.spec.importing import ImagesOptions

    home = Home(tmp_path_factory.mktemp("imported") / "home")
    options = ImagesOptions(
        source=photographs, resolution=32, patch=8, step=16, processes=1, name="pictures"
    )
    run_import("images", ImportRequest(home.stores, home.caches, options))
    return home.root


@pytest.fixture
def painter(
    imported: Path, tmp_path: Path, elsewhere: None, capfd: Any, monkeypatch: Any
) -> Callable[..., Said]:
    """`painter(command, *assignments)`: `ditlab COMMAND painter.yaml --set ...`, where its data
    are.
    """
    monkeypatch.setenv("DITLAB_HOME", str(imported))
    (tmp_path / "painter.yaml").write_text(
        SPEC.replace("TEXT", "text").replace("IMAGE", "image"), encoding="utf-8"
    )

    def run(command: str, *assignments: str) -> Said:
        sets = (word for assignment in assignments for word in ("--set", assignment))
        return run_here(capfd, monkeypatch, *command.split(), tmp_path / "painter.yaml", *sets)

    return run


def refused(said: Said, message: str) -> None:
    *progress, last = said.err.splitlines()
    assert said.code == 2 and "Traceback" not in said.err, said.err
    assert last.startswith("ditlab: ") and last.endswith(".") and message in last, last
    assert not any(line.startswith("ditlab: ") for line in progress)


def test_the_spec_itself_is_right(painter):
    assert painter("train --local --dry-run").code == 0


def test_imports(ditlab, home, tmp_path, elsewhere):
    for number, (files, flags, message) in enumerate(
        [
            (
                {"b.png": (smooth(32, 32), None)},
                (),
                "b.png has no caption; write one into a .txt file of the same stem",
            ),
            (
                {"b.png": (b"no image", "a slope")},
                ("--unreadable", "refuse"),
                "b.png: no BMP, JPEG, PNG, TIFF or WEBP",
            ),
            (
                {},
                ("--step", "20"),
                "--step=20 is no multiple of --patch=8; set --step to 16 or 24.",
            ),
        ]
    ):
        source = captioned_folder(
            tmp_path / f"set{number}", {"a.png": (smooth(32, 32), "a slope"), **files}
        )
        refused(ditlab(*IMPORT, "--source", source, *flags), message)
        assert [path.name for path in home.rglob("*") if path.is_file()] == ["home.json"]


def test_experiments_that_do_not_fit_their_data_or_encoders(painter, imported):
    for assignments, message in (
        (
            ["encoders.text=incomplete"],
            "incomplete holds no weights (model.safetensors), so it is no whole checkpoint",
        ),
        (
            ["encoders.text=wide"],
            "wide gives 48 features a token, but model.width=32; set model.width to 48",
        ),
        (
            ["encoders.image=fine"],
            "fine has patches of 4 pixels, and the model's have 8; set model.patch_size to 4",
        ),
        (
            ["encoders.image=broad"],
            "broad gives 32 features a patch, but the loss takes 24; set objective.",
        ),
        (
            ["encoders.image=null"],
            "holds no features of images (image_features), and the loss reads them",
        ),
    ):
        refused(painter("train --local", *assignments), message)
        assert {path.name for path in imported.iterdir()} == {"stores", "home.json"}


@pytest.mark.parametrize("command", ["validate", "params", "train --local"])
def test_specs_that_contradict_themselves(painter, command):
    for assignment, message in (
        (
            "sampling.height=20",
            "sampling.height=20 is no multiple of model.patch_size=8; set sampling.height to 16 or",
        ),
        ("model.text_encoder=learned", "/text is used by nothing"),
    ):
        refused(painter(command, assignment), message)


def test_encoders_of_families_that_read_none(ditlab, spec):
    for kind in ("text", "image"):
        message = f"encoders.{kind}=somewhere is used by nothing, as this model (model.family=dit)"
        refused(ditlab("validate", spec, "--set", f"encoders.{kind}=somewhere"), message)


def test_an_encoder_of_images_serves_quality_without_alignment(painter):
    assert painter("validate", "objective.weights.alignment=0.0").code == 0
