"""The table of all benchmarks, what is refused and skipped, and the interval of a median."""

import json
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch

from benchmarks.peak_memory import step_peak
from benchmarks.rounds import (
    BenchmarkFigure,
    Measured,
    Timed,
    beside,
    median_interval,
    report,
    report_beside,
)
from benchmarks.run_all import (
    NEEDS,
    TAKES_DEVICE,
    BenchmarkResult,
    describe,
    describe_peers,
    main,
    reason_to_skip,
    write,
)
from benchmarks.small_sizes import SMALL

FIGURE = BenchmarkFigure(
    "digits, platform over bare", 1.01, 1.0, 1.02, 20, 2, Measured(0.05, 1280.0, 0.5, 2**20)
)
RESULTS = [
    BenchmarkResult(
        "step/step_time", "done", "", 61.4, (asdict(FIGURE), asdict(replace(FIGURE, name="mnist")))
    ),
    BenchmarkResult("runs/sweep_cost", "skipped", "needs ray", 0.0),
]


def test_the_table_and_the_file_hold_every_result(tmp_path):
    heading, first, second, third = describe(RESULTS).splitlines()
    assert heading.split() == ["benchmark", "seconds", "figure"]
    words = "1.010 (1.000 to 1.020, 20 rounds), 50.0 ms, 1280 samples/s, 0.50 utilisation, 1 MiB"
    assert first.split() == f"step/step_time 61 digits, platform over bare: {words}".split()
    assert second.strip() == f"mnist: {words}"
    assert third.endswith("skipped: needs ray")
    write(RESULTS, tmp_path / "new" / "bench.json", {"quick": True})
    (file,) = (tmp_path / "new").iterdir()
    document = json.loads(file.read_text())
    first, second = document["results"]
    assert document["quick"] and second["name"] == "runs/sweep_cost"
    assert first["figures"][0]["measured"]["utilisation"] == 0.5


def test_a_figure_is_printed_and_added_to_the_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DITLAB_BENCHMARK_RESULTS", str(tmp_path / "figures"))
    report("one", [1.0, 3.0, 2.0], Measured(0.5), note="at most 2")
    report("two", [1.5])
    assert capsys.readouterr().out.splitlines() == [
        "one: ratio 2.000 (median of 3 rounds; range 1.000 to 3.000); at most 2",
        "two: ratio 1.500 (one round)",
    ]
    one, two = map(json.loads, (tmp_path / "figures").read_text().splitlines())
    assert (one["ratio"], one["low"], one["high"], one["rounds"]) == (2, 1, 3, 3)
    assert one["measured"]["seconds"] == 0.5
    assert (two["name"], two["rounds"], two["measured"]["device"]) == ("two", 1, "cpu")


@pytest.mark.parametrize(
    "seconds, aim, ratio, verdict",
    [
        ([1.0, 1.1], {"at_least": 1.2}, "1.91", ">= 1.2  reached"),
        ([1.9, 1.9], {"at_least": 1.2}, "1.05", ">= 1.2  missed"),
        ([2.5, 2.6], {"at_most": 1.0}, "1.27", "<= 1    missed, behind"),
        (
            [2.0, 2.0],
            {"at_most": 1.0},
            "1.00",
            "<= 1    reached; processor 0.50, 0.7 cores busy beside",
        ),
        ([1.0, 2.5], {"at_most": 1.0}, "0.88", "<= 1    not measured"),
    ],
)
def test_a_row_beside_a_peer_says_whether_its_aim_is_reached(
    tmp_path, monkeypatch, seconds, aim, ratio, verdict
):
    monkeypatch.setenv("DITLAB_BENCHMARK_RESULTS", str(tmp_path / "figures"))
    load = 0.7 if "processor" in verdict else 0.1
    ours = [Timed(each, 1.0, load) for each in seconds]
    report_beside("loader", "litdata 0.2", ours, [Timed(2.0, 2.0, load)] * 2, **aim)
    figures = tuple(map(json.loads, (tmp_path / "figures").read_text().splitlines()))
    lines = describe_peers([BenchmarkResult("data/loader", "done", "", 1.0, figures)]).splitlines()
    assert lines[0].split("  ")[0] == "ours beside peers" and f"  {ratio}  " in lines[1]
    assert verdict.split() == lines[1][lines[1].index(verdict[:2]) : -len("litdata 0.2")].split()


def test_sides_take_turns_and_processor_time_is_of_this_process():
    turns = []
    ours = partial(turns.append, "ours")
    theirs = partial(turns.append, "theirs")
    beside("row", "plain", ours, theirs, at_most=1.0, rounds=2)
    assert turns == ["ours", "theirs"] * 2 + ["theirs", "ours"]
    with pytest.raises(ValueError, match="one aim"):
        report_beside("row", "plain", [], [])


def test_what_cannot_run_is_skipped():
    assert set(NEEDS) <= set(SMALL) and set(TAKES_DEVICE) <= set(SMALL)
    for name, packages in NEEDS.items():
        assert reason_to_skip(name, "cpu", lambda _: False) == f"needs {' and '.join(packages)}"
    assert not any(reason_to_skip(name, "cpu", lambda _: True, quick=True) for name in SMALL)
    skipped = [name for name in SMALL if reason_to_skip(name, "cpu", lambda _: True)]
    assert skipped == ["step/full_size"]
    left = {name for name in SMALL if not reason_to_skip(name, "cuda", lambda _: True)}
    of_the_machine = {name for name in SMALL if not name.startswith(("step/", "sampling/"))}
    assert left == of_the_machine | set(TAKES_DEVICE)


@pytest.mark.parametrize(
    "arguments, named", [(["--only", "step/none"], "step/none"), (["--out", "."], "--out .")]
)
def test_a_wrong_argument_is_named(arguments, named, capsys):
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert named in capsys.readouterr().err


def test_the_interval_of_a_median():
    assert median_interval(range(1, 21)) == (6, 15)  # tables of the sign test: 20 values, 95%
    assert median_interval([3.0]) == (3.0, 3.0)
    with pytest.raises(ValueError, match="--rounds"):
        median_interval([])


def test_the_peak_of_a_step_counts_what_is_freed_again():
    def step():
        first = torch.ones(1000, 1000)
        second = first + 1
        del first
        return (second * 2).sum()

    step()
    assert step_peak(step, torch.device("cpu")) == pytest.approx(8e6, rel=0.01)
