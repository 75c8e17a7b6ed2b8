"""`ditlab train`."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ditlab.cli.common import emit, json_option, print_line, say, set_option, spec_argument

if TYPE_CHECKING:
    from ditlab.interface.training import TrainingResult
    from ditlab.spec.experiment import Experiment


@click.command()
@spec_argument
@set_option
@click.option("--address", help="Ray cluster to train on (default: RAY_ADDRESS, else this machine alone).")
@click.option("--local", is_flag=True, help="One process, without Ray: for debuggers and machines without Ray.")
@click.option(
    "--resume", metavar="RUN|auto", help="Continue a run; `auto`: the newest unfinished one of this spec, if any."
)
@click.option("--dry-run", is_flag=True, help="Show the resolved spec, parameters, steps and devices; start nothing.")
@json_option
def train(
    spec: Path,
    overrides: tuple[str, ...],
    address: str | None,
    local: bool,
    resume: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Train an experiment. Ctrl-C ends it after a final checkpoint, from which --resume continues."""
    from ditlab.spec.loading import load_experiment

    experiment = load_experiment(spec, overrides)  # before torch and Ray are imported: a mistake shows at once
    if dry_run:
        _show_plan(experiment, address, local, resume, as_json)
        return 0
    from ditlab.cli.progress_line import ProgressLine

    with ProgressLine("loading PyTorch") as line:
        from ditlab.interface import training

        line.stage("starting workers")
        result = training.train(
            experiment, local=local, address=address, resume=resume,
            on_progress=line.update, say=line.say, warn=line.warn,
        )  # fmt: skip
    for text in _summary(result):
        print_line(text, as_json)
    emit(result.to_dict(), as_json)
    return 130 if result.status == "interrupted" else 0


def _show_plan(experiment: "Experiment", address: str | None, local: bool, resume: str | None, as_json: bool) -> None:
    """Print what would be trained."""
    from ditlab.interface.training import plan_training
    from ditlab.spec.reading.yaml_text import dump_yaml

    plan = plan_training(experiment, local=local, address=address, resume=resume)
    for line in plan.notes:
        say(line)
    click.echo(dump_yaml(experiment.to_dict()), nl=False, err=as_json)
    emit(
        {"status": "dry-run", "spec_hash": plan.spec_hash, "steps": plan.total_steps, "total": plan.num_parameters},
        as_json,
    )


def _summary(result: "TrainingResult") -> list[str]:
    """Last lines for people: how the run ended, and where to look."""
    run = result.run_id
    if result.status == "interrupted":
        return [
            f"run {run} interrupted at step {result.step} of {result.total_steps} · checkpoint: "
            f"{_place(result.checkpoint)} · go on: ditlab train SPEC --resume {run}"
        ]
    pictures = sorted((result.folder / "media").glob("samples-*.png"))
    places = [f"samples: {_short(pictures[-1])}"] if pictures else []
    places.append(f"MLflow: {_tracking_place(result.tracking_uri)}")
    loss = result.metrics.get("train/loss", float("nan"))
    return [f"run {run} finished: {result.step} steps, loss {loss:.4f}", f"  {' · '.join(places)}"]


def _tracking_place(uri: str) -> str:
    """Address of the tracked run; for the database under DITLAB_HOME its path, with the command that opens it."""
    from ditlab.home import Home

    database = Home.from_environment().mlflow_database
    if uri != f"sqlite:///{database}":
        return uri
    command = "ditlab" if shutil.which("ditlab") else _short(Path(sys.executable).with_name("ditlab"))
    return f"{_short(database)} ({command} ui)"


def _place(checkpoint: str | None) -> str:
    """Place of a checkpoint: a URI, or a path as a shell takes it."""
    return checkpoint if checkpoint and "://" in checkpoint else _short(Path(checkpoint or "-"))


def _short(path: Path) -> str:
    """Path quoted for a shell, relative to the working directory where it lies below it."""
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return shlex.quote(str(path))
