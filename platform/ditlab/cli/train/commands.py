"""Commands that begin runs: `ditlab train` here, `ditlab submit` as a job of a Ray cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli import options, output
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder, resolve_user_path
from ditlab.parts import find_command, load_part, start_checks
from ditlab.tracking.journal import RECENT_TEXT, TRAIN_LOSS

if TYPE_CHECKING:
    from ditlab.api.training import GroupResult, TrainingResult
    from ditlab.cli.progress import ProgressLine
    from ditlab.spec.experiment import Experiment


@click.command()
@options.spec
@options.overrides
@options.quick
@options.train_address
@click.option(
    "--local",
    is_flag=True,
    help="One process, without Ray: for debuggers and machines without Ray.",
)
@click.option(
    "--resume",
    metavar="RUN|auto",
    help="Continue a run; `auto`: the newest unfinished one of this spec, if any.",
)
@options.seeds
@options.start
@options.figures
@options.start_checks
@options.grace
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show the resolved spec, parameters, steps and devices; start nothing.",
)
@options.as_json
def train(
    spec: Path,
    overrides: tuple[str, ...],
    quick: bool,
    address: str | None,
    local: bool,
    resume: str | None,
    seeds: int | None,
    start_from: str | None,
    weights_only: bool,
    figures: bool | None,
    grace: float,
    dry_run: bool,
    as_json: bool,
    **checks: bool,
) -> int:
    """Train an experiment. Ctrl-C ends it after a final checkpoint, from which --resume
    continues.
    """
    from ditlab.cli.progress import ProgressLine
    from ditlab.spec.files import STANDARD_INPUT, load_experiment
    from ditlab.spec.quick import load_quick_experiment

    Home.from_environment()  # one that is refused shows before PyTorch is loaded
    overrides = (*options.start_overrides(start_from, weights_only, resume), *overrides)
    changes: dict[str, Any] = {}
    if quick:  # torch is not imported yet: a mistake shows at once
        experiment, changes = output.say_changes(load_quick_experiment(spec, overrides))
    else:
        experiment = load_experiment(spec, overrides)
    if dry_run:
        _refuse_checks(checks)
        if seeds:
            resume = None  # that of a group
        plan_settings = {"local": local, "address": address, "resume": resume}
        _show_plan(experiment, plan_settings, changes, seeds, as_json)
        return 0
    if local:
        _sleep_at_barriers(experiment.resources.cpus_per_worker, resume)
    with ProgressLine("loading PyTorch") as line:
        from ditlab.api import training
        from ditlab.runs.launch import StartRefused

        settings: dict[str, Any] = {
            "local": local,
            "address": address,
            "resume": resume,
            "grace": grace,
            "on_progress": line.update,
            "on_stage": line.stage,
            "say": line.say,
            "warn": line.warn,
            **checks,
        }
        group: GroupResult | None = None
        results: list[TrainingResult] = []
        try:
            if seeds:
                group = training.train_seeds(experiment, seeds=seeds, **settings)
                results = group.results
            else:
                results = [training.train(experiment, **settings)]
        except StartRefused as error:
            for text in [*error.lines, str(error)]:
                line.say(text)
            output.emit(error.output, as_json)
            return error.exit_code
        left = _draw_figures(results, figures, quick, line)
    for text in _group_lines(group) if group else _summary(results[0]):
        output.print_line(text, as_json)
    ended: TrainingResult | GroupResult = group or results[0]
    result = ended.to_dict()
    if left:
        result["figures_left"] = left
    output.emit({**result, **changes}, as_json)
    if ended.status == "interrupted":
        _hint_resume(ended, is_lasting=spec != STANDARD_INPUT and not experiment.start)
        return 130
    if group:
        output.hint(as_json, "runs")
    else:
        output.hint(as_json, "sample", ended.run_id)
    return 0


def _refuse_checks(asked: Mapping[str, bool]) -> None:
    """Raise UsageError for a check before a run begins, which a dry run does not make."""
    for check in start_checks().values():
        if asked[check.name]:
            text = f"--dry-run starts nothing, and --{check.name} {check.does}; leave one out."
            raise click.UsageError(text)


def _show_plan(
    experiment: Experiment,
    settings: Mapping[str, Any],
    changes: Mapping[str, Any],
    seeds: int | None,
    as_json: bool,
) -> None:
    """Print the resolved spec, parameters and steps of a run that is not started."""
    from ditlab.cli.progress import ProgressBars

    output.print_yaml(experiment.to_dict(), as_json)  # what is known before PyTorch is loaded
    with ProgressBars("loading PyTorch"):
        from ditlab.api.training import plan_training

        plan = plan_training(experiment, **settings)
    for text in plan.notes:
        output.say(text)
    if seeds:
        last = experiment.seed + seeds - 1
        output.say(f"{seeds} runs, one after the other: seeds {experiment.seed} to {last}")
    result = {
        "status": "dry-run",
        "spec_hash": plan.spec_hash,
        "steps": plan.total_steps,
        "total": plan.num_parameters,
        "not_trained": dict(plan.not_trained),
        **changes,
    }
    output.emit(result, as_json)
    output.hint(as_json, "train", *output.repeated_arguments("dry_run", "as_json"))


def _hint_resume(ended: TrainingResult | GroupResult, is_lasting: bool) -> None:
    """Print the command that goes on, also under `--json`: logs keep it.

    By the run's own spec where the one that was named is not `is_lasting`: a fork's own spec names
    its parent by id and step, and what was piped in is no longer there.
    """
    arguments = output.repeated_arguments("resume", "as_json")
    if not is_lasting:
        own = output.relative(ended.folder / "spec.yaml")
        dropped = ("spec", "overrides", "quick", "resume", "start_from", "weights_only", "as_json")
        arguments = [str(own), *output.repeated_arguments(*dropped)]
    output.hint(False, "train", *arguments, "--resume", ended.run_id)


def _draw_figures(
    results: list[TrainingResult], wanted: bool | None, quick: bool, line: ProgressLine
) -> list[str]:
    """Draw the figures of those runs that are finished, and return the kinds that were left to
    `ditlab figures`.

    A signal leaves the rest, of all the runs.
    """
    left: list[str] = []
    if wanted is False:
        return left
    finished = [result for result in results if result.status == "finished"]
    waiting = [result.run_id for result in finished]
    try:
        from ditlab.api.final_figures import SHARE, draw_final_figures
        from ditlab.runs.cores import computing_beside_others

        share: float | None = SHARE
        if wanted:
            share = None
        elif quick:
            share = 0.0
        with computing_beside_others(line.say):
            for result in finished:
                drawn = draw_final_figures(result.run, line.warn, line.stage, share)
                waiting.remove(result.run_id)
                left += [kind for kind in drawn.left if kind not in left]
                if drawn.left:
                    count = f"{len(drawn.left)} of {len(drawn.kinds)} figures"
                    command = output.command_line("figures", result.run_id)
                    line.say(f"{count} were left: `{command}` draws them.")
    except KeyboardInterrupt:
        for run_id in waiting:
            command = output.command_line("figures", run_id)
            line.warn(
                f"run {run_id} is finished; a signal ended the drawing of its figures: "
                f"`{command}` draws them."
            )
    return left


def _group_lines(group: GroupResult) -> list[str]:
    """Lines on a group of seeds: its runs, mean and interval of its training loss and held-out
    metrics.
    """
    lines = [_summary(result)[0] for result in group.results]
    lines.append(
        f"group {group.run_id} {group.status}: {len(group.seeds)} seeds, {group.seeds[0]} to "
        f"{group.seeds[-1]}"
    )
    for name, interval in group.intervals.items():
        if name.startswith(("train/loss", "eval/", "quality/")):
            lines.append(f"  {name}: {interval.text()} (mean of {interval.num} seeds, 95 %)")
    return lines


def _sleep_at_barriers(threads: int | None, resume: str | None) -> None:
    """Set how this process's threads wait where their number is given: PyTorch, loaded next, reads
    it once.
    """
    from ditlab.runs.cores import recorded_threads, sleep_at_barriers
    from ditlab.tracking.records import find_training_run

    if resume and resume != "auto" and not threads:
        threads = recorded_threads(find_training_run(Home.from_environment(), resume).folder)
    sleep_at_barriers(threads or 1)


def _summary(result: TrainingResult) -> list[str]:
    """Last lines for people: how the run ended, where to look, and where the time went."""
    if result.status == "interrupted":
        saved = result.checkpoint or "-"  # a URI, or a path as a shell takes it
        place = saved if "://" in saved else output.short_path(Path(saved))
        end = f"interrupted at step {result.step} of {result.total_steps}"
        lines = [f"run {result.run_id} {end} · checkpoint: {place}"]
    else:
        from ditlab.tracking.history import Series, metric_history

        loss = metric_history(RunFolder(result.folder)).get(TRAIN_LOSS, Series()).recent_median()
        lines = [
            f"run {result.run_id} finished: {result.step} steps, training loss {loss:.4f} "
            f"({RECENT_TEXT})",
            *_sample_lines(result.folder),
            _places_line(result),
        ]
    with suppress(UserError):  # a journal that cannot be read costs the table alone
        summary = result.run.time()
        if summary:
            lines += output.time_lines(summary)
    return lines


def _sample_lines(folder: Path) -> list[str]:
    """Lines on the last sampled pictures, and the first of the texts beside them."""
    from ditlab.reports.text_file import read_texts

    pictures = sorted((folder / "media").glob("samples-*.png"))
    if not pictures:
        return []
    lines = [f"  samples: {output.short_path(pictures[-1])}"]
    with suppress(OSError):  # of pictures there are none
        texts = read_texts(pictures[-1].with_suffix(".txt"))
        lines += [f"  {line}" for line in output.first_text_lines(texts, 3)]
    return lines


def _places_line(result: TrainingResult) -> str:
    """Line with the run's page, where it has one, and the place of its metrics."""
    from ditlab.tracking.access import is_mlflow, resolve_tracking_uri

    home = Home.named_by_environment()
    tracked = result.tracking_uri
    if tracked == resolve_tracking_uri(None, home):
        tracked = f"{output.short_path(home.mlflow_database)} ({output.command_line('ui')})"
    if is_mlflow(result.tracking_uri):
        tracked = f"MLflow: {tracked}"
    page = result.folder / "report.html"
    if page.is_file():
        return f"  page: {output.short_path(page)} · {tracked}"
    return f"  {tracked}"


