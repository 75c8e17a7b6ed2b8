"""Every kind of file that commands leave in a home is damaged by a case, or named as one that is
not read.
"""

import json

import pytest

from support.command import run_inside
from support.damaged import readers
from support.damaged.cases import cases
from support.damaged.home import copied_home
from support.damaged.kinds import DAMAGED, unknown_files
from support.datasets.photographs import captioned_folder, smooth
from support.sweeps import prepared, small_sweep, sweep_of


def test_every_file_of_the_damaged_home_is_of_a_known_kind(one):
    known = {case.name for case in cases(readers.ledger(prepared(sweep_of())))}
    assert {name for _, name in DAMAGED} == known
    assert list(unknown_files(one.home.root)) == []
    (one.first.path / "notes.bin").touch()
    assert list(unknown_files(one.home.root)) == [f"train/{one.first.run_id}/notes.bin"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_file_that_the_commands_leave_is_of_a_known_kind(finished, tmp_path):
    home = copied_home(finished.home, tmp_path / "home")
    run = finished.run_id
    (tmp_path / "sweep.yaml").write_text(json.dumps(small_sweep()))
    slopes = {f"{n}.png": (smooth(20, 20, n), "a slope") for n in range(3)}
    pictures = captioned_folder(tmp_path / "photos", {**slopes, "bad.png": (b"none", "none")})
    text = tmp_path / "text.txt"
    text.write_text("A text. " * 200)
    spec = tmp_path / "text.yaml"
    spec.write_text(
        "{name: words, model: {family: dlm, length: 16, vocabulary: 256, width: 16, depth: 1, "
        "num_heads: 2}, data: {kind: arrow, path: words}, batch: {size: 8, micro: 8}, "
        "training: {steps: 2}, evaluation: {every: 2, samples: 2, limit: 8}}"
    )

    def said(*arguments):
        return run_inside(*arguments, home=home.root, cwd=tmp_path).ok()

    second = said("train", finished.spec, "--local", "--set", "seed=1", "--json")
    images = ("--source", pictures, "--resolution", "16", "--patch", "4", "--name", "photos")
    for arguments in (
        ("evaluate", run),
        ("sample", run, "--num", "2", "--trajectory"),
        ("figures", run),
        ("report", run),
        ("export", run, "--out", home.root / "export"),
        ("compare", run, second.json["run_id"]),
        ("data", "import", "images", *images),
        ("data", "import", "text", "--source", text, "--length", "16", "--name", "words"),
        ("data", "inspect", "photos"),
        ("train", spec, "--local"),
        ("tune", tmp_path / "sweep.yaml"),
        ("runs", "sync"),
    ):
        said(*arguments)
    assert list(unknown_files(home.root)) == []
