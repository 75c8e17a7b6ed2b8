"""A disk that fills up costs no step and no crash; with room again the run ends as if nothing had
been.
"""

import os
import signal

import pytest

from ditlab.checkpoints.store import CheckpointStore
from ditlab.spec.files import load_experiment
from support.clusters.faults import wait_until
from support.command import Said, run_process, start_process
from support.disk import small_disk
from support.journals import read_records
from support.trainings.steps import act_after_step
from support.trainings.workers import newest, same_state, train_here

CHANGES = ("training.steps=8", "checkpoint.keep=9", "evaluation={every: 4, samples: 4}")
LONG = [word for change in CHANGES for word in ("--set", change)]


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", "40m") as made:
        yield made


@pytest.fixture(scope="module")
def unbroken(finished, tmp_path_factory):
    """Checkpoints of a run of eight steps that never met a full disk."""
    folder = tmp_path_factory.mktemp("unbroken")
    # which no bit depends on
    experiment = load_experiment(finished.spec, [*CHANGES, "evaluation.every=null"])
    train_here(experiment, folder / "home", folder / "checkpoints")
    return folder / "checkpoints"


@pytest.fixture
def fills_at(disk, monkeypatch):
    """`fills_at(step)` fills the disk when a step has been logged and the checkpoints before it are
    written.
    """

    def fill(step):
        (run,) = (disk.path / "home" / "train").iterdir()
        store = CheckpointStore.at(run / "checkpoints")
        # they are written beside the steps
        wait_until(lambda: store.steps() == saved_before(step), 60, "the checkpoints before")
        disk.fill()

    return lambda step: act_after_step(monkeypatch, step, lambda: fill(step))


def saved_before(step):
    return [saved for saved in (2, 4, 6) if saved < step]


def one_sentence(said, code, words):
    assert said.code == code, said.err
    assert "Traceback" not in said.err
    (last,) = [line for line in said.err.splitlines() if line.startswith("ditlab: ")]
    assert words in last


def logged_steps(run):
    records = read_records(run / "journal.jsonl")
    logged = [record for record in records if record["kind"] == "metrics"]
    return [
        one["step"] for one in logged if "train/loss" in {**one["values"], **one.get("held", {})}
    ]


@pytest.mark.slow
def test_a_full_checkpoint_storage(ditlab, home, spec, tmp_path, unbroken):
    with small_disk(tmp_path / "disk", "2m") as disk:  # room for two checkpoints
        options = ["--local", "--json", *LONG, "--set", f"checkpoint.storage={disk.path}"]
        said = ditlab("train", spec, *options)
        one_sentence(said, 1, "No space left on device); the last whole one is")
        assert said.json["exit_code"] == 1
        assert "the checkpoint of step 6 was not saved" in said.err
        assert "No space left on device" in said.err
        (run,) = (home / "train").iterdir()
        assert logged_steps(run) == list(range(1, 9))  # training went on
        store = CheckpointStore.at(disk.path / run.name)
        assert store.steps() == [2, 4]
        for step in store.steps():
            store.open(step).close()
        assert ditlab("sample", run.name, "--num", "2", "--json").json["step"] == 4

        disk.resize("20m")
        said = ditlab("train", spec, *options, "--resume", run.name).ok()
        assert store.steps() == [2, 4, 6, 8]
        assert same_state(newest(disk.path / run.name), newest(unbroken))
        assert logged_steps(run) == list(range(1, 9))


@pytest.mark.parametrize(
    "step", [3, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 7, 8))]
)
def test_a_full_home(step, ditlab, spec, disk, fills_at, monkeypatch, unbroken):
    """Journal, record, pictures and MLflow's database are on it as well. At step 8 only the end is
    hit.
    """
    home = disk.path / "home"
    monkeypatch.setenv("DITLAB_HOME", str(home))
    fills_at(step)
    said = ditlab("train", spec, "--local", "--json", *LONG)
    one_sentence(said, 1, "the last checkpoint could not be written")
    (run,) = (home / "train").iterdir()
    store = CheckpointStore.at(run / "checkpoints")
    assert store.steps() == saved_before(step)
    for saved in store.steps():
        store.open(saved).close()

    for line in (
        "runs",
        "sample RUN",
        "evaluate RUN",
        "figures RUN --kind loss",
        f"export RUN --out {disk.path}/out",
        "data inspect digits",
        "runs sync",
        f"train {spec} --local",
        f"train {spec} --local --resume RUN",
    ):
        command = line.replace("RUN", run.name).split()
        said = ditlab(*command, *(LONG if command[0] == "train" else []))
        assert said.code in (0, 1, 2) and "Traceback" not in said.err, (command, said.err)
        assert said.code == 0 or "ditlab: " in said.err

    disk.make_room()
    assert list((home / "train").iterdir()) == [run], "a run that never began left something"
    assert not [path for path in home.rglob("*part*") if path.is_file()], "leftovers"
    said = ditlab("train", spec, "--local", "--json", *LONG, "--resume", run.name).ok()
    assert same_state(newest(run / "checkpoints"), newest(unbroken))
    steps = logged_steps(run)
    assert steps == sorted(set(steps)) and steps[-1] == 8
    said = ditlab("runs", "sync", "--json").ok()
    assert [one["left"] for one in said.json["synced"]] == [0]


def test_a_disk_that_is_full_from_the_start(ditlab, spec, disk, monkeypatch):
    home = disk.path / "home"
    monkeypatch.setenv("DITLAB_HOME", str(home))
    assert ditlab("data", "import", "digits").code == 0
    disk.fill()
    full = f"DITLAB_HOME={home} cannot be written (No space left on device)"
    one_sentence(ditlab("train", spec, "--local"), 2, full)
    assert not [path for path in home.glob("train/*/*") if path.is_file()]
    one_sentence(ditlab("figures", "--kind", "schedules", "--out", disk.path / "out"), 2, "--out")
    disk.make_room()
    assert ditlab("train", spec, "--local").code == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", [["--local"], []], ids=["local", "ray"])
def test_a_full_home_of_a_long_run(how, spec, disk, tmp_path):
    """In processes of their own, where every library's log reaches the terminal. Ray writes below
    the run as well.
    """
    home = disk.path / "home"
    options = ["train", spec, *how, "--json", "--set", "training.steps=1000"]
    options += ["--set", "checkpoint={every: 50, keep: 2}"]
    options += ["--set", "evaluation={every: 500, samples: 4, limit: 32}"]
    process = start_process(*options, home=home)
    manifests = "train/*/checkpoints/*/manifest.json"
    try:
        wait_until(lambda: process.poll() or any(home.glob(manifests)), 120, "a checkpoint")
        assert process.poll() is None, process.communicate(timeout=30)
        disk.fill()
        out, err = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    one_sentence(Said(process.returncode, out, err), 1, "the last checkpoint could not be written")
    disk.make_room()
    (run,) = (home / "train").iterdir()
    said = run_process(*options, "--resume", run.name, home=home, cwd=tmp_path).ok()
    assert said.json["step"] == 1000
    steps = logged_steps(run)
    assert steps == sorted(set(steps)) and steps[-1] == 1000
    said = run_process("runs", "sync", "--json", home=home, cwd=tmp_path).ok()
    assert [one["left"] for one in said.json["synced"]] == [0]
