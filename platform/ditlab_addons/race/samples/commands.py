"""`ditlab tune` of a sweep over samples, and the objects that it prints under `--json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from typing_extensions import TypedDict

from ditlab.cli import output
from ditlab.cli.progress import ProgressBars
from ditlab.cli.sweeps.commands import summary_lines
from ditlab.cli.sweeps.results import SweepOutput
from ditlab.cli.terminal import escape_line
from ditlab.reports.formatting import format_cell, terminal_table
from ditlab.spec.sweep_space import written

if TYPE_CHECKING:
    from ditlab_addons.race.samples.functions import SamplingPlan
    from ditlab_addons.race.samples.run import SamplingResult

MOST_ROWS = 24


class SamplesSweepOutput(SweepOutput):
    """`ditlab tune` of a sweep whose base is `{run: RUN}`: its trials are draws."""

    of: str
    """The run whose samples were drawn."""
    options: list[str]
    """Options of `ditlab sample` that draw as the best configuration does."""


class PlannedConfigurationOutput(TypedDict):
    """A configuration of a dry run."""

    number: int
    values: dict[str, Any]
    evaluations: float


class SamplesDryRunOutput(TypedDict):
    """`ditlab tune --dry-run` of a sweep whose base is `{run: RUN}`."""

    status: Literal["dry-run"]
    of: str
    points: list[PlannedConfigurationOutput]
    samples: int
    seeds: list[int]
    draws: int
    evaluations: float


RESULTS = {"tune": SamplesSweepOutput | SamplesDryRunOutput}
"""Type of the object of each command."""


def tune_samples(
    sweep: Path | None, overrides: tuple[str, ...], resume: str | None, dry_run: bool, as_json: bool
) -> int:
    """Run, or forecast, a sweep over the samples of a trained run; return the exit code."""
    with ProgressBars("loading PyTorch") as progress:
        from ditlab_addons.race.samples.functions import plan_samples, sweep_samples

        progress.stage("opening the run")
        call = plan_samples if dry_run else sweep_samples
        found: Any = call(sweep, overrides, resume=resume, warn=progress.say, on_progress=progress)
    if dry_run:
        return _print_plan(found, as_json)
    return _print_result(found, as_json)


def _print_plan(plan: SamplingPlan, as_json: bool) -> int:
    output.console(as_json).print(forecast_table(plan))
    forecast = plan.forecast
    sweep = plan.session.sweep
    output.print_line(
        f"{forecast.num_draws:,} draws of {sweep.samples:,} samples ({sweep.describe()}, "
        f"{sweep.seeds:,} seeds): {forecast.total:,.0f} network evaluations",
        as_json,
    )
    output.emit(plan.to_dict(), as_json)
    output.hint(as_json, "tune", *output.repeated_arguments("dry_run", "as_json"))
    return 0


def _print_result(result: SamplingResult, as_json: bool) -> int:
    from ditlab_addons.race.samples.report import cost_table

    table = cost_table(result.summary)
    rows = [list(map(format_cell, row)) for row in table.rows[:MOST_ROWS]]
    output.console(as_json).print(terminal_table(dict.fromkeys(table.columns, "number"), rows))
    for line in summary_lines(result):
        output.print_line(line, as_json)
    output.emit(result.to_dict(), as_json)
    if result.status != "finished":
        output.hint(False, "tune", "--resume", result.sweep_id)
    elif result.options:
        output.hint(as_json, "sample", result.run_id, *result.options)
    return result.exit_code


def forecast_table(plan: SamplingPlan) -> Table:
    """A row a configuration: its values, and the network evaluations of a sample."""
    configurations = plan.session.configurations
    rows = []
    for configuration in configurations[:MOST_ROWS]:
        evaluations = f"{plan.forecast.evaluations[configuration.number]:g}"
        rows.append(
            (str(configuration.number), escape_line(written(configuration.values)), evaluations)
        )
    more = None
    if len(configurations) > MOST_ROWS:
        more = f"and {len(configurations) - MOST_ROWS:,} more configurations"
    return terminal_table(
        {"configuration": "number", "values": "text", "evaluations a sample": "number"},
        rows,
        caption=more,
    )
