"""`ditlab replay` on a finished run: what it shows, what it checks, what it refuses; the run stays as it is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ditlab.home import Home
from ditlab.storage.files import add_checksum
from ditlab_addons.check import process_group
from support.command import Said, run_here
from support.homes import settled
from support.opened import file_states
from support.trainings.groups import warm_processes


@pytest.fixture
def replay(finished: Any, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """`ditlab replay small ...` on the session's finished run, in warm processes."""
    monkeypatch.setenv("DITLAB_HOME", str(finished.home))
    monkeypatch.setattr(process_group, "_context", warm_processes)
    return lambda *arguments: run_here(capfd, monkeypatch, "replay", "small", *arguments)


@pytest.fixture
def copied(replay: Callable[..., Said], finished: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a copy of the run, which a test may damage."""
    settled(shutil.copytree(finished.home, tmp_path / "home"))
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "train" / finished.run_id


def test_a_finished_run_replays_to_the_bit_and_stays_as_it_is(
    replay: Any, finished: Any, tmp_path: Path, blank_pictures: None
) -> None:
    before = file_states(finished.home)  # with the MLflow store, the data and the caches
    said = replay("--step", "1", "--to", "4", "--check", "--json")
    assert said.code == 0, said.err
    found = said.json
    assert found["holds"] and found["bound"] == 0 and found["origins"] == ["from step 0: 4 steps to train"]
    compared = [(each["step"], each["quantity"], each["source"]) for each in found["comparisons"]]
    assert len(compared) == 4 * 7 and len(set(compared)) == len(compared)
    assert {(each["distance"], each["holds"]) for each in found["comparisons"]} == {(0.0, True)}
    said = replay("--step", "3", "--set", "training.clip.max_norm=0.5", "--json", "--out", tmp_path / "out")
    assert said.code == 0, said.err
    own, changed = said.json["steps"]
    journaled = {each["quantity"]: each["replayed"] for each in found["comparisons"] if each["step"] == 3}
    assert said.json["origins"] == ["from checkpoint 2: 1 step to train"]
    for step in (own, changed):
        assert (step["metrics"]["train/loss"], step["digest"]) == (journaled["loss"], journaled["samples"])
        assert sum(layer["gradient_norm"] ** 2 for layer in step["layers"]) ** 0.5 == pytest.approx(
            step["metrics"]["train/grad_norm"], rel=1e-5
        )
        mean = sum(sample["loss"] for sample in step["samples"]) / len(step["samples"])
        assert mean == pytest.approx(step["metrics"]["train/loss"], rel=1e-5) and step["loss_is_mean_of_samples"]
    assert changed["clipped_norm"] == pytest.approx(0.5, rel=1e-4) and own["clipped_norm"] > 0.6
    assert [sample["row"] for sample in own["samples"]] == own["rows"] and len(set(own["rows"])) == 32
    assert own["samples"][0]["text"].startswith("label ") and 0 <= own["samples"][0]["time"] < 1
    assert {*own["samples"][0]["draws"]} == {"time", "noise"}
    assert [Path(file).name for file in said.json["files"]] == ["step-00000003.png", "step-00000003-changed.png"]
    shown = [line for line in said.err.splitlines() if str(tmp_path) not in line]
    assert max(map(len, shown)) <= 80 and "clipped norm" in said.err
    assert file_states(finished.home) == before


def test_what_is_off_is_found(replay: Any, copied: Path) -> None:
    """A loss changed in the journal, with its line's checksum made anew."""
    lines = copied.joinpath("journal.jsonl").read_bytes().splitlines(keepends=True)
    for index, line in enumerate(lines):
        record = json.loads(line)
        if record["kind"] == "metrics" and record["step"] == 3 and "train/loss" in record["values"]:
            record.pop("crc")
            record["values"]["train/loss"] *= 1 + 1e-6
            lines[index] = add_checksum(json.dumps(record, separators=(",", ":")).encode()) + b"\n"
    copied.joinpath("journal.jsonl").write_bytes(b"".join(lines))
    said = replay("--step", "3", "--check")
    assert said.code == 1 and "OFF" in said.out and "1 off" in said.out
    (row,) = [line for line in said.out.splitlines() if "OFF" in line]
    assert row.split()[:3] == ["3", "loss", "journal"]


@pytest.mark.slow
def test_a_checkpoint_that_goes_meanwhile(replay: Any, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in training prunes the checkpoint that a replay has just chosen: it begins before it."""
    from ditlab_addons.check.replay import replaying

    run_plan = replaying.run_plan

    def pruned_first(*arguments: Any) -> Any:
        shutil.rmtree(copied / "checkpoints" / "step-00000002", ignore_errors=True)
        return run_plan(*arguments)

    monkeypatch.setattr(replaying, "run_plan", pruned_first)
    said = replay("--step", "3", "--check", "--json")
    assert said.code == 0, said.err
    assert said.json["origins"] == [
        "from step 0, as no checkpoint before step 3 is left (the earliest is of step 4): 3 steps to train"
    ]
    assert any("The replay begins before it." in text for text in said.json["remarks"])


@pytest.mark.slow
def test_the_worst_steps_are_explained_and_damaged_checkpoints_passed_over(replay: Any, copied: Path) -> None:
    shard = next(copied.joinpath("checkpoints", "step-00000002").glob("shard-*"))
    whole = shard.read_bytes()
    content = bytearray(whole)
    content[-5] ^= 1
    shard.write_bytes(bytes(content))
    said = replay("--worst", "2", "--json")
    assert said.code == 0, said.err
    assert len(said.json["worst"]) == 2 and all(
        "times its neighbours' median" in text for text in said.json["explanations"]
    )
    said = replay("--step", "3")
    text = " ".join(said.out.split())
    assert said.code == 0 and "The replay begins before it." in text
    assert "from step 0, as no checkpoint before step 3 is left (the earliest is of step 4): 3 steps to train" in text
    shard.write_bytes(whole[:-1])
    said = replay("--step", "3", "--json")
    assert said.code == 0, said.err
    assert said.json["remarks"] == ["The checkpoint of step 2 is not whole; no replay begins from it."]


def test_wrong_input_is_refused_before_anything_is_trained(
    replay: Any, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("ditlab_addons.check.replay.replaying.run_workers", no_process)
    for arguments, words in {
        ("--step", "0"): "--step 0: run {id} (small) has no such step; it has steps 1 to 4.",
        ("--step", "-2"): "--step -2: run {id} (small) has no such step; it has steps 1 to 4.",
        ("--step", "1", "--to", "0"): "--step 1 is behind --to 0; give --to a later step.",
        ("--step", "1", "--out", "/proc/none"): "--out /proc/none",
        ("--step", "9"): "--step 9: run {id} (small) has no such step; it has steps 1 to 4.",
        ("--step", "2", "--to", "5"): "--to 5: run {id} (small) has no such step; it has steps 1 to 4.",
        ("--step", "3", "--to", "2"): "--step 3 is behind --to 2; give --to a later step.",
        (): "nothing says which step to replay; give --step N, or --worst K.",
        ("--worst", "2", "--step", "1"): "--worst finds its steps itself; leave --step and --to out.",
        ("--worst", "2", "--check"): "--check and --worst exclude each other; give one of them.",
        ("--step", "1", "--to", "2", "--set", "optimizer.lr=1"): "--set replays a single step",
        ("--step", "2", "--set", "seed=4"): "changes which samples the step takes",
        ("--step", "2", "--set", "model.depth=2"): "does not fit, in 12 tensors",
        ("--step", "2", "--set", "optimizer.kind=muon"): "the state of run {id} is that of optimizer.kind=adamw",
        ("--step", "2", "--set", "training.clip.max_nrm=4"): "max_nrm",
    }.items():
        said = replay(*arguments)
        assert said.code == 2 and words.replace("{id}", copied.name) in said.err, (arguments, said.err)
        assert "Traceback" not in said.err
    monkeypatch.setattr("ditlab_addons.check.replay.replaying.code_digest", lambda packages: "0" * 64)
    said = replay("--step", "2")
    assert said.code == 2 and "the code is other than the run's (hash 000000000000, the run's: " in said.err
    assert "or replay with --anyway" in said.err
    spec = copied / "spec.yaml"
    spec.write_text(spec.read_text().replace("gpus_per_worker: 0.0", "gpus_per_worker: 1.0"))
    said = replay("--step", "2")
    assert said.code == 2 and "this machine has no GPU, and the run was trained on cpu" in said.err


def test_other_data_and_a_parents_missing_checkpoint_are_named(
    replay: Any, copied: Path, finished: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ditlab_addons.check.replay import history, replaying

    read = history.read_history

    def of_other_data(run: Any) -> Any:
        from dataclasses import replace

        return replace(read(run), data="f" * 64)

    monkeypatch.setattr(replaying, "read_history", of_other_data)
    said = replay("--step", "2")
    assert said.code == 2 and "the data are other than the run's (fingerprint " in said.err
    monkeypatch.setattr(replaying, "read_history", read)
    spec = copied / "spec.yaml"
    text = spec.read_text()
    assert "start: null" in text
    spec.write_text(text.replace("start: null", "start: {run: 0badf00d, step: 1, state: all}"))
    said = replay("--step", "2")
    assert said.code == 2 and "is replayed from its parent's checkpoint, and that is gone" in said.err
    assert "replay step 3 or a later one, from checkpoint 2 of its own (1 step)" in said.err
    assert Home(copied.parents[1]).run(finished.run_id).path == copied
