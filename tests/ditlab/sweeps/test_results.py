"""Results of a sweep, read from folders that were written without training."""

import pytest

from ditlab.reports.sweep_records import MetricCurve, best, rank
from ditlab.spec.files import load_experiment
from ditlab.sweeps.folder import Takeover, record_takeover, trial_experiment
from ditlab.sweeps.results import best_spec, ranking_table, summarize_sweep
from support.damage import refused
from support.sweeps import (
    LR,
    METRIC,
    log,
    planned,
    prepared,
    started,
    sweep_of,
    trial_run,
    trial_runs,
)

STATUSES = ["finished", "finished", "stopped", "failed", "interrupted", "running"]
CURVES = [
    {0: 9.0, 2: 3.0, 4: 2.0, 6: 1.0},
    {0: 9.0, 2: 3.0, 4: 0.75, 6: 0.5},
    {0: 9.0, 2: 8.0},
    {0: 9.0},
    {0: 9.0, 2: 0.1},
    {},
]


@pytest.fixture
def sweep(home):
    """Seven trials, each of another status; the last has not started."""
    one = started(sweep_of(trials=7))
    for trial, status, curve in zip(planned(one), STATUSES, CURVES, strict=False):
        message = "diverged: loss is NaN" if status == "failed" else ""
        trial_run(home, one.sweep, trial, status, curve, message=message)
    return one


def test_summary_holds_every_trial(sweep):
    found = summarize_sweep(sweep, 12.5)
    assert [trial.status for trial in found.trials] == [*STATUSES, "waiting"]
    for trial, expected in zip(found.trials, planned(sweep), strict=True):
        for fact in ("number", "run_id", "values"):
            assert getattr(trial, fact) == getattr(expected, fact)
    assert [trial.step for trial in found.trials] == [6, 6, 2, 0, 2, 0, 0]
    assert found.trials[3].note == "diverged: loss is NaN" and found.trials[0].note == ""
    assert found.trials[0].total_steps == 6 and found.trials[6].curves == {}
    facts = (found.sweep_id, found.name, found.seconds, found.total_trials, found.base)
    assert facts == (sweep.folder.sweep_id, "rates", 12.5, 7, "tiny")


def test_curves_come_from_the_journal(sweep, home):
    first = planned(sweep)[0]
    log(home.run(first.run_id), {6: {"train/loss": 0.25, "train/lr": 1e-3}})
    assert summarize_sweep(sweep, 0.0).trials[0].curves == {
        METRIC: MetricCurve(list(CURVES[0]), list(CURVES[0].values())),
        "train/loss": MetricCurve([6], [0.25]),
    }


def test_best_trial_as_a_spec(sweep, tmp_path):
    found = summarize_sweep(sweep, 0.0)
    assert best(found).number == 1  # an interrupted trial ranks below a finished one
    path = tmp_path / "best.yaml"
    path.write_text(best_spec(sweep.sweep, found))
    trial = planned(sweep)[1]
    expected = trial_experiment(sweep.sweep, trial).to_dict()
    assert load_experiment(path).to_dict() == {**expected, "name": "rates-best"}
    assert path.read_text().startswith(
        f"# Trial 1 (run {trial.run_id}) of the sweep rates ({found.sweep_id}): {METRIC}=0.5.\n"
    )


def test_speed_ranks_by_the_median_of_a_trials_points(home):
    """A last point is a second's, and a trial without any is not ranked; no scheduler can act on
    speed.
    """
    one = started(sweep_of(metric="perf/mfu", mode="max", trials=3))
    curves = ({1: 0.5, 2: 0.5, 3: 0.1}, {1: 0.2, 2: 0.3, 3: 0.6}, {})
    trial_runs(home, one, [("finished", curve) for curve in curves])
    found = summarize_sweep(one, 0.0)
    ranked = [(trial.number, trial.metrics.get("perf/mfu")) for trial in rank(found)]
    assert ranked == [(0, 0.5), (1, 0.3), (2, None)] and best(found).number == 0
    for name in ("time/forward", "perf/samples_per_second", "perf/memory"):
        assert prepared(sweep_of(metric=name, mode="max")).sweep.metrics == (name,)
    with refused("is reported by no trial"):  # digits have no tokens
        prepared(sweep_of(metric="perf/tokens_per_second"))
    with refused(r"metric=perf/mfu is measured over a whole trial .* scheduler.kind to none"):
        prepared(sweep_of(metric="perf/mfu", scheduler={"kind": "asha", "grace": 2}))


