"""The table of a sweep as a person sees it, on a terminal and without one."""

import io
import re

import pytest
from rich.console import Console

from ditlab.reports.formatting import describe_value
from ditlab.reports.sweeps.records import Trial
from ditlab.cli.sweep_table import SHOWN, SweepTable, _chosen

AXES, METRICS = ["optimizer.lr", "objective.time"], ["eval/velocity"]
TIME = {"kind": "logit_normal", "mean": 0.0, "std": 1.0}


def row(number, status="finished", value=None, **changes):
    begun = status != "waiting"
    fields = {
        "run_id": f"{number:08d}", "values": {"optimizer.lr": 1 / 3000}, "status": status, "step": 1000 * begun,
        "total_steps": 6000 * begun, "metrics": {} if value is None else {"eval/velocity": value}, "note": "",
        "seconds": 0.0, "curves": {},
    }  # fmt: skip
    return Trial(number, **{**fields, **changes})


def on_terminal(rows, best=None, summary="2 finished of 8", show=lambda table: None):
    console = Console(file=io.StringIO(), force_terminal=True, width=140, height=60)
    with SweepTable("rates (abcd0000)", METRICS, AXES, console) as table:
        table.update(rows, best, summary)
        show(table)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


def lines_of(rows, best=None):
    """Without colours, a line a trial, the heading first."""
    table = SweepTable("rates", METRICS, AXES)
    console = Console(file=io.StringIO(), width=140)
    console.print(table._table(_chosen(rows, best), best, "rates"))
    return console.file.getvalue().splitlines()[1:]


def test_a_trial_is_a_row():
    heading, first, second = lines_of([
        row(0, value=0.123456, values={"optimizer.lr": 1 / 3000, "objective.time": TIME}), row(1, "waiting")
    ])  # fmt: skip
    assert heading.split() == ["trial", "run", "lr", "time", "status", "step", *METRICS]
    assert first.split() == ["0", "00000000", "0.0003333", *describe_value(TIME).split(), "finished",
                             "1,000/6,000", "0.12346"]  # fmt: skip
    assert second.split() == ["1", "0.0003333", "waiting"]  # a run that has not begun cannot be asked for by its id


def test_the_best_is_marked():
    _, first, second = lines_of([row(0, value=1.0), row(1, value=0.5)], best=1)
    assert second.split()[0] == "*1" and "*" not in first


def test_a_terminal_gets_the_table_and_its_title():
    text = on_terminal([row(0, value=0.5), row(1, "running")], best=0)
    assert "rates (abcd0000) · 2 finished of 8" in text and "eval/velocity" in text
    assert "*0" in text and "running" in text


def test_a_terminal_gets_warnings_whole():
    text = on_terminal([row(0)], show=lambda table: table.warn("trial 3: [bold] is no markup here"))
    assert "warning: trial 3: [bold] is no markup here" in text


def numbers(lines):
    return [int(line.split()[0].lstrip("*")) for line in lines]


def test_of_many_trials_those_that_matter_are_shown():
    rows = [row(0, value=0.1)] + [row(n, "finished", 1.0) for n in range(1, 60)]
    rows += [row(n, "running") for n in range(60, 66)] + [row(n, "waiting") for n in range(66, 200)]
    shown = numbers(lines_of(rows, best=0)[1:])
    assert len(shown) == SHOWN and shown == sorted(shown)
    assert shown[0] == 0  # the best
    assert set(range(60, 66)) <= set(shown)  # those that run
    assert set(shown) == {0, *range(60, 66), *range(60 - (SHOWN - 7), 60)}  # and those that ended last


def test_the_next_ones_are_shown_where_there_is_room():
    rows = [row(n, "running") for n in range(2)] + [row(n, "waiting") for n in range(2, 100)]
    assert numbers(lines_of(rows)[1:]) == list(range(SHOWN))


def test_many_that_run_leave_room_for_the_best():
    rows = [row(n, "running") for n in range(40)] + [row(40, value=0.1)]
    shown = numbers(lines_of(rows, best=40)[1:])
    assert len(shown) == SHOWN and 40 in shown


@pytest.fixture
def plain(capsys):
    """`plain(*updates)`: the lines of a table without a terminal."""

    def told(*updates, known=()):
        with SweepTable("rates", METRICS, AXES, Console(file=io.StringIO())) as table:
            table.known(known)
            for rows in updates:
                table.update(rows, None, "")
        out, err = capsys.readouterr()
        assert out == ""
        return err.splitlines()

    return told


def test_without_a_terminal_every_end_is_told_once(plain):
    rows = [row(0, "running"), row(1, "waiting"), row(2, "interrupted")]
    ended = [row(0, value=0.5), row(1, "stopped", 0.75), row(2, "failed", note="diverged: loss is NaN")]
    assert plain(rows, ended, ended) == [
        "trial 0 (lr=0.0003333): finished at step 1000, eval/velocity 0.5",
        "trial 1 (lr=0.0003333): stopped at step 1000, eval/velocity 0.75",
        "trial 2 (lr=0.0003333): failed at step 1000, diverged: loss is NaN",
    ]


def test_what_an_earlier_session_told_is_not_told_again(plain):
    assert len(plain([row(0, value=0.5), row(1, value=0.5)], known=[0])) == 1


def test_a_trial_without_the_metric_ends_its_line_with_a_step(plain):
    assert plain([row(0)]) == ["trial 0 (lr=0.0003333): finished at step 1000"]


def test_values_are_no_markup():
    value = {"kind": "a", "words": ["[/x]", "bold"]}
    (line,) = lines_of([row(0, values={"optimizer.lr": "[red]", "objective.time": value})])[1:]
    assert "[red]" in line and "[/x]" in line
