"""Forks that cannot begin: one sentence each, and nothing left behind."""

import shutil

from ditlab.api.training import plan_training
from ditlab.tracking.records import create_run
from support.damage import refused
from support.trainings.checkpoints import edit_bytes, shard_of
from support.trainings.workers import TINY, tiny

MODEL = TINY["model"]


def planned(at, weights_only=False, resume=None, **changes):
    spec = tiny(**{"training__steps": 9, **changes})
    return plan_training(spec, local=True, start_from=at, weights_only=weights_only, resume=resume)


def test_a_start_that_cannot_be_is_refused_in_a_sentence(home, parent):
    """(--from, changes, beginning and end of the sentence)."""
    before = sorted(home.root.rglob("*"))
    cases = [
        (
            None,
            {"weights_only": True},
            "--weights-only says what --from takes over, and --from is not given; add .*",
        ),
        (
            "base@3",
            {"resume": parent},
            f"--from base@3 and --resume {parent} exclude each other.*leave --from out.*",
        ),
        (
            "base",
            {"resume": "auto"},
            "--from base with --resume auto would be another fork .* as in --from base@.*",
        ),
        (
            "nobody@3",
            {},
            "--from nobody@3: run 'nobody' is unknown under .*`ditlab runs` lists them.",
        ),
        ("base@5", {}, f"start.step=5: run {parent} has no checkpoint of that step; it has 3, 6."),
        (
            "base@6",
            {"training__steps": 6},
            (
                "training.steps=6 leaves nothing to train from start.step=6 on; set training.steps above that, or .*"
            ),
        ),
        (
            "base@6",
            {"training": {"epochs": 1, "steps": None}, "batch": {"size": 800, "micro": 16}},
            "start.step=6 leaves nothing of the run's 2 steps; raise training.epochs, or .*",
        ),
        (
            "base@3",
            {"model": {**MODEL, "width": 48}},
            rf"run {parent} has other parameters than this network and loss in \d+ tensors: network\.\S+ \S+ here, "
            r"\S+ there, .* and \d+ more; give model and objective as that run has them.",
        ),
        (
            "base@3",
            {"model": {**MODEL, "depth": 3}},
            r".*network\.blocks\.2\.\S+ \S+ here, none there.*",
        ),
        (
            "base@3",
            {"model": {"family": "unet", "image_size": 8}},
            (
                f"model.family=unet cannot go on from run {parent}, a dit; name a run of the same family."
            ),
        ),
        (
            "base@3",
            {"optimizer": {"kind": "muon"}},
            f"optimizer.kind=muon cannot go on with the moments of run {parent}, which optimizer.kind=adamw wrote; .*"
            r"take its weights alone \(--weights-only, start.state\).",
        ),
    ]
    for at, changes, sentence in cases:
        with refused(f"^{sentence}$"):
            planned(at, **changes)
    assert sorted(home.root.rglob("*")) == before
    assert planned("base@3", resume="auto").total_steps == 9
    assert (
        planned("base@3")
        .notes[1]
        .startswith(
            f"fork of run {parent} (base) at step 3: all of its state; schedules and noise go on at that step, the order "
        )
    )


def test_a_state_that_is_missing(home, run):
    plain = run(name="plain", training={"steps": 2, "ema": None}).run_id
    with refused(rf"training.ema is set, and run {plain} keeps no average.*set .* to null"):
        planned("plain")
    with refused(r"start.state=averaged: run \w+ keeps no average .*set start.state to trained"):
        planned(None, start={"run": plain, "step": 2, "state": "averaged"})
    assert "its trained weights" in planned("plain", weights_only=True).notes[1]


def test_damaged_and_missing_checkpoints(home, parent):
    checkpoints = home.run(parent).checkpoints
    edit_bytes(shard_of(checkpoints, 3), lambda content: content[:-1] + bytes([content[-1] ^ 1]))
    with refused(r"^start.step=3: .*altered \(its hash differs.*; use an earlier checkpoint"):
        planned("base@3")
    (checkpoints / "step-00000006" / "manifest.json").unlink()
    with refused(rf"start.step=6: run {parent} has no checkpoint of that step; it has 3\.$"):
        planned("base@6")
    shutil.rmtree(checkpoints)
    with refused(rf"--from base: run {parent} \(finished\) has no checkpoint at .* yet"):
        planned("base")
    home.run(parent).spec.unlink()
    with refused(rf"run {parent} is not there: .*spec.yaml is missing"):
        planned("base@3")


def test_a_parent_by_name_and_a_sweep(home, parent):
    start = {"run": "base", "step": 3}
    with refused(rf"start.run=base names run {parent}; write that id"):
        planned(None, start=start)
    create_run(home, "sweep", family="dit", spec_hash="", trials=2)
    with refused(r"--from sweep@3: run 'sweep' is a sweep of 2 trials"):
        planned("sweep@3")


def test_a_parent_that_cannot_be_marked_leaves_no_fork(home, parent, run, monkeypatch):
    """Its checkpoint is pruned between the check and the start."""
    import ditlab.runs.prepare as prepare

    def gone(start, home_, run_id, hold=prepare.hold_start):
        shutil.rmtree(home.run(parent).checkpoints / "step-00000003")
        hold(start, home_, run_id)

    monkeypatch.setattr(prepare, "hold_start", gone)
    before = sorted(path.name for path in home.runs.iterdir())
    with refused(r"step-00000003: no manifest.json, so no finished checkpoint"):
        run(f"{parent}@3", training__steps=6)
    assert sorted(path.name for path in home.runs.iterdir()) == before
    assert not (home.run(parent).checkpoints / "step-00000003").exists()
