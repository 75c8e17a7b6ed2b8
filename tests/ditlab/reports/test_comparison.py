"""Comparisons: curves at equal budgets, and a page for runs in every state."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ditlab.receipts.records import Measurement
from ditlab.reports.comparison import (
    ComparedRun,
    Comparison,
    RunCurve,
    RunSamples,
    equal_budget,
    group_of,
    run_curve,
    smoothed,
    training_clock,
)
from ditlab.reports.comparison_page import curves_figure, side_by_side, summary_text, write_comparison
from ditlab.reports.rendering.render import save_figure
from ditlab.reports.rendering.theme import LIGHT
from ditlab_models.figures import Figure, ImageGrid, Text


def line(steps: list[float], start: float, slope: float, batch: int = 10, pace: float = 1.0) -> RunCurve:
    """value = start + slope * step."""
    at = np.array(steps, dtype=float)
    return RunCurve(at, at * batch, at * pace, start + slope * at)


def run(run_id: str = "aaaa", **changes: Any) -> ComparedRun:
    """A run of 100 steps in 100 s, whose loss falls from 2 to 1."""
    values: dict[str, Any] = {
        "run_id": run_id, "name": f"run-{run_id}", "family": "dit", "status": "finished", "step": 100,
        "batch_size": 10, "spec": {"name": run_id, "model.family": "dit", "objective.time.kind": "uniform"},
        "weights": ["velocity", "direction"], "data": "digits", "components": {"blocks": 900, "head": 100},
        "curves": {
            "train/loss": line(list(range(1, 101)), 2.0, -0.01),
            "eval/direction": line([0, 50, 100], 1.0, -0.005),
            "eval/velocity": line([0, 50, 100], 2.0, -0.01),
        },
        "samples_per_second": 10.0,
    }  # fmt: skip
    return ComparedRun(**{**values, **changes})


def compared(*runs: ComparedRun) -> Comparison:
    return Comparison(runs, seed=0, batch=64, device="cpu", quality_note="on features")


def velocity(**changes: Any) -> dict[str, RunCurve]:
    return {"eval/velocity": line(**{"steps": [0, 50, 100], "start": 2.0, "slope": -0.01, **changes})}


# Time


def test_evaluations_resumes_and_pauses_are_no_training_time() -> None:
    """Every step takes a second, with other intervals in between."""
    steps = list(range(1, 101))
    times = 1000.0 * np.arange(1, 101)
    times[30:] += 25_000  # evaluated after step 30
    times[60:] += 3_600_000  # killed after step 60, resumed an hour later
    times[80:] += 600_000  # asleep for ten minutes
    clock = training_clock(steps, times.astype(int).tolist(), [0, int(times[60]) - 1500], [0, 30, 90, 100])
    np.testing.assert_allclose(clock(np.array([0, 1, 30, 31, 61, 81, 100])), [0, 1, 30, 31, 61, 81, 100], atol=1e-6)


def test_resume_on_a_faster_machine_has_its_own_pace() -> None:
    """50 steps of 20 s, then 50 steps of 0.01 s: the slow ones are no pauses."""
    times = [20_000 * step for step in range(1, 51)] + [2_000_000 + 10 * step for step in range(1, 51)]
    clock = training_clock(list(range(1, 101)), times, [0, 2_000_000])
    np.testing.assert_allclose(clock(np.array([1, 50, 51, 100])), [20, 1000, 1000.01, 1000.5])


def test_slow_step_counts_as_training() -> None:
    times = [1000 * step + (20_000 if step > 5 else 0) for step in range(1, 11)]
    assert training_clock(list(range(1, 11)), times)(np.array([10.0])) == 30


def test_metrics_logged_every_ten_steps() -> None:
    """After 1, 10, 20, ... steps of a tenth of a second; evaluated after 10; linear between the points."""
    steps = [1, *range(10, 101, 10)]
    times = [100 * step + (7000 if step > 10 else 0) for step in steps]
    clock = training_clock(steps, times, [0], [10])
    np.testing.assert_allclose(clock(np.array([0, 5, 10, 15, 100])), [0, 0.5, 1.0, 1.5, 10.0])


@pytest.mark.parametrize("points", [0, 1])
def test_unknown_time_is_nan(points: int) -> None:
    assert np.isnan(training_clock(list(range(points)), list(range(points)))(np.array([0.0, 3.0]))).all()


def test_machine_clock_that_goes_back() -> None:
    clock = training_clock([1, 2, 3, 4, 5], [1000, 2000, 3000, 1000, 2000])
    assert clock(np.array([5.0])) == 5 and (np.diff(clock(np.arange(6.0))) >= 0).all()


# Curves


def test_spike_and_nan_do_not_change_the_smoothed_curve() -> None:
    values = [1.0] * 400
    values[100], values[200], values[201] = 1e6, float("nan"), float("inf")
    soft = smoothed(run_curve(range(400), values, 1, training_clock([], [])))
    assert (soft.values == 1.0).all() and soft.steps[0] == 0 and soft.steps[-1] == 399


def test_smoothed_curve_does_not_lag() -> None:
    soft = smoothed(line(list(range(300)), 300.0, -1.0))
    inner = slice(5, -5)
    np.testing.assert_allclose(soft.values[inner], 300.0 - soft.steps[inner], atol=0.5)


def test_long_curves_are_smoothed_at_few_points() -> None:
    assert len(smoothed(line(list(range(100_000)), 1.0, 0.0)).values) <= 500


def test_smoothed_curve_of_nan_is_nan() -> None:
    assert np.isnan(smoothed(RunCurve(*[np.arange(3.0)] * 3, np.full(3, np.nan))).values).all()


def test_first_of_two_values_of_a_step_counts() -> None:
    assert run_curve([0, 5, 5, 9], [3.0, 2.0, 7.0, 1.0], 4, training_clock([], [])).values.tolist() == [3.0, 2.0, 1.0]


# Equal budgets


@pytest.mark.parametrize(
    ("axis", "amount", "values"),
    [("steps", 100, (0.1, 0.2)), ("samples", 1000, (0.1, 0.4)), ("seconds", 50, (0.1, 0.8))],
)
def test_equal_budgets_are_exact_on_power_laws(axis: Any, amount: float, values: tuple[float, float]) -> None:
    """100 steps of 10 samples in 0.5 s against 200 steps of 20 samples in 2 s, evaluated within 1.25 of the budget."""
    first = RunCurve(*[np.array([0.0, 30.0, 100.0]) * each for each in (1, 10, 0.5)], np.array([9.0, 1 / 3, 0.1]))
    steps = np.array([0.0, 22.0, 27.0, 45.0, 55.0, 90.0, 110.0, 200.0])
    values_of = np.concatenate([[9.0], 20 / steps[1:]])
    second = RunCurve(*[steps * each for each in (1, 20, 2.0)], values_of)
    budget = equal_budget([first, second], axis)
    assert budget is not None and budget.amount == pytest.approx(amount) and not budget.every
    assert budget.values == pytest.approx(values)


def test_a_straight_line_from_the_untrained_network_is_no_measurement(tmp_path: Path) -> None:
    """One run is evaluated at steps 0 and 400 alone, the other at 0, 90 and 130: nothing is near the other's."""
    rare, often = line([0, 400], 1.5, -0.003), line([0, 90, 130], 1.5, -0.003)
    budget = equal_budget([rare, often], "steps")
    assert budget is not None and np.isnan(budget.values).all() and (budget.amount, budget.every) == (130, 26)
    comparison = compared(*(run(name, curves={"eval/velocity": each}) for name, each in (("a", rare), ("b", often))))
    text = summary_text(comparison)
    assert "cannot be said: not all are measured at 130 steps" in text and "evaluation.every=26 would tell" in text
    write_comparison(comparison, tmp_path)
    assert "not measured there; evaluation.every=26 would tell" in (tmp_path / "comparison.md").read_text()
    near = equal_budget([line([0, 105, 400], 1.5, -0.003), often], "steps")
    assert near is not None and near.amount == 105, "the largest at which both are measured"


