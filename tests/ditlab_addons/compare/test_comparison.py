"""Comparisons: curves at equal budgets, and a page for runs in every state."""

import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from ditlab.receipts.records import Measurement
from ditlab.reports.rendering.render import save_figure
from ditlab.reports.rendering.theme import THEME
from ditlab_addons.compare.comparison import (
    Comparison,
    RunCurve,
    RunSamples,
    equal_budget,
    group_of,
    smoothed,
    training_seconds,
)
from ditlab_addons.compare.page import curves_figure, summary_text, write_comparison
from ditlab_models.figures import Figure, ImageGrid, Text
from support.compared import compared_run as run
from support.compared import line


def compared(*runs):
    return Comparison(runs, seed=0)


def velocity(steps=(0, 50, 100), start=2.0, slope=-0.01, pace=1.0):
    return {"eval/velocity": line(steps, start, slope, pace)}


# Time


def test_training_time_follows_from_the_speeds():
    """Ten samples a step: 50 steps of 20 s, then 50 of 0.1 s; speeds are logged every ten steps."""
    steps = range(10, 101, 10)
    found = training_seconds([0, 5, 50, 100, 120], steps, [0.5] * 5 + [100.0] * 5, 10)
    np.testing.assert_allclose(found, [0, 100, 1000, 1005, 1005])
    assert np.isnan(training_seconds([0, 3], [], [], 10)).all()


# Curves


def test_spike_and_nan_do_not_change_the_smoothed_curve():
    values = np.ones(400)
    values[100], values[200], values[201] = 1e6, float("nan"), float("inf")
    soft = smoothed(RunCurve(np.arange(400.0), np.arange(400.0), values))
    assert (soft.values == 1.0).all() and soft.steps[0] == 0 and soft.steps[-1] == 399


def test_smoothed_curve_does_not_lag():
    soft = smoothed(line(list(range(300)), 300.0, -1.0))
    inner = slice(5, -5)
    np.testing.assert_allclose(soft.values[inner], 300.0 - soft.steps[inner], atol=0.5)


def test_long_curves_are_smoothed_at_few_points():
    assert len(smoothed(line(list(range(100_000)), 1.0, 0.0)).values) <= 500


def test_smoothed_curve_of_nan_is_nan():
    assert np.isnan(smoothed(RunCurve(*[np.arange(3.0)] * 2, np.full(3, np.nan))).values).all()


# Equal budgets


def test_runs_meet_at_the_most_that_all_reach():
    """100 steps in 50 s against 200 steps in 400 s; between evaluations values are linear, but not
    from the start.
    """
    first = line([0, 30, 100], 2.0, -0.01, pace=0.5)
    second = line([0, 20, 60, 200], 2.0, -0.005, pace=2.0)
    for axis, amount, values in (("steps", 100, [1.0, 1.5]), ("seconds", 50, [1.0, 1.875])):
        found = equal_budget([first, second], axis)
        assert found.amount == amount and found.values == pytest.approx(values)
    early = equal_budget([line([0, 10], 2.0, -0.01), second], "steps")
    assert early.values == pytest.approx([1.9, np.nan], nan_ok=True)


def test_diverged_run_has_no_value_and_is_not_lowest():
    broken = RunCurve(*[np.array([0.0, 50.0, 100.0])] * 2, np.array([2.0, 0.1, np.nan]))
    comparison = compared(run("good"), run("bad", curves={"eval/velocity": broken}))
    steps = comparison.budgets[0]
    assert steps.values[0] == 1.0 and np.isnan(steps.values[1])
    assert "only run-good has a number at equal steps (100 steps): 1" in summary_text(comparison)


def test_runs_evaluated_only_at_their_start_have_no_budget():
    assert equal_budget([line([0], 2.0, 0.0), line([0, 10], 2.0, 0.0)], "steps") is None


def test_unknown_time_leaves_the_other_budgets():
    blind = line([0, 100], 2.0, -0.015)
    blind = replace(blind, seconds=np.full(2, np.nan))
    comparison = compared(run("a"), run("b", curves={"eval/velocity": blind}))
    assert [budget.axis for budget in comparison.budgets] == ["steps"]


