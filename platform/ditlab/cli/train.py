"""`ditlab train`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli.common import emit, json_option, print_line, print_yaml, quick_option, say, set_option, spec_argument
from ditlab.cli.completing import complete_resume
from ditlab.cli.hints import command_line, hint, relative, repeated_arguments, say_resume, short_path
from ditlab.cli.starting import start_option, start_overrides, weights_only_option

if TYPE_CHECKING:
    from ditlab.interface.training import TrainingResult
    from ditlab.spec.experiment import Experiment


@click.command()
@spec_argument
@set_option
@quick_option
@click.option("--address", help="Ray cluster to train on (default: RAY_ADDRESS, else this machine alone).")
@click.option("--local", is_flag=True, help="One process, without Ray: for debuggers and machines without Ray.")
@click.option(
    "--resume",
    metavar="RUN|auto",
    shell_complete=complete_resume,
    help="Continue a run; `auto`: the newest unfinished one of this spec, if any.",
)
@start_option
@weights_only_option
@click.option(
    "--figures/--no-figures",
    default=True,
    envvar="DITLAB_FIGURES",
    help="Draw the family's figures at the end (default: yes; of large networks, on a GPU alone).",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve the run's metrics to scrapers such as Prometheus: http://127.0.0.1:PORT/metrics.",
)
@click.option(
    "--prove",
    is_flag=True,
    help="First compare the engine with plain readings (`ditlab prove`); train only if all holds.",
)
@click.option("--dry-run", is_flag=True, help="Show the resolved spec, parameters, steps and devices; start nothing.")
@json_option
def train(
    spec: Path,
    overrides: tuple[str, ...],
    quick: bool,
    address: str | None,
    local: bool,
    resume: str | None,
    start_from: str | None,
    weights_only: bool,
    figures: bool,
    metrics_port: int | None,
    prove: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Train an experiment. Ctrl-C ends it after a final checkpoint, from which --resume continues."""
    overrides = (*start_overrides(start_from, weights_only, resume), *overrides)
    experiment, changes = _load(spec, overrides, quick)  # before torch and Ray are imported: a mistake shows at once
    if dry_run:
        if prove:
            raise click.UsageError("--dry-run starts nothing, and --prove trains a few steps; leave one out.")
        _show_plan(experiment, changes, address, local, resume, as_json)
        return 0
    from ditlab.cli.progress_line import ProgressLine

    with ProgressLine("loading PyTorch") as line:
        from ditlab.interface import training

        proving = "proving the engine, then " if prove else ""
        line.stage(f"{proving}preparing the run{'' if local else ' and its workers'}")
        try:
            result = training.train(
                experiment, local=local, address=address, resume=resume, metrics_port=metrics_port, prove=prove,
                on_progress=line.update, say=line.say, warn=line.warn,
            )  # fmt: skip
        except training.ProofFailed as error:
            from ditlab.checking.prove.findings import proof_lines

            for text in [*proof_lines(error.proof), str(error)]:
                line.say(text)
            emit({"status": "not proved", "proof": error.proof.to_dict()}, as_json)
            return error.exit_code
        if figures and result.status == "finished":
            from ditlab.interface.final_figures import draw_final_figures

            line.stage("drawing the figures")
            draw_final_figures(result.run, line.warn)
    for text in (*_summary(result), *_times(result)):
        print_line(text, as_json)
    emit({**result.to_dict(), **changes}, as_json)
    if result.status == "interrupted":
        say_resume("train", *_repeated(result, experiment), "--resume", result.run_id)
    else:
        hint(as_json, "sample", result.run_id)
    return 130 if result.status == "interrupted" else 0


def _repeated(result: "TrainingResult", experiment: "Experiment") -> list[str]:
    """Arguments that an interrupted run goes on with: a fork's own spec, which names its parent by id and step."""
    if experiment.start is None:
        return repeated_arguments("resume", "as_json")
    left_out = ("spec", "overrides", "quick", "resume", "start_from", "weights_only", "as_json")
    return [str(relative(result.folder / "spec.yaml")), *repeated_arguments(*left_out)]


def _load(spec: Path, overrides: tuple[str, ...], quick: bool) -> "tuple[Experiment, dict[str, Any]]":
    """Load the experiment, made short for `--quick`, and the changes for `--json`; prints them for people."""
    from ditlab.spec.loading import load_experiment

    if not quick:
        return load_experiment(spec, overrides), {}
    from ditlab.spec.quick import load_quick_experiment

    short = load_quick_experiment(spec, overrides)
    for line in short.lines():
        say(line)
    return short.spec, short.to_dict()


def _show_plan(
    experiment: "Experiment",
    changes: dict[str, Any],
    address: str | None,
    local: bool,
    resume: str | None,
    as_json: bool,
) -> None:
    """Print what would be trained."""
    from ditlab.cli.progress_bars import ProgressBars

    with ProgressBars("loading PyTorch"):
        from ditlab.interface.training import plan_training

        plan = plan_training(experiment, local=local, address=address, resume=resume)
    for line in plan.notes:
        say(line)
    print_yaml(experiment.to_dict(), as_json)
    numbers = {"spec_hash": plan.spec_hash, "steps": plan.total_steps, "total": plan.num_parameters}
    emit({"status": "dry-run", **numbers, **changes}, as_json)
    hint(as_json, "train", *repeated_arguments("dry_run", "as_json"))


def _summary(result: "TrainingResult") -> list[str]:
    """Last lines for people: how the run ended, and where to look."""
    run = result.run_id
    if result.status == "interrupted":
        return [
            f"run {run} interrupted at step {result.step} of {result.total_steps} · checkpoint: "
            f"{_place(result.checkpoint)}"
        ]
    pictures = sorted((result.folder / "media").glob("samples-*.png"))
    page = result.folder / "report.html"
    places = [f"page: {short_path(page)}"] if page.is_file() else []
    places.append(f"MLflow: {_tracking_place(result.tracking_uri)}")
    loss = result.metrics.get("train/loss", float("nan"))
    samples = [f"  samples: {short_path(pictures[-1])}"] if pictures else []
    return [f"run {run} finished: {result.step} steps, loss {loss:.4f}", *samples, f"  {' · '.join(places)}"]


def _times(result: "TrainingResult") -> list[str]:
    """Table of where the time went; nothing where the run has logged no times."""
    from ditlab.cli.time_table import time_lines
    from ditlab.errors import UserError

    try:
        summary = result.run.time()
    except UserError:  # a journal that cannot be read costs the table alone
        return []
    return time_lines(summary) if summary else []


def _tracking_place(uri: str) -> str:
    """Address of the tracked run; for the database under DITLAB_HOME its path, with the command that opens it."""
    from ditlab.home import Home

    database = Home.from_environment().mlflow_database
    if uri != f"sqlite:///{database}":
        return uri
    return f"{short_path(database)} ({command_line('ui')})"


def _place(checkpoint: str | None) -> str:
    """Place of a checkpoint: a URI, or a path as a shell takes it."""
    return checkpoint if checkpoint and "://" in checkpoint else short_path(Path(checkpoint or "-"))
