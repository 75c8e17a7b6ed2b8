"""A run whose checkpoints lie in an object store: S3, a real server on loopback that can go
down.
"""

import itertools
import os
import signal
from functools import partial

import pytest

from ditlab.checkpoints.store import CheckpointStore
from ditlab.spec.files import load_experiment
from support.trainings.steps import act_after_step
from support.trainings.workers import newest, same_state, train_here

NAMES = itertools.count()
LONG = ["--set", "training.steps=8", "--set", "checkpoint.every=4"]


@pytest.fixture
def place(server):
    """A prefix of its own."""
    return f"s3://bucket/runs/{next(NAMES)}?{server.query}"


@pytest.fixture
def unbroken(spec, tmp_path):
    """Checkpoints of the same run on this machine, without an interruption."""
    # which no bit depends on
    experiment = load_experiment(spec, [*LONG[1::2], "evaluation.every=null"])
    train_here(experiment, tmp_path / "there", tmp_path / "unbroken")
    return tmp_path / "unbroken"


@pytest.fixture
def when(monkeypatch):
    """`when(step, act)` calls `act` once a step has been logged."""
    return partial(act_after_step, monkeypatch)


@pytest.mark.slow
def test_interrupted_resumed_and_used(ditlab, spec, home, server, place, unbroken, when, tmp_path):
    options = [*LONG, "--set", f"checkpoint.storage={place}"]
    when(3, lambda: os.kill(os.getpid(), signal.SIGUSR2))  # as a batch system's warning
    said = ditlab("train", spec, "--local", "--json", *options)
    assert said.code == 130 and said.json["status"] == "interrupted", said.err
    run, stopped = said.json["run_id"], said.json["step"]
    store = CheckpointStore.at(place).child(run)
    assert stopped in (3, 4) and store.steps() == [stopped]
    assert said.json["checkpoint"] == store.location_of(stopped)

    said = ditlab("train", spec, "--local", "--json", "--resume", "auto", *options).ok()
    assert said.json["run_id"] == run
    with store.open(8) as reader:
        assert same_state(reader, newest(unbroken))
    assert not (home / "train" / run / "checkpoints").exists()

    assert ditlab("sample", run, "--num", "2", "--json").json["step"] == 8
    assert "held_out/velocity" in ditlab("evaluate", run, "--json").json["metrics"]
    ditlab("figures", run, "--kind", "samples").ok()
    ditlab("export", run, "--out", tmp_path / "out").ok()
    assert server.query not in (tmp_path / "out" / "spec.yaml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["background", "blocking"])
def test_a_server_that_dies_in_the_middle(mode, ditlab, spec, home, server, place, unbroken, when):
    """The client tries each request for some seconds before it gives up."""
    storage = f"checkpoint={{storage: '{place}', write: {mode}}}"
    options = ["--local", "--json", *LONG, "--set", storage]
    when(7, server.stop)
    try:
        said = ditlab("train", spec, *options)
        assert said.code == 1 and "Traceback" not in said.err, said.err
        assert "the checkpoint of step 8 was not saved" in said.err
        (last,) = [line for line in said.err.splitlines() if line.startswith("ditlab: ")]
        assert "the last checkpoint could not be written (" in last
        assert "; the last whole one is" in last
        (folder,) = (home / "train").iterdir()
        run = folder.name
        journal = (folder / "journal.jsonl").read_text()
        assert all(f'"step":{step},' in journal for step in range(1, 9))  # no step was lost
        for command in (["sample", run], ["train", spec, *options, "--resume", run]):
            said = ditlab(*command)
            assert said.code == 2 and "cannot be" in said.err and "Traceback" not in said.err
    finally:
        server.start()
    store = CheckpointStore.at(place).child(run)
    assert store.steps() in ([4], []) if mode == "background" else store.steps() == [4]
    said = ditlab("train", spec, *options, "--resume", run).ok()
    with store.open(8) as reader:
        assert same_state(reader, newest(unbroken))
