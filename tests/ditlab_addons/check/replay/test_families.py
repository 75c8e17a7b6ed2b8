"""Replays in every family, of forks, of runs resumed on other workers, and of steps that were left
out.
"""

import pytest
import yaml

from ditlab.training.recovery import MemoryPlan
from ditlab_addons.check import process_group
from support.trainings.attempts import LocalAttempt, train_attempts
from support.trainings.family_specs import FAMILIES, smallest
from support.trainings.forks import SILENT, small
from support.trainings.groups import warm_processes

pytestmark = pytest.mark.slow


@pytest.fixture
def ditlab(tmp_path, cli, monkeypatch):
    """`ditlab ...` in this process, in a home of its own, with warm worker processes."""
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(process_group, "_context", warm_processes)
    return cli


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_shows_its_samples(ditlab, tmp_path, family):
    """Losses by sample join to the step's, layers' norms to the gradient's."""
    spec = smallest(family, training__steps=6, checkpoint__every=2, checkpoint__keep=1)
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec.to_dict()))
    ditlab("train", file, "--local", "--set", f"tracking.uri={SILENT}").ok()
    said = ditlab("replay", spec.name, "--step", "4", "--json").ok()
    (step,) = said.json["steps"]
    assert said.json["origin"] == "from step 0: 4 steps to train"
    assert len(step["samples"]) == spec.batch.size
    assert all(sample["text"] for sample in step["samples"])
    assert all(sample["time"] is not None for sample in step["samples"])
    joined = sum(layer["gradient_norm"] ** 2 for layer in step["layers"]) ** 0.5
    assert joined == pytest.approx(step["metrics"]["train/grad_norm"], rel=1e-4)
    if step["loss_is_mean_of_samples"]:
        mean = sum(sample["loss"] for sample in step["samples"]) / spec.batch.size
        assert mean == pytest.approx(step["metrics"]["train/loss"], rel=1e-3)
    said = ditlab("replay", spec.name, "--step", "1", "--to", "6", "--check", "--json").ok()
    assert said.json["bound"] == 0 and len(said.json["comparisons"]) == 6 * 4


def test_a_fork_and_its_lost_parent(ditlab, tmp_path):
    experiment = small(training={"steps": 4}, checkpoint={"every": 2, "keep": 9})
    parent = train_attempts(experiment, [LocalAttempt(1)])
    fork = tmp_path / "fork.yaml"
    fork.write_text(yaml.safe_dump(experiment.replace("training.steps", 8).to_dict()))
    said = ditlab(
        "train", fork, "--local", "--from", f"{parent.run_id}@2", "--set", "name=fork", "--json"
    ).ok()
    fork_id = said.json["run_id"]
    said = ditlab("replay", fork_id, "--step", "3", "--to", "4", "--check", "--json").ok()
    assert said.json["origin"] == "from step 2: 2 steps to train"
    ditlab("replay", fork_id, "--step", "2").refused("it has steps 3 to 8")
    for path in (parent.path / "checkpoints" / "step-00000002").iterdir():
        path.unlink()
    ditlab("replay", fork_id, "--step", "3").refused("start.step=2: ")
    ditlab("replay", fork_id, "--step", "6", "--check").ok()


def test_a_step_that_was_left_out(ditlab):
    """It shows its samples and no loss; the steps after it are replayed without it."""
    experiment = small(training={"steps": 5}, checkpoint={"every": 2, "keep": 1})
    folder = train_attempts(
        experiment, [LocalAttempt(1, memory=MemoryPlan(microbatch_splits=1, skipped_steps=(2,)))]
    )
    said = ditlab("replay", folder.run_id, "--step", "1", "--to", "5", "--check", "--json").ok()
    assert said.json["unchecked"] == ["step 3: its batch was skipped."], said.err
    compared = [each["step"] for each in said.json["comparisons"]]
    assert sorted(set(compared)) == [1, 2, 4, 5]
    said = ditlab("replay", folder.run_id, "--step", "3").ok()
    assert "was skipped: no loss, no update" in said.out
    ditlab("replay", folder.run_id, "--step", "3", "--check").ok()


def test_another_machine_is_judged_by_a_derived_bound(ditlab, monkeypatch):
    folder = train_attempts(small(training={"steps": 4}), [LocalAttempt(1)])
    monkeypatch.setattr(
        "ditlab_addons.check.replay.replaying.processor_name", lambda: "another processor"
    )
    said = ditlab("replay", folder.run_id, "--step", "2", "--to", "4", "--check", "--json").ok()
    assert 0 < said.json["bound"] < 1e-3, said.err
    assert said.json["bound_reason"].startswith("processor another processor (the run's: ")
