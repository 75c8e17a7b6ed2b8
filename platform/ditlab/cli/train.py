"""Commands that begin runs: `ditlab train` here, `ditlab submit` as a job of a Ray cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli.options import (
    command_line,
    complete_resume,
    emit,
    hint,
    hint_text,
    json_option,
    print_line,
    print_yaml,
    quick_option,
    relative,
    repeated_arguments,
    say,
    say_resume,
    set_option,
    short_path,
    spec_argument,
    start_option,
    start_overrides,
    time_lines,
    train_address_option,
    weights_only_option,
)
from ditlab.errors import UserError
from ditlab.home import Home, resolve_user_path

if TYPE_CHECKING:
    from ditlab.api.training import TrainingResult
    from ditlab.spec.experiment import Experiment


@click.command()
@spec_argument
@set_option
@quick_option
@train_address_option
@click.option("--local", is_flag=True, help="One process, without Ray: for debuggers and machines without Ray.")
@click.option(
    "--resume", metavar="RUN|auto", shell_complete=complete_resume,
    help="Continue a run; `auto`: the newest unfinished one of this spec, if any.",
)  # fmt: skip
@start_option
@weights_only_option
@click.option(
    "--figures/--no-figures", default=True, envvar="DITLAB_FIGURES",
    help="Draw the family's figures at the end (default: yes; for large networks only on a GPU).",
)  # fmt: skip
@click.option(
    "--metrics-port", type=click.IntRange(1, 65535), metavar="PORT",
    help="Serve the run's metrics to scrapers such as Prometheus: http://127.0.0.1:PORT/metrics.",
)  # fmt: skip
@click.option(
    "--prove", is_flag=True,
    help="First compare the engine with a reference (`ditlab prove`); train only where nothing is off.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show the resolved spec, parameters, steps and devices; start nothing.")
@json_option
def train(
    spec: Path, overrides: tuple[str, ...], quick: bool, address: str | None, local: bool, resume: str | None,
    start_from: str | None, weights_only: bool, figures: bool, metrics_port: int | None, prove: bool,
    dry_run: bool, as_json: bool,
) -> int:  # fmt: skip
    """Train an experiment. Ctrl-C ends it after a final checkpoint, from which --resume continues."""
    overrides = (*start_overrides(start_from, weights_only, resume), *overrides)
    experiment, changes = _load(spec, overrides, quick)  # before torch and Ray are imported: a mistake shows at once
    if dry_run:
        if prove:
            raise click.UsageError("--dry-run starts nothing, and --prove trains a few steps; leave one out.")
        _show_plan(experiment, changes, address, local, resume, as_json)
        return 0
    from ditlab.cli.progress import ProgressLine

    with ProgressLine("loading PyTorch") as line:
        from ditlab.api import training

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
            from ditlab.api.analysis import draw_final_figures

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


def _repeated(result: TrainingResult, experiment: Experiment) -> list[str]:
    """Arguments that an interrupted run goes on with: a fork's own spec, which names its parent by id and step."""
    if experiment.start is None:
        return repeated_arguments("resume", "as_json")
    left_out = ("spec", "overrides", "quick", "resume", "start_from", "weights_only", "as_json")
    return [str(relative(result.folder / "spec.yaml")), *repeated_arguments(*left_out)]


def _load(spec: Path, overrides: tuple[str, ...], quick: bool) -> tuple[Experiment, dict[str, Any]]:
    """Load the experiment, made short for `--quick`, and the changes for `--json`; prints them for people."""
    from ditlab.spec.files import load_experiment

    if not quick:
        return load_experiment(spec, overrides), {}
    from ditlab.spec.quick import load_quick_experiment

    short = load_quick_experiment(spec, overrides)
    for line in short.lines():
        say(line)
    return short.spec, short.to_dict()


def _show_plan(
    experiment: Experiment, changes: dict[str, Any], address: str | None, local: bool, resume: str | None, as_json: bool
) -> None:
    """Print what would be trained."""
    from ditlab.cli.progress import ProgressBars

    with ProgressBars("loading PyTorch"):
        from ditlab.api.training import plan_training

        plan = plan_training(experiment, local=local, address=address, resume=resume)
    for line in plan.notes:
        say(line)
    print_yaml(experiment.to_dict(), as_json)
    numbers = {"spec_hash": plan.spec_hash, "steps": plan.total_steps, "total": plan.num_parameters}
    emit({"status": "dry-run", **numbers, **changes}, as_json)
    hint(as_json, "train", *repeated_arguments("dry_run", "as_json"))


def _summary(result: TrainingResult) -> list[str]:
    """Last lines for people: how the run ended, and where to look."""
    run = result.run_id
    if result.status == "interrupted":
        saved = result.checkpoint or "-"  # a URI, or a path as a shell takes it
        place = saved if "://" in saved else short_path(Path(saved))
        return [f"run {run} interrupted at step {result.step} of {result.total_steps} · checkpoint: {place}"]
    pictures = sorted((result.folder / "media").glob("samples-*.png"))
    page = result.folder / "report.html"
    places = [f"page: {short_path(page)}"] if page.is_file() else []
    places.append(f"MLflow: {_tracking_place(result.tracking_uri)}")
    loss = result.metrics.get("train/loss", float("nan"))
    samples = [f"  samples: {short_path(pictures[-1])}"] if pictures else []
    return [f"run {run} finished: {result.step} steps, loss {loss:.4f}", *samples, f"  {' · '.join(places)}"]