def test_diverged_run_has_no_value_and_is_not_lowest() -> None:
    broken = RunCurve(*[np.array([0.0, 50.0, 100.0])] * 3, np.array([2.0, 0.1, np.nan]))
    comparison = compared(run("good"), run("bad", curves={"eval/velocity": broken}))
    steps = comparison.budgets[0]
    assert steps.values[0] == 1.0 and np.isnan(steps.values[1])
    assert "only run-good has a number at equal steps (100 steps): 1" in summary_text(comparison)


def test_runs_evaluated_only_at_their_start_have_no_budget() -> None:
    assert equal_budget([line([0], 2.0, 0.0), line([0, 10], 2.0, 0.0)], "steps") is None


def test_unknown_time_leaves_the_other_budgets() -> None:
    blind = line([0, 100], 2.0, -0.015)
    blind = replace(blind, seconds=np.full(2, np.nan))
    comparison = compared(run("a"), run("b", curves={"eval/velocity": blind}))
    assert [budget.axis for budget in comparison.budgets] == ["steps", "samples"]


# Sentences


def test_summary_names_the_lower_run_at_each_equal_budget() -> None:
    """A step of b gains more than one of a but takes three times as long: the order differs by steps and time."""
    slow = run(
        "b",
        curves=velocity(steps=list(range(0, 101, 5)), slope=-0.012, pace=3.0),
        components={"x": 2000},
        samples_per_second=3.3,
    )
    text = summary_text(compared(run("a"), slow))
    assert "run-b is lower by 0.2: 0.8, against 1 at equal steps (100 steps)" in text
    assert "run-a is lower by 0.5987: 1, against 1.599 at equal time (1 min 40 s)" in text
    assert "Each is one run" in text and "The error over held-out draws is not known" in text
    assert "run-a has 1,000 parameters and trained at 10 samples/s; run-b has 2,000" in text


