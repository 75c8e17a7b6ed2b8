"""Forecasts of a sweep's duration, by runs that are written without training and by timed
passes.
"""

import io
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from ditlab.cli.sweeps.commands import forecast_table
from ditlab.runs.cores import LOOK
from ditlab.spec.yaml_text import dump_yaml
from ditlab.sweeps.forecast import Speed, forecast
from ditlab.sweeps.prepare import prepare_sweep
from ditlab.sweeps.start import read_past_trials
from ditlab.tracking.history import DEVICES_TAG
from ditlab.tracking.journal import encode_record
from ditlab.tracking.records import create_run, update_record
from support.damage import refused
from support.sweeps import BASE, LR, log, planned, prepared, started, sweep_of, trial_run
from support.trainings.workers import tiny

DEPTHS = {"model.depth": {"kind": "grid", "values": [1, 2]}}


def earlier_run(home, speeds, step=6, parent="another-sweep", **changes):
    """Write a trial that trained at these speeds (samples a second); without a parent, a run of its
    own.
    """
    experiment = tiny(**changes)
    folder = create_run(
        home, experiment.name, family=experiment.model.family, spec_hash="", parent=parent
    )
    folder.spec.write_text(dump_yaml(experiment.to_dict()))
    log(
        folder,
        {place: {"train/samples_per_second": speed} for place, speed in enumerate(speeds, 1)},
    )
    update_record(folder, status="finished", step=step)
    return folder


def table_lines(one, expected):
    console = Console(file=io.StringIO(), width=200)
    console.print(forecast_table(one, expected))
    return console.file.getvalue().splitlines()


def test_speed_of_an_earlier_run(home):
    # the median counts, not a slow start or a burst
    earlier_run(home, [20.0, 1000.0, 30.0, 32.0, 31.0])
    one = prepared(sweep_of(concurrent=2))
    found = forecast(one)
    # 6 steps of 32 samples
    assert found.seconds == dict.fromkeys(range(4), pytest.approx(6 * 32 / 31))
    assert found.total == pytest.approx(4 * 6 * 32 / 31 / 2)
    (line,) = found.lines
    hours = "0.00688 core hours, by the speed of earlier runs of this kind"
    assert line == f"expected: 12 s with 2 at once, {hours}"


@pytest.mark.parametrize("is_timed", [False, True])
def test_what_had_all_cores_is_shared_by_trials_at_once(home, monkeypatch, is_timed):
    """A run of its own, and timed passes: twice as many at once take as long together."""
    if is_timed:
        speed = Speed(64.0, "timed steps on this machine")
        monkeypatch.setattr("ditlab.sweeps.forecast._time_steps", lambda *_: speed)
    else:
        earlier_run(home, [64.0], parent="")
    alone, together = (forecast(prepared(sweep_of(concurrent=number))) for number in (1, 2))
    assert (alone.seconds[0], together.seconds[0]) == (3.0, 6.0)
    assert alone.total == together.total == 12.0


@pytest.mark.parametrize(("status", "left"), [("failed", 3), ("interrupted", 4)])
def test_ended_trials_take_no_more_time(home, status, left):
    earlier_run(home, [32.0])
    one = started(sweep_of(concurrent=1))
    trial_run(home, one.sweep, planned(one)[1], status, {6: 1.0})
    again = prepared(one.sweep)
    found = forecast(again, read_past_trials(again, one.folder))
    assert found.total == left * 6.0 and len(found.to_dict(again)["trials"]) == 4


def test_trials_of_different_lengths_are_summed(home):
    earlier_run(home, [32.0])
    steps = {"training.steps": {"kind": "grid", "values": [60, 3600, 7200]}}
    one = prepared(sweep_of(steps, trials=3, concurrent=1))
    found = forecast(one)
    assert found.seconds == {0: 60.0, 1: 3600.0, 2: 7200.0}
    assert found.lines[0].startswith("expected: 3 h 1 min with 1 at once")
    same, heading, *rows = table_lines(one, found)
    assert re.fullmatch(r"all 3 trials: workers 1 x \d+ CPU, parameters [\d,]+", same)
    # there is one `steps` already
    assert heading.split() == ["trial", "training.steps", "steps", "time"]
    for row, end in zip(rows, ("60 1 min", "3,600 1 h", "7,200 2 h"), strict=True):
        assert " ".join(row.split()).endswith(f" {end}")


@pytest.mark.parametrize(
    ("changes", "is_alike"),
    [
        ({"model__depth": 3}, False),
        ({"batch__micro": 8}, False),
        ({"training__precision": "bf16"}, False),
        ({"resources__workers": 2}, False),
        ({"optimizer__lr": 0.1, "training__steps": 3, "resources__max_failures": 9}, True),
    ],
    ids=str,
)
def test_run_of_another_speed_is_ignored(home, changes, is_alike):
    earlier_run(home, [1e-3], **changes)
    (line, *_) = forecast(prepared(sweep_of())).lines
    assert ("earlier runs of this kind" in line) == is_alike
    assert ("timed steps on this machine" in line) != is_alike


def test_runs_without_a_speed_are_ignored(home):
    """Sweeps, runs without a step, and those of another version."""
    earlier_run(home, [1e-3], step=0)
    update_record(earlier_run(home, [1e-3]), trials=4)
    earlier_run(home, [])
    earlier_run(home, [1e-3]).spec.write_text("name: x\nnonsense: true\n")
    assert "timed steps" in forecast(prepared(sweep_of())).lines[0]