def _times(result: TrainingResult) -> list[str]:
    """Table of where the time went; nothing where the run has logged no times."""
    try:
        summary = result.run.time()
    except UserError:  # a journal that cannot be read costs the table alone
        return []
    return time_lines(summary) if summary else []


def _tracking_place(uri: str) -> str:
    """Address of the tracked run; for the database under DITLAB_HOME its path, with the command that opens it."""
    database = Home.named_by_environment().mlflow_database
    if uri != f"sqlite:///{database}":
        return uri
    return f"{short_path(database)} ({command_line('ui')})"


@click.command()
@spec_argument
@set_option
@click.option(
    "--address", metavar="URL",
    help="Address of the job server (default: RAY_API_SERVER_ADDRESS, else that of the tunnel).",
)  # fmt: skip
@click.option(
    "--working-dir", type=click.Path(path_type=Path), default=".", show_default=True,
    help="Folder that is sent to the cluster.",
)  # fmt: skip
@click.option(
    "--resume", metavar="RUN|auto", help="Continue a run or sweep; `auto`: the newest unfinished of this spec."
)
@start_option
@weights_only_option
@click.option("--no-wait", is_flag=True, help="Return once the job is submitted.")
@json_option
def submit(
    spec: Path, overrides: tuple[str, ...], address: str | None, working_dir: Path, resume: str | None,
    start_from: str | None, weights_only: bool, no_wait: bool, as_json: bool,
) -> int:  # fmt: skip
    """Run an experiment or a sweep as a job of a Ray cluster, and follow its log.

    The working directory is sent along, without the files that .gitignore and .rayignore name. Ctrl-C leaves the job
    running; `ray job stop` ends it after a final checkpoint.
    """
    from ditlab.cli.progress import ProgressBars
    from ditlab.cluster.jobs import DEFAULT_ADDRESS, JobServer, package_files
    from ditlab.spec.start import parse_start

    if start_from:
        parse_start(start_from)  # the run itself is known to the cluster's home alone
    forked = [*(["--from", start_from] if start_from else []), *(["--weights-only"] if weights_only else [])]
    root, name, command = _command(spec, overrides, working_dir, resume, forked, as_json)
    package_files(root).check()
    with JobServer(address or os.environ.get("RAY_API_SERVER_ADDRESS") or DEFAULT_ADDRESS) as jobs:
        with ProgressBars(f"sending {root} to {jobs.address}"):
            job = jobs.submit(name, command, root)
        say(f"job {job} at {jobs.address} · stop it: ray job stop {job} --address {jobs.address}")
        if no_wait:
            emit({"job": job, "status": "SUBMITTED"}, as_json)
            hint_text(as_json, f"ray job logs --follow {job} --address {jobs.address}")
            return 0
        output = _JobOutput(as_json)
        try:
            ended = jobs.follow(job, output.add)
        except KeyboardInterrupt:
            say(f"\nno longer following job {job}, which goes on · its log: ray job logs --follow {job}")
            raise
        if ended.exit_code and ended.status == "FAILED" and not output.has_text:
            say(f"job {job} failed before it could start: {ended.message}")
        say(f"job {job} {ended.status.lower()}")
    emit({"job": job, "job_status": ended.status, **output.result()}, as_json)
    return ended.exit_code


def _command(
    spec: Path, overrides: tuple[str, ...], working_dir: Path, resume: str | None, forked: list[str], as_json: bool
) -> tuple[Path, str, list[str]]:
    """Working directory, run name and command of the job.

    Raises UserError for a spec that is wrong or lies elsewhere: better here than after the upload.
    """
    from ditlab.spec.files import is_sweep, load_experiment, spec_files
    from ditlab.spec.sweep import load_sweep

    root = resolve_user_path(working_dir)
    if not root.is_dir():
        raise UserError(f"--working-dir {working_dir} is no folder; name the one that holds {spec}.")
    sweep = is_sweep(spec)
    loaded: Any = load_sweep(spec, overrides) if sweep else load_experiment(spec, overrides)
    for file in spec_files(spec):
        if not file.is_relative_to(root):
            raise UserError(
                f"{file} does not lie below --working-dir {root}, the only folder that is sent along; name a folder "
                "that holds it."
            )
    command = ["python", "-m", "ditlab", "tune" if sweep else "train", str(resolve_user_path(spec).relative_to(root))]
    for override in overrides:
        command += ["--set", override]
    command += [*(["--resume", resume] if resume else []), *forked]
    return root, loaded.name, [*command, *(["--json"] if as_json else [])]


class _JobOutput:
    """Output of the job: lines are printed, the last JSON line is kept for the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json, self._rest, self._last = as_json, "", ""
        self.has_text = False

    def add(self, text: str) -> None:
        """Print the lines that are complete."""
        self.has_text = self.has_text or bool(text.strip())
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if self._as_json and line.startswith("{"):
                self._last = line
            else:
                print_line(line, self._as_json)

    def result(self) -> dict[str, Any]:
        """The command's JSON result, empty without one."""
        if self._rest:
            self.add("\n")
        try:
            found = json.loads(self._last) if self._last else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
