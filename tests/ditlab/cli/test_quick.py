"""`--quick`: the commands train the short spec, and print what they changed."""

SWEEP = """\
name: small-sweep
base: small.yaml
space: {optimizer.lr: {kind: loguniform, low: 1.0e-4, high: 1.0e-2}}
metric: eval/velocity
trials: 8
"""


def test_a_plan_is_one_of_the_short_run(ditlab, spec):
    said = ditlab("train", spec, "--quick", "--dry-run", "--local").ok()
    assert "name: small-quick\n" in said.out
    assert said.err.startswith("--quick makes ") and "name='small-quick' (was 'small')" in said.err


def test_tune_plans_the_short_sweep(ditlab, spec):
    path = spec.with_name("sweep.yaml")
    path.write_text(SWEEP)
    said = ditlab("tune", path, "--quick", "--dry-run", "--json").ok()
    assert said.json["quick"]["trials"] == {"was": 8, "is": 2} and len(said.json["trials"]) == 2
    assert "  trials=2 (was 8)\n" in said.err


def test_mistakes_are_one_sentence(ditlab, spec, home):
    for command in ("train", "tune"):
        ditlab(command, spec.with_name("nowhere.yaml"), "--quick").refused("no such file")
    sentence = "--quick shortens a sweep's file, and none is given; name the sweep's YAML as well."
    ditlab("tune", "--quick", "--resume", "abc").refused(sentence)
    assert not home.exists()
