"""`ditlab tune`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli.common import console, emit, json_option, print_line, quick_option, say, set_option
from ditlab.cli.completing import complete_resume
from ditlab.cli.hints import hint, relative, repeated_arguments, say_resume, short_path
from ditlab.cli.starting import start_option, start_overrides, weights_only_option

if TYPE_CHECKING:
    from ditlab.spec.sweep.spec import Sweep
    from ditlab.sweeps.finish import SweepResult

STATUS_TEXTS = {"finished": "finished", "interrupted": "interrupted", "stopped": "out of time"}


@click.command()
@click.argument("sweep", required=False, type=click.Path(path_type=Path))
@set_option
@quick_option
@click.option("--address", help="Ray cluster to train on (default: RAY_ADDRESS, else this machine alone).")
@click.option(
    "--resume",
    metavar="SWEEP_ID|auto",
    shell_complete=complete_resume,
    help="Continue a sweep: trials that have ended are not run again; `auto`: the newest unfinished one, if any.",
)
@start_option
@weights_only_option
@click.option("--dry-run", is_flag=True, help="Show the trials, their resources, parameters and time; start nothing.")
@json_option
def tune(
    sweep: Path | None,
    overrides: tuple[str, ...],
    quick: bool,
    address: str | None,
    resume: str | None,
    start_from: str | None,
    weights_only: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run the trials of a sweep, rank them, and write a report. Ctrl-C ends it after a checkpoint of each trial."""
    overrides = (*start_overrides(start_from, weights_only, resume, "fixed."), *overrides)
    source, overrides, changes = _shorten(sweep, overrides) if quick else (sweep, overrides, {})
    if dry_run:
        _show_plan(source, overrides, changes, address, resume, as_json)
        return 0
    from ditlab.cli.sweep_table import SweepTable

    with SweepTable() as table:
        from ditlab.interface import sweeps

        result = sweeps.tune(
            source, overrides, address=address, resume=resume,
            on_progress=table.update, say=table.say, warn=table.warn,
        )  # fmt: skip
    for line in summary_lines(result):
        print_line(line, as_json)
    emit({**result.to_dict(), **changes}, as_json)
    if result.status != "finished":
        say_resume("tune", "--resume", result.sweep_id)
    elif (best := result.report.parent / "best.yaml").exists():
        hint(as_json, "train", relative(best))
    return result.exit_code


def _shorten(sweep: Path | None, overrides: tuple[str, ...]) -> "tuple[Sweep, tuple[str, ...], dict[str, Any]]":
    """Load the sweep, made short for `--quick`: the sweep, no overrides, and the changes for `--json`.

    Prints the changes for people. Raises UserError where no file is named.
    """
    from ditlab.errors import UserError
    from ditlab.spec.sweep.quick import load_quick_sweep

    if sweep is None:
        raise UserError("--quick shortens a sweep's file, and none is given; name the sweep's YAML as well.")
    short = load_quick_sweep(sweep, overrides)
    for line in short.lines():
        say(line)
    return short.spec, (), short.to_dict()


def _show_plan(
    sweep: "Path | Sweep | None",
    overrides: tuple[str, ...],
    changes: dict[str, Any],
    address: str | None,
    resume: str | None,
    as_json: bool,
) -> None:
    """Print the trials, and how long they will take."""
    from ditlab.cli.progress_bars import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab.interface.sweeps import plan_sweep

        progress.stage("checking the trials, and timing a few steps")
        plan = plan_sweep(sweep, overrides, address=address, resume=resume, say=progress.say)
    from ditlab.cli.forecast_table import forecast_table

    for line in plan.notes:
        say(line)
    console(as_json).print(forecast_table(plan.prepared, plan.forecast))
    for line in plan.forecast.lines:
        print_line(line, as_json)
    emit({**plan.to_dict(), **changes}, as_json)
    hint(as_json, "tune", *repeated_arguments("dry_run", "as_json"))


def summary_lines(result: "SweepResult") -> list[str]:
    """Write lines with the counts of trials, the best trial, the report and the command that resumes the sweep."""
    from ditlab.reports.formatting import describe_value
    from ditlab.reports.sweep_records import ENDED, best

    summary = result.summary
    counts = {status: sum(trial.status == status for trial in summary.trials) for status in ENDED}
    ended = ", ".join(f"{number} {status}" for status, number in counts.items() if number) or "none ended"
    lines = [f"sweep {result.sweep_id} {STATUS_TEXTS[result.status]}: {ended} of {summary.total_trials} trials"]
    if found := best(summary):
        values = ", ".join(f"{path}={describe_value(value)}" for path, value in found.values.items())
        metrics = ", ".join(f"{name} {found.metrics[name]:.5g}" for name in summary.metrics)
        lines.append(f"  best: trial {found.number} (run {found.run_id}), {metrics}: {values}")
    lines.append(f"  report: {short_path(result.report)}")
    for trial in summary.trials:
        if trial.status == "failed":
            reason = trial.note.partition("\n")[0]
            lines.append(f"  trial {trial.number} (run {trial.run_id}) failed: {reason[:200]}")
    return lines
