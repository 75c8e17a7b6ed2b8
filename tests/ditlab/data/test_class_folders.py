"""Class folders, from the import to a class-conditional model that is trained and sampled."""

from pathlib import Path

import pytest

from ditlab.home import Home
from ditlab.reports.page import read_description
from ditlab.tracking.journal import recorded_dataset
from support.command import Said, run_inside
from support.datasets.photographs import captioned_folder, smooth

SPEC = """
name: pets
model:
  {family: dit, image_size: 16, channels: 3, patch_size: 4, width: 16, depth: 1, num_heads: 2, num_classes: CLASSES}
data: {kind: arrow, path: images-pets-16}
batch: {size: 8}
optimizer: {kind: adamw, lr: 1.0e-3}
training: {steps: 3}
evaluation: {every: 3, samples: 4, quality: 0}
checkpoint: {every: 3}
sampling: {steps: 2}
"""


@pytest.fixture
def pets(tmp_path) -> Path:
    """Three class folders of eight pictures each."""
    names = [f"{folder}/{n}.png" for folder in ("cat", "dog", "golden_retriever") for n in range(8)]
    return captioned_folder(
        tmp_path / "pets", {name: (smooth(20, 24, n), None) for n, name in enumerate(names)}
    )


def ditlab(tmp_path: Path, *arguments: object) -> Said:
    return run_inside(*arguments, home=tmp_path / "home", cwd=tmp_path)


def imported(tmp_path: Path, *arguments: str) -> Said:
    options = ("--source", "pets", "--resolution", "16", "--patch", "4", "--sizes", "square")
    return ditlab(tmp_path, "data", "import", "images", *options, *arguments)


def test_a_class_without_a_sample_is_named_and_not_drawn_unasked(tmp_path, pets):
    """In the import, before training, and in samples: those of no class in particular are of the
    others in turn. Samples are shown with the names of their classes."""
    (tmp_path / "pets" / "budgie").mkdir()
    (tmp_path / "pets" / "budgie" / "0.png").write_bytes(b"no picture")
    done = imported(tmp_path, "--label-from", "folder")
    assert done.code == 0 and "1 class has no sample: budgie" in done.err.splitlines()[-2], done.err
    spec = tmp_path / "pets.yaml"
    spec.write_text(SPEC.replace("CLASSES", "4"))
    trained = ditlab(tmp_path, "train", spec, "--local", "--json")
    assert trained.code == 0 and "holds no sample of budgie" in trained.err, trained.err
    run = Home(tmp_path / "home").run(trained.json["run_id"])
    assert recorded_dataset(run.journal)["sampled"] == [1, 2, 3]
    shown = (run.media / "samples-00000003.captions").read_text()
    assert shown == "cat\ndog\ngolden_retriever\ncat\n", (
        "an evaluation's grid has names, which MLflow and the page show"
    )
    asked = ("--label", "budgie", "--num", "2", "--trajectory", "--json")
    drawn = ditlab(tmp_path, "sample", trained.json["run_id"], *asked)
    pictures = [file for file in map(Path, drawn.json["files"]) if file.suffix in (".png", ".gif")]
    described = {read_description(file.with_suffix(".png")) for file in pictures}
    assert len(pictures) == 2 and described == {"2 samples of budgie, 2 in a row."}
