"""`ditlab verify`: a whole run holds; a changed byte in any of its files is found and named;
nothing is written.
"""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

import ditlab
from ditlab_addons.check.verify.verification import verify_run
from support.command import run_inside
from support.damage import refused
from support.damaged.verified import flip, off, opened, verified
from support.opened import file_states
from support.trainings.forks import small


def test_a_whole_run_holds(made):
    before = file_states(made)
    found = verified(made)
    parts = ["receipts", "checkpoints", "averages", "journal", "spec", "code", "data", "samples"]
    expected = dict.fromkeys(parts, "holds") | {"replay": "not checked"}
    assert {part.part: part.verdict for part in found.parts} == expected
    assert found.holds and json.dumps(found.to_dict())
    assert file_states(made) == before


def test_other_samples_than_the_order_s_are_found(home):
    """As if another order had been trained on: the digests of all steps differ from those computed
    anew.
    """
    run = opened(home)
    object.__setattr__(run, "experiment", run.experiment.replace("seed", run.experiment.seed + 1))
    found = verify_run(run, steps=0)
    assert "step" in next(
        part.sentence for part in found.parts if part.part == "samples" and part.verdict == "off"
    )


def test_missing_receipts(home):
    shutil.rmtree(opened(home).folder.receipts)
    assert "has no receipts" in off(home)["receipts"]


def test_a_pruned_history_is_no_fault(home):
    """Of a run whose checkpoints are gone the rest is verified."""
    shutil.rmtree(opened(home).folder.checkpoints)
    found = verified(home)
    assert found.holds
    unchecked = {part.part for part in found.parts if part.verdict == "not checked"}
    assert {"checkpoints", "receipts"} <= unchecked


def test_snapshots_of_averages(home):
    """One that is altered is named with its remedy."""
    folder = opened(home).folder.checkpoints / "averages"
    whole = {part.part: part.sentence for part in verified(home).parts}["averages"]
    assert "11 kept (steps 1 to 11)" in whole and "every shard has its hash" in whole
    (shard,) = (folder / "step-00000005").glob("*.safetensors")
    flip(shard, 200)
    assert "step-00000005" in off(home)["averages"]
    shutil.rmtree(folder)
    found = verified(home)
    assert found.holds and "averages" in found.conclusion.split("Nothing is said of:")[1]


def test_other_code_is_no_fault(home, monkeypatch):
    from ditlab_addons.check.replay import replaying
    from ditlab_addons.check.verify import verification

    for module in (replaying, verification):
        monkeypatch.setattr(module, "code_digest", lambda packages: "0" * 64)
    found = verified(home, steps=2)
    assert found.holds
    assert any("--anyway" in part.sentence for part in found.parts if part.part == "replay")


def test_the_command(home):
    """Exit codes and JSON."""
    assert run_inside("verify", "checked", "--steps", "0", "--json", home=home).ok().json["holds"]
    flip(opened(home).folder.receipt_rows, 3)
    said = run_inside("verify", "checked", "--steps", "0", home=home)
    assert said.code == 1 and "Off: receipts." in said.out


def test_wrong_options(home):
    """One sentence that names the option and its value, and exit code 2."""
    for arguments in (
        ("checked", "--steps", "-1"),
        ("checked", "--steps", "1001"),
        ("checked", "--seed", str(1 << 70)),
        ("nobody",),
    ):
        words = [each for each in arguments if each != "checked"]
        run_inside("verify", *arguments, home=home).refused(*words)
    for name in ("steps", "seed"):
        with refused(f"{name}=-1 is below"):
            ditlab.verify("checked", **{name: -1})


def test_data_that_are_gone(home):
    """Built-in data are built again; a store that lies nowhere is off, and nothing is done again
    from others.
    """
    shutil.rmtree(home / "stores")
    assert verified(home).holds
    run = opened(home)
    gone = run.experiment.replace("data", {"kind": "arrow", "path": str(home / "nowhere")})
    object.__setattr__(run, "experiment", gone)
    found = {part.part: part for part in verify_run(run).parts}
    assert found["data"].verdict == "off" and "nowhere" in found["data"].sentence
    assert found["replay"].verdict == "not checked"
    assert "no step was done again" in found["replay"].sentence


@pytest.mark.slow
def test_a_run_in_training(tmp_path):
    """Verified again and again from its first second to its end, while checkpoints are written and
    pruned.
    """
    home = tmp_path / "home"
    spec = small(training={"steps": 500}, checkpoint={"every": 10, "keep": 3}, name="checked")
    (tmp_path / "spec.yaml").write_text(json.dumps(spec.to_dict()))
    command = [sys.executable, "-m", "ditlab", "train", str(tmp_path / "spec.yaml"), "--local"]
    environment = {**os.environ, "DITLAB_HOME": str(home), "OMP_NUM_THREADS": "1"}
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
    verifications, running = 0, True
    try:
        while running:
            running = process.poll() is None
            if not list(home.glob("train/*/receipts/steps.bin")):
                time.sleep(0.2)
                continue
            found = verified(home)
            assert found.holds, [part for part in found.parts if part.verdict == "off"]
            verifications += running
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, (tmp_path / "said").read_text()
    assert verifications > 2 and verified(home).holds
