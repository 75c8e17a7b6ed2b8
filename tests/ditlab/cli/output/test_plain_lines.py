"""Lines of progress where standard error is no terminal: when they come, what they say, how they
are turned off.
"""

import io
import threading
from dataclasses import replace
from unittest.mock import Mock

import pytest

from ditlab.cli import output
from ditlab.cli.progress import ProgressBars, ProgressLine, TerminalConsole
from ditlab.cli.terminal import INTERVAL_VARIABLE, PlainLines
from ditlab.training.reporting import TrainingProgress
from support.damage import refused


@pytest.mark.parametrize(
    "texts, lines",
    [
        ([], []),
        (["first", "second"], ["text 1 of 2:", "  first"]),
        ([" \n", "second"], ["text 1 of 2 is empty"]),
        (["a\n\nb\nc\nd"], ["text, its first 3 lines:", "  a", "  ", "  b"]),
        (["word " * 9, ""], ["text 1 of 2:", *["  word word word word"] * 2, "  word"]),
        (["x" * 100], ["text, its first 3 lines:", *["  " + "x" * 22] * 3]),
    ],
)
def test_the_first_text_is_cut_to_the_terminal(monkeypatch, texts, lines):
    monkeypatch.setenv("COLUMNS", "24")
    assert output.first_text_lines(texts, 3) == lines


METRICS = {"train/loss": 0.51234, "train/lr": 1e-3}
PROGRESS = TrainingProgress(5, 10, 1530.2, METRICS, seconds_left=35)


@pytest.fixture
def clock():
    """A clock that a test moves."""
    made = Mock(now=100.0)
    made.side_effect = lambda: made.now
    return made


@pytest.fixture(autouse=True)
def with_lines(monkeypatch):
    """The lines are on: the tests' settings turn them off."""
    monkeypatch.delenv(INTERVAL_VARIABLE, raising=False)


def log_of(kind, text, clock):
    return kind(text, console=TerminalConsole(file=io.StringIO()), clock=clock)


def due_times(seconds, interval="30", step=0.25):
    found, now = [], 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(INTERVAL_VARIABLE, interval)
        lines = PlainLines(lambda: found.append(now), clock=lambda: now)
    for number in range(int(seconds / step) + 1):
        now = number * step
        lines.tick()
    return found


def test_first_line_comes_after_a_second_and_then_ever_fewer():
    assert due_times(200) == [1, 2, 4, 8, 16, 32, 62, 92, 122, 152, 182]


def test_a_run_of_days_prints_a_line_every_ten_minutes():
    times = due_times(3 * 86400, step=10)
    assert {round(b - a) for a, b in zip(times[-20:-1], times[-19:], strict=True)} == {600}
    assert len(times) < 900


def test_interval_of_the_environment():
    assert due_times(10, interval="1", step=0.5) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert due_times(1000, interval="0") == []


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_interval_that_is_no_time(text, monkeypatch):
    monkeypatch.setenv(INTERVAL_VARIABLE, text)
    with refused(f"DITLAB_PROGRESS_SECONDS={text} is no time in seconds"):
        PlainLines(str)


def test_interval_that_is_no_time_ends_a_command_at_once(ditlab, spec, monkeypatch):
    monkeypatch.setenv(INTERVAL_VARIABLE, "soon")
    ditlab("train", spec, "--local").refused("DITLAB_PROGRESS_SECONDS=soon")


def test_line_of_a_training(clock, capsys):
    line = log_of(ProgressLine, "loading PyTorch", clock)
    line.tick()
    clock.now += 2
    line.tick()
    line.update(PROGRESS)
    line.tick()
    clock.now += 2.1
    line.tick()
    line.update(TrainingProgress(6, 10, 0.0, {"train/loss": 0.5}, "evaluating"))
    clock.now += 60
    line.tick()
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines() == [
        "[0:02] loading PyTorch ...",
        "[0:04] step 5/10 · loss 0.5123 · 1,530 samples/s · 0:35 left",
        "[1:04] step 6/10 · loss 0.5000 · evaluating ...",
    ]


def test_line_of_a_task_names_the_time_left(clock, capsys):
    bars = log_of(ProgressBars, "opening the run", clock)
    bars("drawing samples", 0, 1000, "samples")
    clock.now += 10
    bars("drawing samples", 256, 1000, "samples")
    bars.tick()
    clock.now += 20
    bars("reading", 37, None, "network evaluations")
    bars.tick()
    bars.stage("writing \x1b[2J")
    clock.now += 30
    bars.tick()
    assert capsys.readouterr().err.splitlines() == [
        "[0:10] drawing samples: 256/1,000 samples · 25.6/s · 0:29 left",
        "[0:30] reading: 37 network evaluations",
        "[1:00] writing \\x1b[2J ...",
    ]


def test_bars_on_a_terminal_print_no_plain_lines(clock, capsys):
    console = TerminalConsole(
        file=io.StringIO(), force_terminal=True, width=80, _environ={"TERM": "xterm"}
    )
    with ProgressBars("opening", console=console, clock=clock) as bars:
        bars("[red]x[/]", 5, 10, "rows")
        bars.warn("no [red] here \x1b[2J")
        clock.now += 100
    assert capsys.readouterr() == ("", "")
    found = console.file.getvalue()
    for text in ("[red]x[/]", "5/10 rows", "warning: no [red] here \\x1b[2J"):
        assert text in found


def test_thread_prints_without_a_report(monkeypatch, capsys):
    """A task that is silent is seen to live."""
    printed = threading.Event()
    monkeypatch.setattr("ditlab.cli.terminal._POLL", 0.001)
    monkeypatch.setattr("ditlab.cli.terminal.print_plain", lambda text: printed.set())
    monkeypatch.setenv(INTERVAL_VARIABLE, "0.01")
    with ProgressBars("opening", console=TerminalConsole(file=io.StringIO())):
        assert printed.wait(10)


@pytest.mark.parametrize(
    "done, total, unit, shown",
    [
        (3_100_000, 9_912_422, "bytes", "3.0 MiB of 9.5 MiB"),
        (12, None, "bytes", "12 B"),
    ],
)
def test_amounts(done, total, unit, shown):
    bars = ProgressBars("opening")
    bars("reading", done, total, unit)
    assert bars.describe() == f"reading: {shown}"


@pytest.mark.parametrize("seconds, shown", [(754, "12:34"), (90_000, "25:00:00")])
def test_time_left_goes_on_past_a_day(seconds, shown):
    line = ProgressLine("loading PyTorch")
    line.update(replace(PROGRESS, seconds_left=seconds))
    assert line.describe() == f"step 5/10 · loss 0.5123 · 1,530 samples/s · {shown} left"


@pytest.mark.parametrize(
    "unit, number, shown", [("rows", 0.34, "0.034/s"), ("bytes", 125_000_004, "11.9 MiB/s")]
)
def test_rates(clock, unit, number, shown):
    bars = ProgressBars("opening", clock=clock)
    bars("reading", 0, None, unit)
    clock.now += 10
    bars("reading", number, None, unit)
    assert bars.describe().endswith(shown)
