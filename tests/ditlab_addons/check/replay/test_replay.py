"""`ditlab replay` on a finished run: what it shows, what it checks, what it refuses; the run stays
as it is.
"""

import json
import shutil
from dataclasses import replace
from functools import partial

import pytest

from ditlab.storage.files import add_checksum
from ditlab_addons.check import process_group
from ditlab_addons.check.replay.history import read_history
from support.opened import file_states
from support.trainings.groups import warm_processes


@pytest.fixture
def replay(finished, cli, monkeypatch):
    """`ditlab replay small ...` on the session's finished run, in warm processes."""
    monkeypatch.setenv("DITLAB_HOME", str(finished.home))
    monkeypatch.setattr(process_group, "_context", warm_processes)
    return partial(cli, "replay", "small")


@pytest.fixture
def copied(replay, own_home, finished):
    """Folder of a copy of the run, which a test may damage."""
    return own_home.run(finished.run_id).path


@pytest.mark.slow
def test_a_finished_run_replays_to_the_bit_and_stays_as_it_is(replay, finished):
    before = file_states(finished.home)  # with the MLflow store, the data and the caches
    said = replay("--step", "1", "--to", "4", "--check", "--json").ok()
    found = said.json
    assert found["holds"]
    assert found["bound"] == 0
    assert found["origin"] == "from step 0: 4 steps to train"
    compared = [(each["step"], each["quantity"], each["source"]) for each in found["comparisons"]]
    assert len(compared) == 4 * 4 and len(set(compared)) == len(compared)
    assert {(each["distance"], each["holds"]) for each in found["comparisons"]} == {(0.0, True)}
    said = replay("--step", "3", "--json").ok()
    (step,) = said.json["steps"]
    receipts = {
        each["quantity"]: each["replayed"] for each in found["comparisons"] if each["step"] == 3
    }
    assert said.json["origin"] == "from checkpoint 2: 1 step to train"
    assert step["metrics"]["train/loss"] == pytest.approx(receipts["loss"], rel=1e-6)
    assert step["digest"] == receipts["samples"]
    assert sum(layer["gradient_norm"] ** 2 for layer in step["layers"]) ** 0.5 == pytest.approx(
        step["metrics"]["train/grad_norm"], rel=1e-5
    )
    mean = sum(sample["loss"] for sample in step["samples"]) / len(step["samples"])
    assert mean == pytest.approx(step["metrics"]["train/loss"], rel=1e-5)
    assert step["loss_is_mean_of_samples"]
    assert [sample["row"] for sample in step["samples"]] == step["rows"]
    assert len(set(step["rows"])) == 32
    assert step["samples"][0]["text"].startswith("label ") and 0 <= step["samples"][0]["time"] < 1
    assert max(map(len, said.err.splitlines())) <= 80
    assert "clipped norm" in said.err
    assert "head" in said.err
    assert file_states(finished.home) == before


@pytest.mark.slow
def test_what_is_off_is_found(replay, copied):
    """A loss changed in the journal, with its line's checksum made anew, of a run whose receipts
    are gone.
    """
    shutil.rmtree(copied / "receipts")
    lines = copied.joinpath("journal.jsonl").read_bytes().splitlines(keepends=True)
    for index, line in enumerate(lines):
        record = json.loads(line)
        if record["kind"] == "metrics" and record["step"] == 3 and "train/loss" in record["values"]:
            record.pop("crc")
            record["values"]["train/loss"] *= 1.5
            lines[index] = add_checksum(json.dumps(record, separators=(",", ":")).encode()) + b"\n"
    copied.joinpath("journal.jsonl").write_bytes(b"".join(lines))
    said = replay("--step", "3", "--check")
    assert said.code == 1 and "1 off" in said.out
    (row,) = [line for line in said.out.splitlines() if line.rstrip().endswith("off")]
    assert row.split()[:3] == ["3", "loss", "journal"]


def test_wrong_input_is_refused_before_anything_is_trained(replay, copied, monkeypatch):
    def no_process(*_):
        raise AssertionError("a process was started")

    monkeypatch.setattr("ditlab_addons.check.replay.replaying.run_workers", no_process)
    for arguments, words in {
        ("--step", "0"): "--step 0: run {id} (small) has no such step; it has steps 1 to 4.",
        ("--step", "2", "--to", "5"): (
            "--to 5: run {id} (small) has no such step; it has steps 1 to 4."
        ),
        ("--step", "3", "--to", "2"): "--step 3 is behind --to 2; give --to a later step.",
        (): "Missing option '--step'",
    }.items():
        replay(*arguments).refused(words.replace("{id}", copied.name))
    monkeypatch.setattr(
        "ditlab_addons.check.replay.replaying.code_digest", lambda packages: "0" * 64
    )
    other = "the code is other than the run's (hash 000000000000, the run's: "
    replay("--step", "2").refused(other, "or replay with --anyway")
    spec = copied / "spec.yaml"
    spec.write_text(spec.read_text().replace("gpus_per_worker: 0.0", "gpus_per_worker: 1.0"))
    said = replay("--step", "2")
    assert said.code == 2 and "this machine has no GPU, and the run was trained on cpu" in said.err


def test_other_data_and_a_parents_missing_checkpoint_are_named(replay, copied, monkeypatch):
    with monkeypatch.context() as patch:
        other = lambda run: replace(read_history(run), data="f" * 64)  # noqa: E731
        patch.setattr("ditlab_addons.check.replay.replaying.read_history", other)
        replay("--step", "2").refused("the data are other than the run's (fingerprint ")
    spec = copied / "spec.yaml"
    text = spec.read_text()
    assert "start: null" in text
    spec.write_text(text.replace("start: null", "start: {run: 0badf00d, step: 1, state: all}"))
    said = replay("--step", "2")
    assert said.code == 2 and "run 0badf00d is not there" in said.err
