"""The table of a sweep's trials, on a terminal and without one."""

import io
import re

import pytest

from ditlab.cli.progress import TerminalConsole
from ditlab.cli.sweeps.commands import MAX_ROWS, SweepTable, trial_table
from ditlab.cli.terminal import FIRST_LINE, INTERVAL_VARIABLE
from ditlab.reports.formatting import describe_value
from ditlab.reports.sweep_records import Trial
from ditlab.sweeps.progress import SweepProgress
from support.sweeps import LR, sweep_of

TIME = {"kind": "logit_normal", "mean": 0.0, "std": 1.0}
SWEEP = sweep_of(
    {**LR, "objective.time": {"kind": "choice", "values": [{"kind": "uniform"}, TIME]}}, trials=8
)
METRICS = list(SWEEP.metrics)


def trial(number, status="finished", value=None, **changes):
    has_started = status != "waiting"
    fields = {
        "run_id": f"{number:08d}",
        "values": {"optimizer.lr": 1 / 3000},
        "status": status,
        "step": 1000 * has_started,
        "total_steps": 6000 * has_started,
        "metrics": {} if value is None else {"eval/velocity": value},
    }
    return Trial(number, **{**fields, **changes})


def progress(trials, best=None, ended_before=()):
    return SweepProgress("abcd0000", SWEEP, trials, best, 8, frozenset(ended_before))


def lines_of(trials, best=None):
    """The table's lines without colours: the heading, then a line a trial, the best one marked."""
    console = TerminalConsole(file=io.StringIO(), width=140)
    console.print(trial_table(progress(trials, best)))
    return console.file.getvalue().splitlines()[1:]


def test_each_trial_is_a_row():
    values = {"optimizer.lr": 1 / 3000, "objective.time": TIME}
    trials = [trial(0, value=0.123456, values=values), trial(1, "waiting")]
    heading, first, second = lines_of(trials, best=0)
    assert heading.split() == ["trial", "run", "lr", "time", "status", "step", *METRICS]
    row = f"*0 00000000 0.0003333 {describe_value(TIME)} finished 1,000/6,000 0.12346"
    assert " ".join(first.split()) == row
    assert second.split() == ["1", "0.0003333", "waiting"]  # no id of a run that does not exist yet


def test_terminal_shows_the_table_and_its_title():
    console = TerminalConsole(
        file=io.StringIO(), force_terminal=True, width=140, height=60, _environ={"TERM": "xterm"}
    )
    with SweepTable(console) as table:
        table.update(progress([trial(0, value=0.5), trial(1, "running")], best=0))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())
    assert "rates (abcd0000) · 1 running, 1 finished of 8" in text and "eval/velocity" in text
    assert "*0" in text and "running" in text


def trials_of(*groups):
    """Trials of these (status, number) in turn."""
    statuses = [status for status, number in groups for _ in range(number)]
    return [trial(number, status) for number, status in enumerate(statuses)]


@pytest.mark.parametrize(
    "trials, best, shown",
    [
        # the best, the running ones, and those that ended last
        (
            trials_of(("finished", 60), ("running", 6), ("waiting", 134)),
            0,
            [0, *range(67 - MAX_ROWS, 66)],
        ),
        (trials_of(("running", 2), ("waiting", 98)), None, [*range(MAX_ROWS)]),
        (trials_of(("running", 40), ("finished", 1)), 40, [*range(41 - MAX_ROWS, 41)]),
    ],
    ids=["many", "next", "best"],
)
def test_a_table_shows_the_trials_that_count_most_of_many(trials, best, shown):
    rows = lines_of(trials, best)[1:]
    assert [int(row.split()[0].lstrip("*")) for row in rows] == shown


def test_each_end_is_printed_once_without_a_terminal(capsys):
    trials = [trial(0, "running"), trial(1, "waiting"), trial(2, "interrupted")]
    ended = [
        trial(0, value=0.5),
        trial(1, "stopped", 0.75),
        trial(2, "failed", note="diverged: loss is NaN"),
        trial(3),
        trial(4, value=0.5),  # in an earlier session
    ]
    with SweepTable(TerminalConsole(file=io.StringIO())) as table:
        for update in (trials, ended, ended):
            table.update(progress(update, ended_before=[4]))
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines() == [
        "trial 0 (lr=0.0003333): finished at step 1000, eval/velocity 0.5",
        "trial 1 (lr=0.0003333): stopped at step 1000, eval/velocity 0.75",
        "trial 2 (lr=0.0003333): failed at step 1000, diverged: loss is NaN",
        "trial 3 (lr=0.0003333): finished at step 1000",
    ]


def test_log_counts_trials_and_names_those_that_train(capsys, monkeypatch):
    monkeypatch.delenv(INTERVAL_VARIABLE, raising=False)  # the tests' settings turn the lines off
    now = [0.0]
    table = SweepTable(TerminalConsole(file=io.StringIO()), clock=lambda: now[0])
    table.update(progress([trial(0, "running"), trial(1, "waiting")]))
    now[0] = FIRST_LINE
    table.tick()
    assert capsys.readouterr().err == "[0:01] 1 running of 8 · trial 0 at step 1,000/6,000\n"


def test_line_of_many_running_trials_names_the_first():
    table = SweepTable(TerminalConsole(file=io.StringIO()))
    table.update(progress([trial(number, "running") for number in range(6)]))
    assert table.describe().endswith("trial 3 at step 1,000/6,000, 2 more")
    assert table.describe().count("at step") == 4
    table.update(progress([trial(0, "waiting")]))
    assert table.describe() == "starting of 8"