@pytest.mark.slow
def test_what_was_timed_beside_other_work_is_a_range(home):
    spin = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    begin = [
        f"{sys.executable} -c '{spin}' >&2 & echo $!" for _ in range(2 * (os.cpu_count() or 1))
    ]
    # Begun by a shell that ends, so that they are no children of this process, whose work is its
    # own.
    begun = subprocess.run(["sh", "-c", "\n".join(begin)], stdout=subprocess.PIPE, check=True)
    try:
        # since this module was imported they have done more than half of the cores' work
        time.sleep(4 * LOOK)
        found = forecast(prepared(sweep_of()))
    finally:
        for pid in map(int, begun.stdout.split()):
            os.kill(pid, signal.SIGKILL)
    # equal for steps shorter than a turn
    assert found.idle_total is not None and found.idle_total <= found.total
    assert " to " in found.lines[0] and found.lines[1].startswith(
        "this machine was busy: others kept"
    )


def test_each_kind_of_network_has_its_own_speed(home):
    earlier_run(home, [32.0], model__depth=1)
    earlier_run(home, [16.0], model__depth=2)
    # two of the four draws repeat these
    assert forecast(prepared(sweep_of(DEPTHS))).seconds == {0: 6.0, 1: 12.0}


def test_speed_on_a_gpu_is_known_only_from_earlier_runs(home):
    gpu = {**BASE, "resources": {"gpus_per_worker": 0.5}}
    nodes = [{"CPU": 8.0, "GPU": 2.0}]
    one = prepare_sweep(sweep_of(base=gpu, trials=6), "sweep.yaml", nodes, remote=True)
    assert one.concurrency.num_trials == 4
    found = forecast(one)
    assert found.total is None and set(found.seconds.values()) == {None}
    assert found.lines == ["expected: unknown (no earlier run on a GPU to take the speed from)"]
    assert (found.device, found.device_hours) == ("GPU", None)
    same, _, *rows = table_lines(one, found)
    assert re.fullmatch("all 6 trials: workers 1 x 0.5 GPU,.*, time [?]", same) and len(rows) == 6
    for parent in ("another-sweep", ""):  # a run of its own had no more of it than a trial
        earlier_run(home, [32.0], parent=parent, resources__gpus_per_worker=0.5)
        assert forecast(one).total == pytest.approx(6 * 6.0 / 4)


def test_scheduler_that_stops_trials_early_is_mentioned(home):
    earlier_run(home, [32.0])
    lines = forecast(prepared(sweep_of(scheduler={"kind": "median", "grace": 2}))).lines
    assert lines[1:] == ["scheduler median stops some trials earlier: this is the longest it takes"]


def test_search_that_proposes_trials_as_it_goes(home):
    earlier_run(home, [32.0])
    one = prepared(sweep_of({**LR, **DEPTHS}, search={"kind": "optuna"}, trials=7, concurrent=2))
    found = forecast(one)
    assert found.total == pytest.approx(7 * 6.0 / 2) and found.to_dict(one)["trials"] == []
    (row,) = table_lines(one, found)[1:]
    assert " ".join(row.split()) == "7 of loguniform grid 1 x 1 CPU 6 6 s"


def budgeted(hours, **changes):
    return prepared(sweep_of(concurrent=1, budget={"device_hours": hours}, **changes))


def test_budget_is_forecast(home):
    """Each of four trials takes 6 seconds of a core."""
    earlier_run(home, [32.0])
    each = 6 / 3600
    assert forecast(budgeted(5 * each)).lines[-1] == (
        "budget.device_hours=0.00833333 holds: 0 core hours are used, and about 0.00667 more "
        "are expected"
    )
    (*_, line) = forecast(budgeted(2.5 * each)).lines
    assert "does not hold: 0 core hours are used, and about 0.00667 more" in line
    asha = {"scheduler": {"kind": "asha", "grace": 2, "reduction": 2}}
    assert "does not hold" in forecast(budgeted(0.001, **asha)).lines[-1]
    for hours, changes, shortest in ((0.0015, {}, "0.00167"), (0.0005, asha, "0.000556")):
        with refused(f"={hours} is less than the shortest trial takes, about {shortest} core"):
            forecast(budgeted(hours, **changes))


def test_budget_of_a_resumed_sweep_counts_what_is_used(home):
    earlier_run(home, [32.0])
    one = started(sweep_of(concurrent=1))
    folder = trial_run(home, one.sweep, planned(one)[0], "finished", {6: 1.0})
    start = {"time": 1000, "run_id": folder.run_id, "name": "a", "experiment": "a", "family": "dit"}
    tags = {"time": 1000, "values": {DEVICES_TAG: "2 core"}}
    records = {"start": start, "tags": tags, "end": {"time": 19_000, "status": "finished"}}
    folder.journal.write_bytes(b"".join(encode_record(*each) for each in records.items()))
    again = budgeted(0.02)
    line = forecast(again, read_past_trials(again, one.folder)).lines[-1]
    assert line == (
        "budget.device_hours=0.02 holds: 0.01 core hours are used, and about 0.005 more "
        "are expected"
    )
    again = budgeted(0.01)
    with refused("=0.01 is used up: the trials have taken 0.01 core hours; resume the sweep"):
        forecast(again, read_past_trials(again, one.folder))


def test_as_json(home):
    earlier_run(home, [32.0])
    one = prepared(sweep_of(trials=3, concurrent=1))
    found = forecast(one).to_dict(one)
    *_, last = found.pop("trials")
    assert found == {
        "num_trials": 3,
        "repeats": 0,
        "concurrent": 1,
        "seconds": 18.0,
        "device_hours": pytest.approx(18 / 3600),
        "device": "core",
        "idle_seconds": None,
    }
    assert last.pop("parameters") > 10_000 and set(last.pop("values")) == set(LR)
    assert last == {"number": 2, "configuration": 2, "seed": 0, "steps": 6, "seconds": 6.0}