@click.command()
@options.spec
@options.overrides
@click.option(
    "--address",
    metavar="URL",
    help="Address of the job server (default: RAY_API_SERVER_ADDRESS, else that of the tunnel).",
)
@click.option(
    "--working-dir",
    type=click.Path(path_type=Path),
    default=".",
    show_default=True,
    help="Folder that is sent to the cluster.",
)
@click.option(
    "--home",
    metavar="PATH",
    help="DITLAB_HOME of the job, an absolute path that all nodes see. Default: on this "
    "machine this shell's own, elsewhere that of the nodes' environment.",
)
@click.option(
    "--resume",
    metavar="RUN|auto",
    help="Continue a run or sweep; `auto`: the newest unfinished of this spec.",
)
@options.start
@options.quick
@options.seeds
@options.figures
@options.start_checks
@options.grace
@click.option("--no-wait", is_flag=True, help="Return once the job is submitted.")
@options.as_json
def submit(
    spec: Path,
    overrides: tuple[str, ...],
    address: str | None,
    working_dir: Path,
    home: str | None,
    quick: bool,
    start_from: str | None,
    grace: float,
    no_wait: bool,
    as_json: bool,
    **_: object,
) -> int:
    """Run an experiment, a sweep or another file as a job of a Ray cluster, and follow its log.

    The working directory is sent along, without the files that .gitignore and .rayignore name.
    Ctrl-C leaves the job running; `ray job stop` ends it after a final checkpoint. Other options
    are those of `ditlab train` and `ditlab tune`, which the job runs.
    """
    from ditlab.cli.progress import ProgressBars
    from ditlab.cluster.jobs import default_address, job_environment, open_job_server
    from ditlab.spec.files import STANDARD_INPUT, command_for
    from ditlab.spec.start import parse_start

    # a spec that is wrong or lies elsewhere is better refused here than after the upload
    if spec == STANDARD_INPUT:
        raise UserError(
            "SPEC is standard input, which no job can read; write it to a file below --working-dir."
        )
    if start_from:
        parse_start(start_from)  # the run itself is known to the cluster's home alone
    root = resolve_user_path(working_dir)
    command_name = command_for(spec)
    if not root.is_dir():
        raise UserError(
            f"--working-dir {working_dir} is no folder; name the one that holds {spec}."
        )
    if command_name != "train":
        _refuse_options_of_train(spec, command_name)
    name = _name_of_spec(spec, overrides, quick)
    needed = _refuse_files_outside(root, spec, overrides)
    command = [
        "python",
        "-m",
        "ditlab",
        command_name,
        str(resolve_user_path(spec).relative_to(root)),
    ]
    command += output.repeated_arguments("spec", "address", "working_dir", "home", "no_wait")
    environment = job_environment(root, home, grace)
    _refuse_files_unsent(root, needed)
    with open_job_server(address or default_address()) as jobs:
        with ProgressBars(f"sending {root} to {jobs.address}"):
            job = jobs.submit(name, command, environment)
        if home:
            output.say(f"home: {home}")
        output.say(
            f"job {job} at {jobs.address} · stop it: ray job stop {job} --address {jobs.address}"
        )
        if no_wait:
            output.emit({"job": job, "status": "SUBMITTED"}, as_json)
            output.hint_text(as_json, f"ray job logs --follow {job} --address {jobs.address}")
            return 0
        printed = JobLines(as_json)
        try:
            ended = jobs.follow(job, printed.show)
        except KeyboardInterrupt:
            output.say(
                f"\nno longer following job {job}, which goes on · its log: ray job logs "
                f"--follow {job}"
            )
            raise
        printed.end()
        if ended.exit_code and ended.status == "FAILED" and not printed.has_text:
            output.say(f"job {job} failed before it could start: {ended.message}")
        output.say(f"job {job} {ended.status.lower()}")
    result: dict[str, Any] = {"job": job, "job_status": ended.status}
    with suppress(ValueError):  # a line that is no JSON object
        result |= json.loads(printed.json_line or "{}")
    output.emit(result, as_json)
    return ended.exit_code


