"""The table of `tune --dry-run` in a terminal of 80 columns: no word or number is broken, and no
constant repeated.
"""

import io

import pytest

from ditlab.cli.progress import TerminalConsole
from ditlab.cli.sweeps.commands import forecast_table
from ditlab.reports.formatting import describe_value
from ditlab.spec.yaml_text import parse_yaml
from ditlab.sweeps.forecast import Forecast
from support.sweeps import LR, prepared, sweep_of

WIDE = """
optimizer.weight_decay: {kind: loguniform, low: 1.0e-5, high: 1.0e-2}
objective.time: {kind: choice, values: [{kind: uniform}, {kind: logit_normal, mean: -0.3333333, std: 1.0}]}
training.clip.max_norm: {kind: uniform, low: 0.5, high: 2.0}
training.ema.decay: {kind: choice, values: [0.9, 0.99, 0.999]}
seed: {kind: choice, values: [1, 22, 333333]}
"""


def lines_of(sweep, width=80, seconds=None):
    one = prepared(sweep)
    times = {trial.number: seconds for trial in one.trials}
    console = TerminalConsole(file=io.StringIO(), width=width)
    console.print(forecast_table(one, Forecast(times, None, None, None, "core", [])))
    return one, [line.rstrip() for line in console.file.getvalue().splitlines()]


def words(lines):
    return " ".join(lines).replace(",", " ").split()


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("more", ["{}", WIDE], ids=["few", "many"])
def test_no_value_is_broken(home, width, more):
    space = {**LR, **parse_yaml(more, "axes")}
    one, lines = lines_of(sweep_of(space, trials=3), width, 3447.0)
    assert max(map(len, lines)) <= width
    found = words(lines)
    for trial in one.trials:
        for value in trial.values.values():
            assert all(part in found for part in describe_value(value).replace(",", " ").split()), (
                value,
                lines,
            )
    assert "57 min 27 s" in " ".join(" ".join(lines).split())


def test_what_is_the_same_for_all_trials_stands_above(home):
    one, (same, heading, *rows) = lines_of(sweep_of(trials=3), seconds=6.0)
    number = f"{one.trials[0].num_parameters:,}"
    assert same == f"all 3 trials: workers 1 x 1 CPU, parameters {number}, steps 6, time 6 s"
    assert heading.split() == ["trial", "lr"]
    assert [row.split()[0] for row in rows] == ["0", "1", "2"]


def test_one_trial_is_a_row(home):
    _, (heading, row) = lines_of(sweep_of(trials=1))
    assert heading.split() == ["trial", "lr", "workers", "parameters", "steps", "time"]
    assert row.split()[-1] == "?"