def test_differences_have_their_error_over_held_out_draws() -> None:
    """Samples of widely different errors; b is lower by 0.1 with a standard deviation of 0.02 (n = 100), or of 2."""
    measurement = Measurement.of({"held-out samples": 1})

    def pair(spread: float, **changes: Any) -> str:
        level = np.linspace(0, 10, 100)
        shift = 0.1 + spread * np.tile([1.0, -1.0], 50)
        known = {"measurement": measurement, "curves": velocity(steps=[0, 100]), **changes}
        lower = known | {"curves": velocity(steps=[0, 100], slope=-0.011)}
        first = run("a", by_sample=lambda step: {"velocity": level} if step == 100 else {}, **known)
        return summary_text(compared(first, run("b", by_sample=lambda step: {"velocity": level - shift}, **lower)))

    error = 1.984 * 0.02 * np.sqrt(100 / 99) / 10  # Student's t with 99 degrees of freedom
    assert f"run-b is lower by 0.1 (± {error:.2g} over held-out draws, 95 %): 0.9, against 1" in pair(0.02)
    assert "Each is one run" in pair(0.02) and "not known: values by sample" not in pair(0.02)
    assert "the runs are level: 0.9 and 1 (± 0.4 over" in pair(2.0) and "lower" not in pair(2.0)
    assert "The error over held-out draws is not known" in pair(0.02, measurement=None)


def test_metrics_that_measure_something_else_are_not_ranked() -> None:
    """Settings of another metric and rounding are no obstacle; those of the ranking metric are."""
    base = {"settings of velocity": 1, "settings of frequency": 1, "precision": "fp32"}

    def text(**changes: Any) -> str:
        other = Measurement.of(base | {name.replace("_", " "): value for name, value in changes.items()})
        return summary_text(compared(run("a", measurement=Measurement.of(base)), run("b", measurement=other)))

    assert "cannot be said: eval/velocity is measured in several ways, which differ in: settings of velocity" in text(
        settings_of_velocity=2
    )
    assert "measured in" not in text(settings_of_frequency=2) and "cannot be said" not in text(settings_of_frequency=2)
    assert "eval/velocity is measured in several ways, which differ in: precision." in text(precision="bf16")