@dataclass
class JobLines:
    """Lines that a job prints, shown as they come; its JSON line is kept for the end."""

    as_json: bool
    json_line: str = ""
    has_text: bool = False
    _rest: str = ""
    """Beginning of a line that is not complete."""

    def show(self, text: str) -> None:
        """Print the lines that are complete."""
        self.has_text = self.has_text or bool(text.strip())
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if self.as_json and line.startswith("{"):
                self.json_line = line
            else:
                output.print_line(line, self.as_json)

    def end(self) -> None:
        """Print the last line where it has no line break."""
        if self._rest:
            self.show("\n")


def _refuse_files_outside(root: Path, spec: Path, overrides: tuple[str, ...]) -> dict[str, Path]:
    """Files and folders that a job reads by a relative path, those of the spec and those that its
    fields name, by how a message calls them. Raises UserError for one outside the folder that is
    sent.
    """
    from ditlab.spec.files import relative_inputs, spec_files

    needed = {str(file): file for file in spec_files(spec)}
    inputs = relative_inputs(spec, overrides)
    needed |= {f"{field}: {place}": place for field, place in inputs.items()}
    for name, place in needed.items():
        if not place.is_relative_to(root):
            raise UserError(
                f"{name} does not lie below --working-dir {root}, the only folder that is sent "
                "along; name a folder that holds it."
            )
    return needed