# Sentences


MEASURED = {"eval": Measurement.of({"held-out samples": 1})}


def kept(curve, spread=0.0):
    """Values by held-out sample of an evaluation: 100 widely different ones around its mean, and a
    spread.
    """
    values = dict(zip(curve.steps.astype(int).tolist(), curve.values.tolist(), strict=True))
    around = np.linspace(-5, 5, 100) + spread * np.tile([1.0, -1.0], 50)
    return lambda step: {"velocity": values[step] + around}


def test_summary_names_the_lower_run_at_each_equal_budget():
    """A step of b gains more than one of a but takes three times as long: the order differs by
    steps and time.
    """
    slow = run(
        "b",
        curves=velocity(steps=list(range(0, 101, 5)), slope=-0.012, pace=3.0),
        components={"x": 2000},
        samples_per_second=3.3,
    )
    first = run("a")
    runs = [
        replace(each, measured=MEASURED, by_sample=kept(each.held_out["velocity"], spread))
        for each, spread in ((first, 0.0), (slow, 0.02))
    ]
    text = summary_text(compared(*runs))
    error = "(+- 0.004 over held-out draws, 95 %)"
    assert f"run-b is lowest by 0.2 {error}: 0.8, then run-a: 1 at equal steps (100 steps)" in text
    assert f"run-a is lowest by 0.6 {error}: 1, then run-b: 1.6 at equal time (1 min 40 s)" in text
    assert "Each is one run" in text and "No run is named" not in text
    assert "run-a has 1,000 parameters and trained at 10 samples/s; run-b has 2,000" in text


def test_differences_within_their_error_over_held_out_draws_are_level():
    """Apart by 0.1, with a standard deviation of 0.02 or 2 (n = 100), or unknown: then none is
    named.
    """

    def text(spread, measured):
        runs = []
        for name, slope, own in (("a", -0.01, 0.0), ("b", -0.011, spread)):
            curves = velocity(steps=[0, 100], slope=slope)
            found = kept(curves["eval/velocity"], own)
            runs.append(run(name, curves=curves, measured=measured, by_sample=found))
        return summary_text(compared(*runs))

    assert "run-b is lowest by 0.1 (+- 0.004 over" in text(0.02, MEASURED)
    level = text(2.0, MEASURED)
    assert "run-b and run-a are level: 0.9 and 1 (+- 0.4 over" in level and "lowest" not in level
    unknown = text(0.02, {})
    assert "run-b has 0.9, run-a 1 at equal steps" in unknown and "No run is named" in unknown


PARTS = {
    "settings of velocity": 1,
    "settings of frequency": 1,
    "precision": "fp32",
    "device": "cpu",
    "threads": 2,
}


def measured(**changes):
    named = {name.replace("_", " "): value for name, value in changes.items()}
    return {"eval": Measurement.of(PARTS | named)}


@pytest.mark.parametrize(
    ("changes", "differ", "is_ranked"),
    [
        ({"settings_of_frequency": 2}, "", True),
        ({"precision": "bf16", "threads": 1}, "precision, threads", True),
        ({"settings_of_velocity": 2}, "settings of velocity", False),
        ({"device": "cuda"}, "device", False),
    ],
)
def test_nothing_ranks_across_protocols(changes, differ, is_ranked):
    """Rounding and settings of another metric are no obstacle; other settings and noise are."""
    own = measured(**changes)
    text = summary_text(compared(run("a", measured=measured()), run("b", measured=own)))
    said = f"eval/velocity is measured in several ways, which differ in: {differ}"
    assert (said in text) is bool(differ)
    assert ("Which run is better cannot be said" in text) is not is_ranked
    assert is_ranked or "lowest" not in text