def test_nothing_ranks_across_protocols() -> None:
    """Another kind of device draws other noise; an earlier measurement, a group's run, one that is not recorded."""
    parts = {"held-out samples": 1, "device": "cpu", "evaluation batch": 16, "threads": 2}
    base, cuda = Measurement.of(parts), Measurement.of(parts | {"device": "cuda"})
    rounded = Measurement.of(parts | {"evaluation batch": 4, "threads": 1})
    fine = summary_text(compared(run("a", measurement=base), run("b", measurement=rounded)))
    assert "cannot be said" not in fine and "differ in: evaluation batch, threads." in fine
    pair = [run("b", measurement=base), run("c", measurement=cuda)]
    others = {
        "in several ways, which differ in: device": run("b", measurement=cuda),
        "ways, which differ in: device": run("b", measurement=base, past_measurements=[cuda]),
        "differ in: device": group_of("b", "b", pair),
        "what eval/velocity is measured with is recorded of some runs alone": run("b", measurement=None),
    }
    for sentence, other in others.items():
        text = summary_text(compared(run("a", measurement=base), other))
        assert "Which run is better cannot be said" in text and sentence in text and "lower" not in text


def test_runs_within_one_percent_are_level() -> None:
    text = summary_text(compared(run("a"), run("b", curves=velocity(start=2.005))))
    assert "the runs are level (within 1%)" in text and "lower" not in text and "Each is one run" not in text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": "mnist"}, "the runs differ in their data"),
        (
            {"curves": {"eval/tokens": line([0, 100], 2.0, -0.01)}, "weights": ["tokens"]},
            "no held-out metric in common",
        ),
        ({"weights": ["other"]}, "no loss component in common"),
        ({"curves": {}}, "fewer than two of the runs have held-out metrics"),
    ],
)
@pytest.mark.usefixtures("blank_canvases")
def test_reason_is_given_where_runs_are_not_comparable(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    comparison = compared(run("a"), run("b", **changes))
    text = summary_text(comparison)
    assert reason in text and "lower" not in text and comparison.budgets == []
    page = write_comparison(comparison, tmp_path)[1].read_text()
    assert "Held-out metrics are not compared" in page and reason in page


def test_summary_names_unfinished_runs() -> None:
    assert summary_text(compared(run("a", status="running"), run("b"))).endswith("Not finished: run-a (running).")


@pytest.mark.parametrize(("schedule", "is_noted"), [("warmup_cosine", True), ("constant", False)])
@pytest.mark.usefixtures("blank_canvases")
def test_note_on_a_longer_run_whose_learning_rate_decays_later(tmp_path: Path, schedule: str, is_noted: bool) -> None:
    long = run("b", curves=velocity(steps=[0, 100, 200]), spec={"schedule.kind": schedule})
    page = write_comparison(compared(run("a", spec={"schedule.kind": schedule}), long), tmp_path)[1].read_text()
    assert ("in the middle of its learning-rate schedule" in page) == is_noted


def test_runs_of_one_name_are_labelled_with_their_ids() -> None:
    assert compared(run("a", name="x"), run("b", name="x"), run("c")).labels == ["x (a)", "x (b)", "run-c"]


def test_heaviest_common_component_ranks() -> None:
    comparison = compared(run("a", weights=["other", "direction", "velocity"]), run("b"))
    assert comparison.main == "direction" and comparison.common[0] == "direction"


# Figures and page


def run_colours(path: Path) -> set[str]:
    """Colours of the first three runs that a picture holds."""
    pixels = np.asarray(Image.open(path).convert("RGB"))
    return {colour for colour in LIGHT.curves[:3] if (pixels == list(bytes.fromhex(colour[1:]))).all(axis=-1).any()}


def test_run_keeps_its_colour_where_others_are_missing(tmp_path: Path) -> None:
    runs = [run("a"), run("b", curves={}), run("c", curves={"eval/velocity": line([1], 1.0, 0.0)})]
    figure = curves_figure(compared(*runs), {"eval/direction": "direction", "eval/velocity": "velocity"})
    assert run_colours(save_figure(figure, tmp_path / "a.png")) == {LIGHT.curves[0], LIGHT.curves[2]}


def grid(num: int, size: int = 8, captions: int = 0) -> Figure:
    return Figure([ImageGrid(np.zeros((num, size, size)), [str(i) for i in range(captions)])])


def test_samples_side_by_side() -> None:
    together = side_by_side([("a", grid(25)), ("b", grid(25, 32)), ("c", grid(20, captions=20))])
    assert together is not None
    assert [panel.title for panel in together.panels] == ["a", "b", "c"]
    assert [panel.columns for panel in together.panels if isinstance(panel, ImageGrid)] == [5, 5, None]
    assert side_by_side([("a", grid(4))]) is None
    assert side_by_side([("a", grid(4)), ("b", Figure([Text(["x"]), Text(["y"])]))]) is None


def test_page_of_eight_runs_in_every_state(tmp_path: Path) -> None:
    drawn = RunSamples(100, "solver=euler, steps=4", 100, 0.01, 4.0, grid(25), {"quality/frechet": 1.5})
    nothing = RunCurve(*[np.arange(3.0)] * 3, np.full(3, np.nan))
    runs = [
        run("a", drawn=drawn),
        run("b", drawn=replace(drawn, quality={}, why_no_quality="it draws no images", grid=Figure([Text(["hello"])]))),
        run("c", status="running", why_no_samples="it has no checkpoint yet", curves={}, samples_per_second=None),
        run("d", curves={"train/loss": nothing, "eval/velocity": nothing, "eval/direction": nothing}),
        run("e", spec={"name": "e", "model.family": "unet", "model.new": "3"}, components={"down": 7}),
        run("f", status="failed", step=0, training_only={"guide": 5}),
        run("g", drawn=replace(drawn, grid=grid(9, 64), evaluations=None), name="<b>|*odd*"),
        run("h", data="other", batch_size=3),
    ]
    files = write_comparison(compared(*runs), tmp_path)
    assert [file.name for file in files[:2]] == ["comparison.html", "comparison.md"]
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in files}
    html, markdown = (file.read_text() for file in files[:2])
    assert "<b>|" not in html and "it has no checkpoint yet" in html and "it draws no images" in html
    assert not re.findall(r'src="(?!data:)', html)
    pictures = set(re.findall(r"!\[[^]]*\]\(([^)]*)\)", markdown))
    assert pictures and pictures <= {file.name for file in files}
    assert "| model.new |  |  |  |  | 3 |  |  |  |" in markdown
    assert "| guide (training only, not in the total) |  |  |  |  |  | 5 |  |  |" in markdown
    assert "heights of these curves are not comparable" in html


