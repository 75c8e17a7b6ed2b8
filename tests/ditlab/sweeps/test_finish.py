"""The end of a sweep: its books, its report, its last words."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from ditlab.errors import RunFailed
from ditlab.spec.reading.loading import load_experiment
from ditlab.sweeps.finish import end_sweep, num_ended
from ditlab.sweeps.summary import last_words
from ditlab.tracking.records import read_record
from support.sweeps import METRIC, created, planned, sweep_of, trial_run


@dataclass
class Heard:
    """A parent run that remembers how it ended."""

    status: str = ""
    files: list[Any] = field(default_factory=list)

    def end(self, status, summary, files):
        self.status, self.files = status, list(files)


@pytest.fixture
def sweep_with(home):
    """`sweep_with(*statuses)`: a sweep whose trials are so; the metric is 1 above the number."""

    def make(*statuses, message="diverged: loss is NaN"):
        one = created(sweep_of(trials=len(statuses)))
        for trial, status in zip(planned(one), statuses, strict=True):
            if status != "waiting":
                curve = {} if status == "failed" else {2: 3.0, 6: trial.number + 1.0}
                said = message if status == "failed" else ""
                trial_run(home, one.sweep, trial, status, curve, message=said)
        return one

    return make


def test_a_sweep_whose_trials_are_all_done(sweep_with, home):
    one, parent = sweep_with("finished", "stopped", "failed"), Heard()
    result = end_sweep(one, "finished", 10.0, parent)
    record = read_record(one.folder.folder)
    assert (record.status, record.step, num_ended(one)) == ("finished", 3, 3)
    assert (result.exit_code, result.status, parent.status) == (0, "finished", "finished")
    assert result.report.exists() and result.report.parent == one.folder.report
    assert {path.name for path in parent.files} >= {"report.html", "best.yaml"}
    assert all(path.exists() for path in parent.files)
    best = load_experiment(one.folder.report / "best.yaml")
    assert best.optimizer.lr == planned(one)[0].values["optimizer.lr"]


def test_what_it_says_to_scripts(sweep_with):
    one = sweep_with("failed", "finished", "stopped", "waiting")
    found = end_sweep(one, "interrupted", 10.0, Heard()).as_dict()
    assert list(found) == ["run_id", "status", "trials", "best", "report"]
    trials = planned(one)
    assert [trial["number"] for trial in found["trials"]] == [1, 2, 0, 3]
    assert [trial["metrics"] for trial in found["trials"]] == [
        {METRIC: 2.0},
        {METRIC: 3.0},
        {METRIC: None},
        {METRIC: None},
    ]
    assert found["best"] == {
        "number": 1, "run_id": trials[1].run_id, "values": trials[1].values, "metrics": {METRIC: 2.0}
    }  # fmt: skip


def test_one_that_was_interrupted(sweep_with, home):
    one = sweep_with("finished", "running", "waiting")
    result = end_sweep(one, "interrupted", 10.0, Heard())
    assert result.exit_code == 130
    assert [read_record(home.run(trial.run_id)).status for trial in planned(one)[:2]] == ["finished", "interrupted"]
    assert not home.run(planned(one)[2].run_id).path.exists()
    words = last_words(result, one.num_trials)
    assert words[0] == f"sweep {result.sweep_id} interrupted: 1 finished of 3 trials"
    assert words[1].startswith(f"  best: trial 0 (run {planned(one)[0].run_id}), {METRIC} 1: optimizer.lr=")
    assert words[-1] == f"  go on: ditlab tune --resume {result.sweep_id}"


def test_one_whose_time_is_up(sweep_with):
    result = end_sweep(sweep_with("waiting", "waiting"), "stopped", 10.0, Heard())
    words = last_words(result, 2)
    assert (result.exit_code, words[0]) == (0, f"sweep {result.sweep_id} out of time: none ended of 2 trials")
    assert not any("best" in line for line in words) and result.as_dict()["best"] is None


def test_one_of_which_every_trial_failed(sweep_with):
    one, parent = sweep_with("failed", "failed"), Heard()
    with pytest.raises(RunFailed, match=rf"no trial gave a value of {METRIC} \(diverged: loss is NaN\); see .*report"):
        end_sweep(one, "finished", 10.0, parent)
    record = read_record(one.folder.folder)
    assert (record.status, parent.status) == ("failed", "failed") and "no trial gave a value" in record.message
    assert (one.folder.report / "report.html").exists() and not (one.folder.report / "best.yaml").exists()


def test_a_failed_trial_is_named(sweep_with):
    one = sweep_with("finished", "failed", message="lost worker: worker 1 died\nand more")
    words = last_words(end_sweep(one, "finished", 10.0, Heard()), 2)
    (told,) = [line for line in words if "failed: " in line]
    assert told == f"  trial 1 (run {planned(one)[1].run_id}) failed: lost worker: worker 1 died"
    assert not any("go on" in line for line in words)
