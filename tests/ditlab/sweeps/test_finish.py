"""End of a sweep: its records, its report, its summary for the terminal."""

import pytest

from ditlab.cli.sweeps.commands import summary_lines
from ditlab.errors import RunFailed
from ditlab.receipts.records import Measurement, measurement_tags
from ditlab.spec.files import load_experiment
from ditlab.sweeps.results import finish_sweep
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import read_record
from support.damage import refused
from support.sweeps import LR, METRIC, planned, started, sweep_of, trial_run


class FakeParent:
    """Parent run that remembers how it ended."""

    def end(self, status, summary, files, spec=None):
        self.status = status
        self.files = list(files)


def finish(one, status, parent=None, reason=""):
    """The result, which must come without a warning."""
    return finish_sweep(one, status, 10.0, parent or FakeParent(), pytest.fail, reason)


@pytest.fixture
def sweep_with(home):
    """`sweep_with(*statuses)`: a sweep with trials of these statuses, whose metric is 1 above the
    number.
    """

    def make(*statuses, message="diverged: loss is NaN"):
        one = started(sweep_of(trials=len(statuses)))
        for trial, status in zip(planned(one), statuses, strict=True):
            if status != "waiting":
                has_failed = status == "failed"
                curve = {} if has_failed else {2: 3.0, 6: trial.number + 1.0}
                said = message if has_failed else ""
                trial_run(home, one.sweep, trial, status, curve, message=said)
        return one

    return make


def test_sweep_whose_trials_have_all_ended(sweep_with, home):
    one, parent = sweep_with("finished", "stopped", "failed"), FakeParent()
    result = finish(one, "finished", parent)
    record = read_record(one.folder.folder)
    assert (record.status, record.step) == ("finished", 3)
    assert (result.exit_code, result.status, parent.status) == (0, "finished", "finished")
    assert result.report.exists() and result.report.parent == one.folder.report
    assert {path.name for path in parent.files} >= {"report.html", "best.yaml"}
    assert all(path.exists() for path in parent.files)
    best = load_experiment(one.folder.report / "best.yaml")
    assert best.optimizer.lr == planned(one)[0].values["optimizer.lr"]


def test_result_for_json(sweep_with):
    one = sweep_with("failed", "finished", "stopped", "waiting")
    found = finish(one, "interrupted").to_dict()
    trials = planned(one)
    assert [trial["number"] for trial in found["trials"]] == [1, 2, 0, 3]
    assert [trial["metrics"][METRIC] for trial in found["trials"]] == [2.0, 3.0, None, None]
    best = {
        "number": 1,
        "run_id": trials[1].run_id,
        "values": trials[1].values,
        "step": 6,
        "metrics": {METRIC: 2.0},
    }
    del found["trials"]
    assert found == {
        "run_id": one.folder.sweep_id,
        "status": "interrupted",
        "reason": "",
        "best": best,
        "why_no_best": "",
        "best_of_comparable": [{"where": {}, "trials": 2, **best}],
        "report": str(one.folder.report / "report.html"),
    }


def test_trials_that_are_measured_otherwise_have_no_best(home):
    """Values of an axis that decides what is held out: each is ranked alone, by what the trials
    recorded.
    """
    axes = {"data.hold_out": {"kind": "grid", "values": [0.1, 0.2]}, **LR}
    one = started(sweep_of(axes))
    for trial in planned(one):
        folder = trial_run(home, one.sweep, trial, "finished", {6: 4.0 - trial.number})
        parts = {"held-out samples": trial.values["data.hold_out"], "precision": "fp32"}
        journal = JournalWriter(folder)
        journal.append("tags", values=measurement_tags({"eval": Measurement.of(parts)}))
        journal.close()
    result = finish(one, "finished")
    found = result.to_dict()
    why = f"{METRIC} is measured in 2 ways, which differ in: held-out samples"
    assert found["best"] is None and why in found["why_no_best"]
    assert [trial["number"] for trial in found["trials"]] == [2, 0, 3, 1]
    leaders = [(each["number"], each["where"]) for each in found["best_of_comparable"]]
    assert leaders == [(2, {"data.hold_out": 0.1}), (3, {"data.hold_out": 0.2})]
    lines = summary_lines(result)
    assert why in lines[1]
    assert not (one.folder.report / "best.yaml").exists() and "  best:" not in "\n".join(lines)
    page = (one.folder.report / "report.md").read_text()
    assert why in page and "## The best spec" not in page


