"""Files that a job needs and Ray leaves here are named before anything is sent."""

from unittest.mock import Mock

import pytest

from ditlab.cluster import jobs
from support.clusters.nodes import CHECKOUT
from support.clusters.ray_jobs import package_files

DIGITS = (CHECKOUT / "experiments" / "digits" / "dit.yaml").read_text()
SPEC = DIGITS.replace("{kind: digits}", "{kind: arrow, path: images, hold_out: 0.01}")


@pytest.fixture
def folder(tmp_path, monkeypatch, home):
    """A working directory with a spec, its parent and data; no job server answers."""
    refuse = Mock(side_effect=AssertionError("it would be sent"))
    monkeypatch.setattr(jobs, "open_job_server", refuse)
    root = tmp_path / "work"
    (root / "specs").mkdir(parents=True)
    (root / "data" / "pets").mkdir(parents=True)
    (root / "data" / "pets" / "manifest.json").write_text("{}")
    (root / "data" / "weights.safetensors").write_text("none")
    (root / "specs" / "parent.yaml").write_text(SPEC)
    (root / "specs" / "spec.yaml").write_text("extends: parent.yaml\n")
    monkeypatch.chdir(root)
    return root


ROWS = [
    (".gitignore", "specs/spec.yaml", "", "specs/spec.yaml would not be sent"),
    ("specs/.gitignore", "parent.yaml", "", "specs/parent.yaml would not be sent"),
    (".gitignore", "*.json", "data.path=data/pets", "data/pets/manifest.json is named by"),
    (".gitignore", "data/", "data.path=data/pets", "data.path=data/pets: "),
    ("data/.rayignore", "*", "data.path=data/pets", "data.path=data/pets: "),
    (
        ".gitignore",
        "*.safetensors",
        "model.init.from=data/weights.safetensors",
        "model.init.from=data/weights.safetensors: ",
    ),
]


@pytest.mark.parametrize("file, pattern, override, words", ROWS)
def test_what_an_ignore_file_names(folder, ditlab, file, pattern, override, words):
    (folder / file).write_text(pattern + "\n")
    options = ["--set", override] if override else []
    said = ditlab("submit", "specs/spec.yaml", *options)
    said.refused(words, "RAY_RUNTIME_ENV_IGNORE_GITIGNORE=1")


def test_a_field_of_a_spec_file(folder, ditlab):
    (folder / "specs" / "spec.yaml").write_text(
        "extends: parent.yaml\ndata: {path: ../data/pets}\n"
    )
    (folder / ".gitignore").write_text("pets\n")
    said = ditlab("submit", "specs/spec.yaml")
    said.refused(f"data.path=../data/pets: {folder}/data/pets would not be sent")


def test_a_folder_that_ray_leaves_out_by_itself(folder, ditlab):
    (folder / "venv").mkdir()
    (folder / "venv" / "spec.yaml").write_text(SPEC)
    ditlab("submit", "venv/spec.yaml").refused("venv/spec.yaml would not be sent")


def test_a_relative_path_that_leads_out(folder, ditlab):
    (folder.parent / "pets").mkdir()
    said = ditlab("submit", "specs/spec.yaml", "--set", "data.path=../pets")
    said.refused(f"data.path=../pets: {folder.parent}/pets does not lie below --working-dir")


@pytest.mark.parametrize(
    "pattern, override",
    [
        ("*.log", "data.path=data/pets"),
        ("data/", "data.path=/data/pets"),  # of a folder that all nodes see
        ("data/", "data.path=pets"),  # a store in the home
        ("out/", "checkpoint.storage=out"),
    ],
)
def test_what_travels_or_need_not(folder, ditlab, pattern, override):
    (folder / "out").mkdir()
    (folder / ".gitignore").write_text(pattern + "\n")
    with pytest.raises(AssertionError, match="it would be sent"):
        ditlab("submit", "specs/spec.yaml", "--set", override)


def test_all_is_sent_where_ray_is_told_so(folder, ditlab, monkeypatch):
    monkeypatch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")
    (folder / ".gitignore").write_text("specs\n")
    with pytest.raises(AssertionError, match="it would be sent"):
        ditlab("submit", "specs/spec.yaml")


def test_the_same_files_as_ray_packs(folder):
    from ditlab.cluster.ray_internals import sent_files

    (folder / ".gitignore").write_text("data/*\n!data/pets\n")
    (folder / "specs" / ".rayignore").write_text("parent.yaml\n")
    assert {str(file.relative_to(folder)) for file in sent_files(folder)} == package_files(folder)