def _refuse_files_unsent(root: Path, needed: Mapping[str, Path]) -> None:
    """Raise UserError for what a job needs and Ray leaves here, or a file of it."""
    from ditlab.cluster.ray_internals import sent_files

    sent = sent_files(root)
    for name, place in needed.items():
        files = [place] if place.is_file() else place.rglob("*")
        unsent = [file for file in files if file.is_file() and file not in sent]
        if unsent:
            raise UserError(
                f"{name} would not be sent to the job: {unsent[0]} is named by a .gitignore or "
                ".rayignore, or lies in a folder that Ray leaves out; take it off that file, set "
                "RAY_RUNTIME_ENV_IGNORE_GITIGNORE=1 to send what .gitignore names, or give a path "
                "from / that all nodes see."
            )


def _name_of_spec(spec: Path, overrides: tuple[str, ...], quick: bool) -> str:
    """Name of the experiment, sweep or other file that a job is to run. Raises UserError for a
    mistake in it.
    """
    from ditlab.api.specs import quick as shorten
    from ditlab.spec.files import find_file_kind, is_sweep, load_experiment
    from ditlab.spec.sweep import load_sweep

    if quick:
        return str(shorten(spec, overrides).spec.name)
    kind = find_file_kind(spec)
    if kind is not None:
        return str(load_part("kind of files", kind.name, kind.load)(spec, overrides).name)
    if is_sweep(spec):
        return load_sweep(spec, overrides).name
    return load_experiment(spec, overrides).name


def _refuse_options_of_train(file: Path, command: str) -> None:
    """Raise UserError for an option that the command that runs a file lacks."""
    described = find_command(command)
    assert described is not None
    runs = load_part("command", command, described.target)
    known = {parameter.name for parameter in runs.params}
    for parameter in train.params:
        is_of_train_alone = parameter.name != "spec" and parameter.name not in known
        if is_of_train_alone and output.is_typed(parameter.name or ""):
            option = "/".join([*parameter.opts, *parameter.secondary_opts])
            raise UserError(
                f"{option} is for experiments, and `ditlab {command}` runs {file}; leave it out."
            )
