"""Going on with a run: what may change, what its record holds, and how a failure is recorded."""

import pytest

from ditlab import numerics
from ditlab.api.training import plan_training, train
from ditlab.errors import RunFailed
from ditlab.runs.locks import lock_run
from ditlab.tracking.history import metric_history
from ditlab.tracking.records import find_run, list_runs, read_record, update_record
from ditlab.training.plan import learning_rate
from ditlab.training.trainer import Trainer
from support.damage import refused
from support.journals import read_records
from support.trainings.workers import newest, tiny


def go(experiment, resume=None):
    warnings = []
    return train(experiment, local=True, resume=resume, warn=warnings.append), warnings


def of_kind(folder, kind):
    return [record for record in read_records(folder.journal) if record["kind"] == kind]


def tagged(folder, tag):
    """Every value that a tag has had."""
    values = [record["values"] for record in of_kind(folder, "tags")]
    return [each[tag] for each in values if tag in each]


def only_run(home):
    (record,) = list_runs(home)
    return record.run_id


def test_each_change_and_both_rates_are_said_before_the_first_step_and_journaled(run_home):
    """The rate of a run of cosine jumps where the run becomes longer: it is a function of the whole
    length.
    """
    cosine = {"kind": "warmup_cosine", "final": 0.1}
    run = train(tiny(name="cosine", training__steps=4, schedule=cosine), local=True).run_id
    folder = run_home.run(run)
    before, old = folder.spec.read_bytes(), read_record(folder).spec_hash
    longer = tiny(name="cosine", training__steps=8, schedule=cosine, tracking__every=2)
    said = []
    assert [line for line in plan_training(longer, local=True, resume=run).notes if "->" in line]
    train(longer, local=True, resume=run, say=said.append)
    rates = "learning rate 0.0001 at step 4 and 0.0004499 at step 5, where the schedule of before gives 0.0001"
    assert said[1:4] == [
        "resumed with training.steps: 4 -> 8",
        "resumed with tracking.every: 1 -> 2",
        rates,
    ]
    (record,) = of_kind(folder, "resume")
    new = read_record(folder).spec_hash
    assert (record["step"], record["rates"]) == (4, rates)
    changes = {"training.steps": ("4", "8"), "tracking.every": ("1", "2"), "spec_hash": (old, new)}
    assert record["changes"] == changes
    rate = metric_history(folder)["train/lr"]
    logged = dict(zip(rate.steps.tolist(), rate.values.tolist(), strict=True))
    for step, wanted in ((4, 1e-4), (6, learning_rate(longer.schedule, 1e-3, 5, 8, 1))):
        assert f"{logged[step]:.4g}" == f"{wanted:.4g}"
    assert folder.spec_of(old).read_bytes() == before and new == longer.content_hash() != old
    note = (folder.media / "note.md").read_text()
    assert "steps=8" in note and "resumed after step 4 with training.steps&#58; 4 -&#62; 8" in note
    # the same again changes nothing, and a spec as before is a change as well
    train(longer, local=True, resume=run, say=said.append)
    back = tiny(name="cosine", training__steps=8, schedule=cosine)
    train(back, local=True, resume=run, say=said.append)
    found = [each["changes"] for each in of_kind(folder, "resume")]
    assert found[1:] == [{"tracking.every": ("2", "1")}]


def test_auto_says_which_run_it_means_or_why_none(run_home):
    """A finished run has no successor by itself: a new one begins, and the line names the run to go
    on from.
    """
    run, spec = only_run(run_home), tiny(training__steps=2)
    has_hash = f"spec hash {spec.content_hash()}"

    def noted(experiment):
        notes = plan_training(experiment, local=True, resume="auto").notes
        return notes[1].removeprefix("--resume auto: ")

    none = f"no unfinished run {spec.name} has {has_hash}, so a new one begins"
    assert noted(spec) == f"{none}; the newest of that name, {run} (finished), has {has_hash}"
    update_record(run_home.run(run), status="interrupted")
    assert noted(spec) == f"run {run} ({spec.name}, {has_hash}), interrupted at step 2 of 2"
    assert f"{run} (interrupted)" in noted(tiny(training__steps=3))
    assert noted(tiny(name="another")).endswith("so a new one begins")
    # resumed with another length, it is found by its spec of now
    go(tiny(training__steps=3), run)
    update_record(run_home.run(run), status="interrupted")
    assert noted(tiny(training__steps=3)).startswith(f"run {run} (")


def test_a_stable_rate_goes_on_and_ends_without_a_jump(run_home):
    stable = {"kind": "warmup_stable_decay", "warmup": 2}
    run = train(tiny(name="stable", training__steps=4, schedule=stable), local=True).run_id
    said = []
    longer = tiny(name="stable", training__steps=6, schedule=stable)
    train(longer, local=True, resume=run, say=said.append)
    ended = tiny(name="stable", training__steps=8, schedule={**stable, "decay_start": 6})
    train(ended, local=True, resume=run, say=said.append)
    assert [line for line in said if line.startswith(("resumed", "learning"))] == [
        "resumed with training.steps: 4 -> 6",
        "resumed with schedule.decay_start: null -> 6",
        "resumed with training.steps: 6 -> 8",
        "learning rate 0.001 at step 6 and 0.0002929 at step 7, where the schedule of before gives 0.001",
    ]
    with refused(r"another experiment: schedule.final=0.5 \(was 0.0\)"):
        go(tiny(name="stable", training__steps=9, schedule={**stable, "final": 0.5}), run)


def test_a_run_does_not_leave_its_checkpoints_behind(run_home, tmp_path):
    run = only_run(run_home)
    with refused(rf"is not where run {run} keeps its .*set checkpoint.storage=null"):
        go(tiny(training__steps=3, checkpoint={"storage": str(tmp_path / "elsewhere")}), run)


def test_two_processes_do_not_train_one_run(run_home):
    run = only_run(run_home)
    folder = run_home.run(run)
    before = read_record(folder)
    with (
        lock_run(folder),
        refused(f"run {run} is being trained by another process"),
    ):
        go(tiny(training__steps=3), run)
    assert read_record(folder) == before


def test_another_numerics_version_is_recorded_and_a_resume_across_versions_warns(
    run_home, monkeypatch
):
    """A run of this version goes on with the next."""
    run = only_run(run_home)
    folder = run_home.run(run)
    now, later = numerics.NUMERICS_VERSION, numerics.NUMERICS_VERSION + 1
    assert newest(folder.checkpoints).manifest.numerics == now
    for module in ("numerics", "training.checkpointing", "runs.reporter"):
        monkeypatch.setattr(f"ditlab.{module}.NUMERICS_VERSION", later)
    _, warnings = go(tiny(training__steps=3), run)
    (warning,) = warnings
    for words in (f"numerics version {now}", f"version {later}", "not one curve"):
        assert words in warning
    assert newest(folder.checkpoints).manifest.numerics == later
    assert tagged(folder, "ditlab.numerics") == [str(now), str(later)]
    assert go(tiny(training__steps=4), run)[1] == []


def test_a_failed_run_records_the_step_it_can_go_on_from(run_home, monkeypatch):
    def diverged(trainer):
        if trainer.state.step:
            raise RunFailed(f"stopped by a test after step {trainer.state.step}")
        return {}

    monkeypatch.setattr(Trainer, "_evaluate", diverged)
    with pytest.raises(RunFailed):
        go(tiny(name="failed", evaluation={"every": 4}))
    record = find_run(run_home, "failed").record
    assert (record.status, record.step) == ("failed", 3)
