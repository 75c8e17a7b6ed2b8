"""`--quick`: the commands train the short spec, and print what they changed."""

import pytest

from ditlab.spec.files import load_experiment

SWEEP = """\
name: small-sweep
base: small.yaml
space: {optimizer.lr: {kind: loguniform, low: 1.0e-4, high: 1.0e-2}}
metric: eval/velocity
trials: 8
"""


@pytest.mark.slow
def test_train_prints_its_changes_and_trains_the_short_run(ditlab, spec, home):
    said = ditlab("train", spec, "--quick", "--local", "--json", "--set", "training.steps=3").ok()
    assert said.json["quick"]["batch.size"] == {"was": 32, "is": 16} and said.json["step"] == 3
    assert "--quick makes " in said.err and "  batch.size=16 (was 32)\n" in said.err
    trained = load_experiment(next(home.glob("train/*/spec.yaml")))
    assert (trained.name, trained.batch.size, trained.training.steps) == ("small-quick", 16, 3)


def test_a_plan_is_one_of_the_short_run(ditlab, spec):
    said = ditlab("train", spec, "--quick", "--dry-run", "--local").ok()
    assert "name: small-quick\n" in said.out
    assert said.err.startswith("--quick makes ") and "name='small-quick' (was 'small')" in said.err


def test_tune_plans_the_short_sweep(ditlab, spec):
    path = spec.with_name("sweep.yaml")
    path.write_text(SWEEP, encoding="utf-8")
    said = ditlab("tune", path, "--quick", "--dry-run", "--json").ok()
    assert said.json["quick"]["trials"] == {"was": 8, "is": 2} and len(said.json["trials"]) == 2
    assert "  trials=2 (was 8)\n" in said.err


@pytest.mark.parametrize("command", ["train", "tune"])
def test_mistakes_are_one_sentence(ditlab, spec, home, command):
    said = ditlab(command, spec.with_name("nowhere.yaml"), "--quick").refused("no such file")
    said = ditlab("tune", "--quick", "--resume", "abc")
    assert said.err == (
        "ditlab: --quick shortens a sweep's file, and none is given; name the sweep's YAML "
        "as well.\n"
    )
    assert not home.exists()