def test_interrupted_sweep(sweep_with, home):
    one = sweep_with("finished", "running", "waiting")
    result = finish(one, "interrupted")
    assert result.exit_code == 130
    done, interrupted, waiting = (home.run(trial.run_id) for trial in planned(one))
    assert read_record(done).status == "finished"
    assert read_record(interrupted).status == "interrupted"
    assert not waiting.path.exists()
    lines = summary_lines(result)
    assert lines[0] == f"sweep {result.sweep_id} interrupted: 1 finished of 3 trials"
    assert lines[1].startswith(f"  best: trial 0 (run {done.run_id}), {METRIC} 1: optimizer.lr=")
    # that is the command's last line, on standard error
    assert not any("ditlab tune" in line for line in lines)


def test_sweep_out_of_time(sweep_with):
    one = sweep_with("interrupted", "waiting", "failed", "waiting")
    result = finish(one, "stopped", reason="time_budget is used up")
    lines = summary_lines(result)
    head = f"sweep {result.sweep_id} stopped, as time_budget is used up: 1 failed of 4 trials"
    left = "  not run to their end: 1 interrupted (trial 0), 2 not begun"
    assert result.exit_code == 0 and lines[:2] == [head, left]
    assert read_record(one.folder.folder).message == "time_budget is used up"


def test_sweep_whose_trials_have_all_failed(sweep_with):
    one, parent = sweep_with("failed", "failed"), FakeParent()
    with refused(
        rf"no trial gave a value of {METRIC} \(diverged: loss is NaN\); see .*report", RunFailed
    ):
        finish(one, "finished", parent)
    record = read_record(one.folder.folder)
    assert record.status == parent.status == "failed" and "no trial gave a" in record.message
    assert (one.folder.report / "report.html").exists()
    assert not (one.folder.report / "best.yaml").exists()


def test_summary_names_failed_trials(sweep_with):
    one = sweep_with("finished", "failed", message="lost worker: worker 1 died\nand more")
    lines = summary_lines(finish(one, "finished"))
    (line,) = [line for line in lines if "failed: " in line]
    assert line == f"  trial 1 (run {planned(one)[1].run_id}) failed: lost worker: worker 1 died"


def test_a_signal_while_the_report_is_drawn_leaves_it_to_a_resume(sweep_with, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    one, parent = sweep_with("finished"), FakeParent()
    warnings = []
    with monkeypatch.context() as patched:
        patched.setattr("ditlab.sweeps.results.write_sweep_report", interrupted)
        result = finish_sweep(one, "finished", 10.0, parent, warnings.append)
    assert result.exit_code == 0
    assert parent.status == read_record(one.folder.folder).status == "finished"
    assert len(warnings) == 1 and f"`ditlab tune --resume {one.folder.sweep_id}`" in warnings[0]
    assert not any("report:" in line for line in summary_lines(result))
    assert finish(one, "finished").report.is_file()


def test_report_that_cannot_be_written_costs_a_warning_and_not_the_result(sweep_with):
    one = sweep_with("finished")
    one.folder.report.write_text("a file in the way")
    warnings = []
    result = finish_sweep(one, "finished", 10.0, FakeParent(), warnings.append)
    assert result.to_dict()["best"]["number"] == 0
    assert len(warnings) == 1 and warnings[0].startswith(f"{one.folder.report} cannot be written")
