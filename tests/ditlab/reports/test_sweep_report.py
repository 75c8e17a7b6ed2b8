"""Reports of sweeps are written for every kind of sweep and agree with its numbers."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ditlab.reports.page import ImageFile
from ditlab.reports.rendering.render import save_figure
from ditlab.reports.sweep_axes import importance, plot_axis, shown_values
from ditlab.reports.sweep_pictures import save_strip, strip_path, write_samples
from ditlab.reports.sweep_records import AxisInfo, MetricCurve, SweepSummary, Trial, best
from ditlab.reports.sweep_report import summary_text, write_sweep_report
from ditlab_models.figures import Figure, ImageGrid
from support.figures import check_whole

LR, KIND, SCALE = (
    AxisInfo("optimizer.lr", "log"),
    AxisInfo("time.kind", "category"),
    AxisInfo("time.scale", "linear"),
)
FIGURES = ["effects.png", "objective.png", "curves.png"]


def _trial(number, values, loss, status="finished", **more: Any):
    step = {"finished": 100, "waiting": 0}.get(status, 40)
    curve = MetricCurve([10, step], [2.0, loss])
    curves = {} if status == "waiting" else {"eval/loss": curve, "train/loss": curve}
    metrics = {} if status in {"waiting", "failed"} else {"eval/loss": loss, **more}
    note = "out_of_memory: the step needs 4 GiB more <here>" if status == "failed" else ""
    hours = {} if status == "waiting" else {"core": 0.5}
    facts = (status, step, 100, 12.0, metrics, curves, note, hours)
    return Trial(number, f"run-{number}", values, *facts)


def _sweep(
    num,
    loss,
    status=lambda _: "finished",
):
    """Random trials of three axes, the third of which is only used where the second is
    `shifted`.
    """
    generator = np.random.default_rng(0)
    trials = []
    for number in range(num):
        values = {LR.path: float(10 ** generator.uniform(-5, -2))}
        values[KIND.path] = ("uniform", "shifted")[generator.integers(2)]
        if values[KIND.path] == "shifted":
            values[SCALE.path] = float(generator.uniform(1, 4))
        trials.append(_trial(number, values, loss(values), status(number)))
    return _of(trials, [LR, KIND, SCALE])


def _of(trials, axes):
    facts = ("random", "asha", 90.0, len(trials), "base.yaml")
    return SweepSummary("sweep-1", "lr & more", ("eval/loss",), ("min",), axes, trials, *facts)


def _rates(*losses: float):
    """Trials of learning rates 1e-2, 1e-3 and on."""
    return [_trial(n, {LR.path: 10.0 ** -(n + 2)}, loss) for n, loss in enumerate(losses)]


def _bowl(values):
    return 0.1 + (math.log10(values[LR.path]) + 3) ** 2


def _wide():
    scales = ("linear", "log", "category")
    axes = [AxisInfo(f"a.section_{n}.quite_a_long_name_{n}", scales[n % 3]) for n in range(12)]
    trials = []
    for number in range(20):
        own = (1.0 + number % 5, 1.0 + number % 7, "long " * 12 + str(number % 4))
        values = {axis.path: own[n % 3] for n, axis in enumerate(axes)}
        trials.append(_trial(number, values, number))
    return _of(trials, axes)


def _mappings():
    axes = [
        AxisInfo("schedule", "category"),
        AxisInfo("$x_{1}$.<b>|", "linear"),
        AxisInfo("optimizer.betas", "category"),
    ]
    values = [{"kind": "cosine", "warmup": 50}, {"a": {"b": 1}}, None, [0.9, 0.99], True]
    paths = [axis.path for axis in axes]
    trials = []
    for n in range(9):
        own = (values[n % 5], "auto" if n else 3, 2)
        trials.append(_trial(n, dict(zip(paths, own, strict=True)), n / 7))
    return _of(trials, axes)


NAN = (math.nan, math.inf, -math.inf, 0.5)
STATUSES = ("finished", "stopped", "running", "interrupted", "failed", "waiting")
CASES = {
    "one": _sweep(1, _bowl),
    "none": _of([], [LR]),
    "all failed": _sweep(5, _bowl, lambda _: "failed"),
    "all waiting": _sweep(5, _bowl, lambda _: "waiting"),
    "equal": _sweep(12, lambda _: 0.5),
    "not finite": _of([_trial(n, {LR.path: 1e-4 * (n + 1)}, NAN[n % 4]) for n in range(9)], [LR]),
    "partial": replace(_sweep(18, _bowl, lambda number: STATUSES[number % 6]), total_trials=40),
    "many": _sweep(80, _bowl, lambda number: ("finished", "stopped")[number % 2]),
    "diverged": _sweep(20, lambda values: _bowl(values) * (1e12 if values[LR.path] > 3e-3 else 1)),
    "twelve axes": _wide(),
    "mappings": _mappings(),
    "no axes": _of([_trial(0, {}, 1.0), _trial(1, {}, -1.0)], []),
    "strange numbers": _of(
        [_trial(n, {LR.path: (0.0, -1.0, math.nan, 1e300)[n]}, -1e300) for n in range(4)], [LR]
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_sweep_has_a_report(name, tmp_path):
    summary = CASES[name]
    spec = "name: x\n" if best(summary) else ""
    (tmp_path / "effects.png").write_bytes(b"a picture of an earlier report, which is deleted")
    paths = write_sweep_report(summary, tmp_path, spec, "ditlab tune --resume sweep-1")
    assert [path.name for path in paths[:2]] == ["report.html", "report.md"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    html, markdown = paths[0].read_text(), paths[1].read_text()
    assert html.count("<img") == markdown.count("![") == len(paths) - 2
    for path in paths[2:]:
        with Image.open(path) as picture:
            assert picture.info["dpi"][0] == pytest.approx(120, abs=1)
            check_whole(np.asarray(picture))
    for trial in summary.trials:
        assert f"{trial.run_id}</td>" in html
    assert ("ditlab train best.yaml" in html) == bool(spec)
    assert ("core hours" in html) == (name not in {"none", "all waiting"})
    assert ("ditlab tune --resume" in html) == (name in {"partial", "all waiting"})
    assert ("the step needs 4 GiB more &lt;here&gt;" in html) == (name in {"partial", "all failed"})


def test_reports_are_deterministic(tmp_path):
    one, two = (
        write_sweep_report(_sweep(8, _bowl), tmp_path / name, "a: 1", "resume") for name in "ab"
    )
    assert [path.name for path in one[2:]] == FIGURES
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, two, strict=True))


def test_samples_of_all_trials_are_rows_with_the_same_noise_in_a_column(tmp_path):
    rows = []
    for number, steps in enumerate(((100, 200), (100,))):
        media = tmp_path / f"run-{number}"
        for step in steps:
            figure = Figure([ImageGrid(np.full((12, 8, 8), 0.25 + 0.5 * number))], columns=1)
            save_figure(figure, media / f"samples-{step:08d}.png")
            save_strip(figure, strip_path(media, step))
        rows.append((f"trial {number}", media))
    # the strip is read, not the grid
    (tmp_path / "run-1" / "samples-00000100.png").write_bytes(b"damaged")
    samples = write_samples(rows, tmp_path / "r" / "samples.png")
    assert isinstance(samples, ImageFile)
    shown = np.asarray(Image.open(samples.path).convert("L"))
    # eight tiles of 88 pixels, and some of the titles' letters
    near = pytest.approx(8 * 88, abs=16)
    assert [int((shown == level).any(axis=0).sum()) for level in (64, 191)] == [near, near]
    summary = _of(_rates(0.4, 0.2), [LR])
    files = write_sweep_report(summary, tmp_path / "r", "a: 1", "resume", samples)
    assert samples.path in files and "](samples.png)" in files[1].read_text()
    assert write_samples([("trial", tmp_path / "none")], tmp_path / "none.png") is None


def test_report_marks_the_pareto_front(tmp_path):
    points = [(1.0, 9.0), (2.0, 5.0), (3.0, 6.0), (4.0, 1.0)]
    trials = [_trial(n, {LR.path: 1e-3}, x, speed=y) for n, (x, y) in enumerate(points)]
    summary = replace(_of(trials, [LR]), metrics=("eval/loss", "speed"), modes=("min", "min"))
    assert summary_text(summary, {}).startswith(
        "3 trials are Pareto-optimal in eval/loss (lower is better), speed"
    )
    markdown = write_sweep_report(summary, tmp_path, "a: 1", "resume")[1].read_text()
    cells = [line.split(" | ") for line in markdown.splitlines() if "| run-" in line]
    front = {row[0]: row[6] for row in cells}
    assert [*front.items()] == [("| 0", "yes"), ("| 1", "yes"), ("| 3", "yes"), ("| 2", "")]


def test_summary_names_the_best_trial_and_its_distance():
    trials = _rates(0.4, 0.2, 0.25)
    assert (
        summary_text(_of(trials, [LR]), {})
        == "Trial 1 is the best of the 3 trials: eval/loss = 0.2 (lower is better), with optimizer.lr = 0.001. The next, trial 2, is at 0.25."
    )
    close = [*trials, _trial(3, {}, 0.2005)]
    assert "That is within 1 %" in summary_text(_of(close, [LR]), {})
    assert "All 5 trials failed" in summary_text(CASES["all failed"], {})
    assert "9 of 40 trials have ended" in summary_text(CASES["partial"], {})


def test_equal_trials_seldom_have_an_axis_that_is_clear():
    """Of 300 sweeps about 15 may, by any of their axes."""
    draw = np.random.default_rng(5)
    axes = [AxisInfo(name, "linear") for name in ("a", "b", "c")]
    num = 0
    for _ in range(300):
        values = draw.integers(2, size=(12, 3)).tolist()
        trials = []
        for number, each in enumerate(values):
            of_axes = dict(zip("abc", map(float, each), strict=True))
            trials.append(_trial(number, of_axes, float(draw.normal())))
        num += any(each.is_clear for each in importance(_of(trials, axes)).values())
    assert num <= 15 + 4 * 15**0.5


def test_importance_ranks_stopped_trials_behind_those_that_continued():
    """Values at different steps are not comparable; the order in which trials were stopped is."""
    sweep = _sweep(40, _bowl)
    trials = []
    for trial in sweep.trials:
        if _bowl(dict(trial.values)) > 0.5:
            trial = replace(trial, status="stopped", step=10, metrics={"eval/loss": 0.0})
        trials.append(trial)
    assert next(iter(importance(replace(sweep, trials=trials)))) == LR.path


def test_importance_is_given_of_no_few_trials_and_of_no_equal_ones():
    assert importance(_sweep(5, _bowl)) == importance(CASES["equal"]) == {}


def test_positions_lie_on_their_axes():
    each = plot_axis(LR, _rates(0.0, 0.0, 0.0))
    assert each.is_log and each.positions == pytest.approx({0: 1, 1: 0.5, 2: 0})
    for summary in CASES.values():
        columns = [plot_axis(axis, summary.trials) for axis in summary.axes]
        assert all(0 <= at <= 1 for each in columns for at in each.positions.values())


def test_diverged_trial_does_not_compress_the_others():
    shown = shown_values(_of(_rates(1.0, 1.1, 1.2, 1.3, 1.4, 1e9), []))
    assert shown[4] == 1.4 and 1.4 < shown[5] < 3


@pytest.mark.usefixtures("blank_canvases")
def test_axis_has_another_name_than_the_other_columns(tmp_path):
    taken = ("x.run", "x.status", "x.step", "x.time", "x.Pareto", "x.speed", "x.trial")
    paths = (*taken, "a.b.scale", "c.b.scale", "lr", "x.depth")
    values = dict.fromkeys(paths, 1.0)
    trials = [_trial(n, values, n, speed=float(-n)) for n in range(3)]
    summary = _of(trials, [AxisInfo(path, "linear") for path in paths])
    summary = replace(summary, metrics=("eval/loss", "speed"), modes=("min", "min"))
    markdown = write_sweep_report(summary, tmp_path, "a: 1", "resume")[1].read_text()
    (heading,) = [line for line in markdown.splitlines() if line.startswith("| trial |")]
    columns = [name.strip() for name in heading.strip("|").split("|")]
    assert columns[-len(paths) - 1 : -1] == [*paths[:-1], "depth"]
    assert len(set(columns)) == len(columns)
