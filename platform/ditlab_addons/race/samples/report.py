"""Report of a sweep over the samples of one run: that of any sweep, with a picture and a table of
quality over cost.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ditlab.quality.text import ENTROPY_FALL, entropy_fell
from ditlab.reports.formatting import Cells, listed
from ditlab.reports.page import Code, ImageFile, Paragraphs, Part, Section, Table
from ditlab.reports.rendering.render import save_figure
from ditlab.reports.sweep_differences import mean_interval
from ditlab.reports.sweep_figures import objective_figure
from ditlab.reports.sweep_pictures import CAPTION
from ditlab.reports.sweep_records import SweepSummary, Trial, best, objectives, rank
from ditlab.reports.sweep_report import write_sweep_report
from ditlab_models.figures import Figure
from ditlab_models.intervals import DF, FEWEST_DF, doubtful_intervals, interval_ends

EVALUATIONS = "cost/evaluations"
SECONDS = "cost/seconds"
"""Network evaluations a sample, in which a guided one counts twice, and seconds a sample."""
COSTS = (EVALUATIONS, SECONDS)
_CAPTION = (
    "A mark is a configuration. No other beats those in a ring in both quality and cost, by their "
    "means. Guided evaluations count twice."
)


def with_cost(summary: SweepSummary) -> SweepSummary:
    """Return a sweep ranked by two metrics: quality, and network evaluations a sample."""
    metrics = (summary.metrics[0], EVALUATIONS)
    modes = (summary.modes[0], "min")
    return replace(summary, metrics=metrics, modes=modes)  # type: ignore[arg-type]


def cost_table(summary: SweepSummary) -> Table:
    """All metrics of each configuration, means with half the 95 % interval over seeds: the frontier
    first.
    """
    ranked = [each for each in rank(with_cost(summary)) if objectives(with_cost(summary), each)]
    names = list(dict.fromkeys(name for each in ranked for name in each.metrics))
    names = [name for name in names if not name.endswith(DF)]
    rows: list[Cells] = [[each.number, *(_text(each, name) for name in names)] for each in ranked]
    return Table(
        [summary.unit, *names],
        rows,
        "Means over seeds of the noise, each with half its own 95 % interval.",
    )


def _text(trial: Trial, name: str) -> str | None:
    if name in trial.metrics:
        return mean_interval(trial, name).text()
    return None


def write_sampling_report(
    summary: SweepSummary,
    folder: Path,
    grid: Figure | None,
    run_id: str,
    options: Mapping[int, Sequence[str]],
) -> list[Path]:
    """Write the page and its pictures into `folder`; return the files. Raises OSError where the
    disk refuses.

    `grid` shows samples, a row a configuration; `options` of `ditlab sample` draw from run
    `run_id`, by configuration.
    """
    parts: list[Part] = []
    figure = objective_figure(with_cost(summary))
    if figure is not None:
        parts += [
            ImageFile(save_figure(figure, folder / "frontier.png"), _CAPTION),
            cost_table(summary),
        ]
    first = best(summary)
    if first is not None:
        command = shlex.join(["ditlab", "sample", run_id, *options[first.number]])
        parts += [Paragraphs("Samples of the best are drawn with:"), Code(command, "shell")]
    fell = [each.number for each in summary.trials if entropy_fell(each.metrics)]
    if fell:
        text = (
            f"Entropy fell more than {ENTROPY_FALL:.0%} below held-out text's with "
            f"{listed(fell, 8)}: text there repeats itself, by which its perplexity is too "
            "good; compare perplexities at equal entropy."
        )
        parts.append(Paragraphs(text))
    doubtful = [
        each.number for each in summary.trials if doubtful_intervals(interval_ends(each.metrics))
    ]
    if doubtful:
        text = (
            f"A few samples carry the variance of figures of {listed(doubtful, 8)} (fewer than "
            f"{FEWEST_DF} degrees of freedom), so their intervals over samples may be too narrow: "
            "draw more samples."
        )
        parts.append(Paragraphs(text))
    samples = None
    if grid is not None:
        samples = ImageFile(save_figure(grid, folder / "samples.png"), CAPTION)
    resume = f"ditlab tune --resume {summary.sweep_id}"
    return write_sweep_report(
        summary, folder, "", resume, samples, [Section("Quality over cost", parts)]
    )
