"""Commands of a Ray job, which begin in a copy of the working directory that Ray deletes: nothing
is kept there.
"""

import json
import os

import pytest

from ditlab.cli.output import command_line, short_path
from ditlab.cluster.jobs import SUBMITTER, describe_submitter, leave_out, take_submitters_home
from ditlab.home import Home
from support.clusters.ray_jobs import package_files
from support.sweeps import written_sweep

WRITING = [
    "train small.yaml",
    "train small.yaml --local",
    "tune sweep.yaml",
    "tune sweep.yaml --dry-run",
    "evaluate small",
    "sample small",
    "figures small --kind loss",
    "data import text --source notes.txt --name notes",
    "prove small.yaml",
    "compare small other",
    "report small",
    "runs",
]
ELSEWHERE = [
    ("schema --out schema.json", "--out schema.json lies"),
    ("export small --out weights", "--out weights lies"),
    ("data import text --source notes.txt --out stores", "--out stores lies"),
    (
        "train small.yaml --local --set checkpoint.storage=saved",
        "checkpoint.storage={copy}/saved lies",
    ),
    (
        "train small.yaml --local --set tracking.uri=sqlite:///m.db",
        "tracking.uri=sqlite:///m.db lies",
    ),
]


@pytest.fixture
def copy(spec, home, tmp_path, monkeypatch):
    """The working directory of a job without a home, as Ray makes it."""
    folder = tmp_path / "session/runtime_resources/working_dir_files/_ray_pkg_8bf4cdf66d5c3a98"
    folder.mkdir(parents=True)
    (folder / "small.yaml").write_text(spec.read_text())
    (folder / "notes.txt").write_text("some words of text\n" * 50)
    written_sweep(folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DITLAB_HOME")
    return folder


@pytest.fixture
def refused(copy, ditlab):
    """`refused(command, words)`: in the copy, before anything is written."""

    def run(command, words):
        before = sorted(copy.rglob("*"))
        ditlab(*command.split()).refused("Ray deletes", words)
        assert sorted(copy.rglob("*")) == before

    return run


@pytest.mark.parametrize("command", WRITING)
def test_a_home_in_the_copy_is_refused_before_anything_is_written(copy, refused, command):
    words = f"DITLAB_HOME={copy}/runs (the default, as DITLAB_HOME is not set) lies in Ray's copy"
    refused(command, words)


def test_so_is_one_that_is_given_relative(copy, refused, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", "mine")
    refused("train small.yaml", f"DITLAB_HOME={copy}/mine lies in Ray's copy")


@pytest.mark.parametrize("command, words", ELSEWHERE)
def test_so_is_another_place_of_results(copy, home, refused, monkeypatch, command, words):
    monkeypatch.setenv("DITLAB_HOME", str(home))
    refused(command, words.replace("{copy}", str(copy)))


def test_a_job_on_the_submitters_machine_takes_its_home(copy, tmp_path, monkeypatch):
    def home_of_job(submitter, **environment):
        monkeypatch.delenv("DITLAB_HOME", raising=False)
        monkeypatch.setenv(SUBMITTER, submitter)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        take_submitters_home()
        return os.environ.get("DITLAB_HOME")

    own = Home(tmp_path / "checkout" / "runs")
    own.root.parent.mkdir()
    unnamed = describe_submitter(own)
    assert home_of_job(unnamed) == str(own.root)
    assert home_of_job(unnamed, DITLAB_HOME="/nodes") == "/nodes"
    monkeypatch.setenv("DITLAB_HOME", str(own.root))
    assert home_of_job(describe_submitter(own), DITLAB_HOME="/nodes") == str(own.root)
    facts = json.loads(unnamed)
    boot, device, inode = facts["identity"]
    for other in (
        {"identity": ["another", device, inode]},
        {"identity": [boot, device, inode + 1]},
        {"folder": str(tmp_path / "none")},
    ):
        # another machine; a container of this one
        assert home_of_job(json.dumps({**facts, **other})) is None
    assert home_of_job("{") is None


def test_a_home_in_the_working_directory_is_not_sent_along(tmp_path):
    for name in ("spec.yaml", "runs/train/1/journal.jsonl", "runs/home.json", "code/runs/kept.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for home in (tmp_path / "runs", tmp_path / "none", tmp_path):
        leave_out(home, tmp_path)
    assert sorted(package_files(tmp_path)) == ["code/runs/kept.py", "spec.yaml"]


def test_what_a_job_prints_is_read_in_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DITLAB_HOME", "my runs")
    assert short_path(tmp_path / "page.html") == "page.html"
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert short_path(tmp_path / "page.html") == str(tmp_path / "page.html")
    assert (
        command_line("sample", "1a2b3c4d")
        == f"DITLAB_HOME='{tmp_path}/my runs' ditlab sample 1a2b3c4d"
    )