@pytest.mark.usefixtures("blank_canvases")
def test_equal_specs_are_reported(tmp_path: Path) -> None:
    two = [run("a", spec={"name": "a", "tracking.uri": "x"}), run("b", spec={"name": "b", "tracking.uri": "y"})]
    assert "differ in nothing but names and places" in write_comparison(compared(*two), tmp_path)[1].read_text()


def test_quality_of_other_samplers_is_another_measurement(tmp_path, blank_canvases) -> None:
    ways = [Measurement.of({"sampler": steps, "seed": 0}) for steps in (4, 4, 25)]
    drawn = [
        RunSamples(100, "", 100, 0.1, 4, None, {"quality/frechet": 1.0}, measurement=measurement)
        for measurement in ways
    ]
    alike = compared(run("aaaa", drawn=drawn[0]), run("bbbb", drawn=drawn[1]))
    assert alike.measured_apart("quality") == "" and "measured in" not in summary_text(alike)
    apart = compared(run("aaaa", drawn=drawn[0]), run("bbbb", drawn=drawn[2]))
    assert "quality/... is measured in several ways, which differ in: sampler." in summary_text(apart)
    write_comparison(apart, tmp_path)
    text = (tmp_path / "comparison.md").read_text()
    assert f"| measurement | {ways[0].shown} | {ways[2].shown} |" in text and "differ in: sampler" in text