def test_nothing_ranks_where_a_member_or_a_run_is_measured_otherwise():
    base, other = (run("b", measured=measured(device=name)) for name in ("cpu", "cuda"))
    for sentence, second in {
        "differ in: device": group_of("b", "b", [base, other]),
        "what eval/velocity is measured with is recorded of some runs alone": run("b"),
    }.items():
        text = summary_text(compared(run("a", measured=measured()), second))
        assert "Which run is better cannot be said" in text and sentence in text
        assert "lowest" not in text


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
def test_reason_is_given_where_runs_are_not_comparable(tmp_path, changes, reason):
    comparison = compared(run("a"), run("b", **changes))
    text = summary_text(comparison)
    assert reason in text and "lowest" not in text and comparison.budgets == []
    page = write_comparison(comparison, tmp_path)[1].read_text()
    assert "Held-out metrics are not compared" in page and reason in page


def test_runs_of_one_name_are_labelled_with_their_ids():
    found = compared(run("a", name="x"), run("b", name="x"), run("c"))
    assert found.labels == ["x (a)", "x (b)", "run-c"]


def test_heaviest_common_component_ranks():
    comparison = compared(run("a", weights=["other", "direction", "velocity"]), run("b"))
    assert comparison.main == "direction" and comparison.common[0] == "direction"


# Figures and page


def run_colours(path):
    """Colours of the first three runs that a picture holds."""
    pixels = np.asarray(Image.open(path).convert("RGB"))
    return {
        colour
        for colour in THEME.curves[:3]
        if (pixels == list(bytes.fromhex(colour[1:]))).all(axis=-1).any()
    }


def test_run_keeps_its_colour_where_others_are_missing(tmp_path):
    runs = [run("a"), run("b", curves={}), run("c", curves={"eval/velocity": line([1], 1.0, 0.0)})]
    figure = curves_figure(compared(*runs), ["eval/direction", "eval/velocity"])
    first, _, third, *_ = THEME.curves
    assert run_colours(save_figure(figure, tmp_path / "a.png")) == {first, third}


def grid(num, size):
    return Figure([ImageGrid(np.zeros((num, size, size)))])


def test_page_of_eight_runs_in_every_state(tmp_path):
    drawn = RunSamples(100, "solver=euler, steps=4", 100, 0.01, grid(25, 8))
    nothing = RunCurve(*[np.arange(3.0)] * 2, np.full(3, np.nan))
    runs = [
        run("a", drawn=drawn),
        run("b", drawn=replace(drawn, grid=Figure([Text(["hello"])]))),
        run(
            "c",
            status="running",
            why_no_samples="it has no checkpoint yet",
            curves={},
            samples_per_second=None,
        ),
        run(
            "d", curves={"train/loss": nothing, "eval/velocity": nothing, "eval/direction": nothing}
        ),
        run(
            "e",
            spec={"name": "e", "model.family": "unet", "model.new": "3"},
            components={"down": 7},
        ),
        run("f", status="failed", step=0),
        run("g", drawn=replace(drawn, grid=grid(9, 64)), name="<b>|*odd*"),
        run("h", data="other", batch_size=3),
    ]
    files = write_comparison(compared(*runs), tmp_path)
    assert [file.name for file in files[:2]] == ["comparison.html", "comparison.md"]
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in files}
    html, markdown = (file.read_text() for file in files[:2])
    assert "<b>|" not in html and "it has no checkpoint yet" in html
    assert not re.findall(r'src="(?!data:)', html)
    pictures = set(re.findall(r"!\[[^]]*\]\(([^)]*)\)", markdown))
    assert pictures and pictures <= {file.name for file in files}
    assert "| model.new |  |  |  |  | 3 |  |  |  |" in markdown
    assert "Heights compare between runs of one objective alone" in html


@pytest.mark.usefixtures("blank_canvases")
def test_equal_specs_are_reported(tmp_path):
    two = [run(name, spec={"name": name, "tracking.uri": name}) for name in "ab"]
    page = write_comparison(compared(*two), tmp_path)[1].read_text()
    assert "differ in nothing but names and places" in page


def test_quality_of_other_samplers_is_another_measurement():
    ways = [{"quality": Measurement.of({"sampler": steps, "seed": 0})} for steps in (4, 25)]
    curves = velocity() | {"quality/frechet": line([100], 1.0, 0.0)}
    both = compared(*(run(f"aaa{n}", measured=way, curves=curves) for n, way in enumerate(ways)))
    said = "quality/... is measured in several ways, which differ in: sampler."
    assert said in summary_text(both)