def test_ranking_table(sweep):
    table = ranking_table(summarize_sweep(sweep, 0.0))
    facts = ["trial", "run", "status", "step"]
    assert list(table) == [*facts, METRIC, "optimizer.lr", "seconds", "note"]
    assert table["trial"] == [1, 0, 2, 4, 5, 3, 6]
    statuses = [*STATUSES, "waiting"]
    assert table["status"] == [statuses[number] for number in table["trial"]]
    assert table[METRIC] == [0.5, 1.0, 8.0, 0.1, None, 9.0, None]
    assert {len(column) for column in table.values()} == {7}
    rates = [trial.values["optimizer.lr"] for trial in planned(sweep)]
    assert table["optimizer.lr"] == [rates[number] for number in table["trial"]]


def test_pause_between_sessions_is_no_training_time(home, monkeypatch):
    """Points at 0, 10 and 30 seconds, and after a night at 50,000 and 50,005."""
    one = started(sweep_of(trials=1))
    (trial,) = planned(one)
    folder = trial_run(home, one.sweep, trial, "finished", {})
    clock = iter([0.0, 10.0, 30.0, 50_000.0, 50_005.0])
    with monkeypatch.context() as patch:
        patch.setattr("ditlab.tracking.journal.time.time", lambda: next(clock))
        log(folder, {step: {METRIC: 1.0} for step in range(1, 6)})
    assert summarize_sweep(one, 0.0).trials[0].seconds == 35.0


def test_trial_of_a_population_has_its_last_values(home):
    pbt = {"kind": "pbt", "interval": 2}
    one = started(sweep_of(scheduler=pbt, fixed={"training.steps": 8}, concurrent=4))
    trials = planned(one)
    trial_runs(
        home, one, [("finished", {2: value, 4: value / 2}) for value in (4.0, 3.0, 2.0, 1.0)]
    )
    taken = Takeover(2, trials[2].run_id, 2, {"optimizer.lr": 0.0123}, "k")
    record_takeover(home.run(trials[3].run_id), taken, trial_experiment(one.sweep, trials[3]))
    found = summarize_sweep(one, 0.0)
    assert found.trials[3].values == taken.values and found.trials[2].values == trials[2].values
    assert found.trials[3].note == taken.sentence() and best(found).number == 3
    text = best_spec(one.sweep, found)
    assert f"# Its values were the last of several: {taken.sentence()}." in text
    assert "lr: 0.0123" in text


def test_scales_of_the_axes(home):
    cosine = {"schedule.kind": "warmup_cosine"}
    one = started(
        sweep_of(
            {
                **LR,
                "training.ema.decay": {"kind": "uniform", "low": 0.5, "high": 0.9},
                "model.depth": {"kind": "choice", "values": [1, 2]},
                "schedule.kind": {"kind": "choice", "values": ["constant", "warmup_cosine"]},
                "schedule.warmup": {"kind": "int", "low": 0, "high": 3, "when": cosine},
            },
            trials=8,
        )
    )
    found = summarize_sweep(one, 0.0)
    assert [axis.scale for axis in found.axes] == ["log", "linear", "linear", "category", "linear"]
    assert [axis.path for axis in found.axes] == list(one.sweep.space)
    table = ranking_table(found)
    for kind, warmup in zip(table["schedule.kind"], table["schedule.warmup"], strict=True):
        assert (kind == "constant") == (warmup is None)
