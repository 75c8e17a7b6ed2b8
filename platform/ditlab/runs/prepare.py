"""From a valid experiment to a running one: checks, the run's folder and record, launch, the last word."""

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denoisers.parameter_counts import count_parameters
from ditlab.cluster.launch import is_connected
from ditlab.data.splits import DataSplits, open_data
from ditlab.home import Home, RunFolder
from ditlab.inputs.model_inputs import check_inputs
from ditlab.quality import check_quality
from ditlab.runs.lifecycle import RunLifecycle, home_write_error
from ditlab.runs.locks import LOCK_LEASE, lock_run
from ditlab.runs.preflight import (
    check_builds,
    check_devices,
    check_network,
    check_same_content,
    check_storage,
    portable,
    tracked_at,
)
from ditlab.runs.progress_line import ProgressLine
from ditlab.spec.experiment import Experiment
from ditlab.spec.yaml_text import dump_yaml
from ditlab.storage.files import write_durably
from ditlab.tracking.environment import source_tags
from ditlab.tracking.records import create_run, find_training_run, find_unfinished, read_record
from ditlab.tracking.server.access import check_admitted
from ditlab.tracking.server.address import check_reachable, launch_address, redact, resolve_tracking_uri
from ditlab.training.plan import RunPlan, plan_run
from ditlab.training.reporting import Outcome


@dataclass(frozen=True)
class Result:
    """How `ditlab train` ended."""

    run_id: str
    outcome: Outcome
    tracking_uri: str
    lines: list[str]

    @property
    def exit_code(self) -> int:
        return 130 if self.outcome.status == "interrupted" else 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "status": self.outcome.status,
            "step": self.outcome.step,
            "metrics": self.outcome.metrics,
            "checkpoint": self.outcome.checkpoint,
            "tracking_uri": redact(self.tracking_uri),
        }


@dataclass
class Start:
    """A run that has passed every check and may go."""

    experiment: Experiment
    data: DataSplits
    plan: RunPlan
    num_parameters: int
    home: Home
    tracking_uri: str
    folder: RunFolder | None
    resumed: bool
    lines: list[str]

    def go(self, local: bool) -> Result:
        """Trains to the end. Raises UserError and RunFailed as `launch` does; the run's record says so too."""
        assert self.folder is not None, "a dry run does not go"
        books = RunLifecycle(self.folder, self.experiment, self.home, self.resumed)
        patience = LOCK_LEASE if is_connected() else 0.0  # to a cluster, whose nodes may be lost
        with ProgressLine() as line, lock_run(self.folder, patience, line.warn):
            request = books.begin(self.plan.total_steps, source_tags())
            with books.kept():
                if local:
                    from ditlab.runs.one_process import run_here

                    outcome = run_here(request, self.data, line.update, line.warn)
                else:
                    from ditlab.cluster.launch import launch

                    outcome = launch(request, os.cpu_count() or 1, line.update, line.warn, books.record_failure)
            books.end(outcome)
        return Result(self.folder.run_id, outcome, self.tracking_uri, self._last_words(outcome))

    def _last_words(self, outcome: Outcome) -> list[str]:
        assert self.folder is not None
        run, loss = self.folder.run_id, outcome.metrics.get("train/loss", float("nan"))
        pictures = sorted(self.folder.media.glob("samples-*.png"))
        where = [f"samples: {_short(pictures[-1])}"] if pictures else []
        if self.experiment.tracking.uri is None:
            where.append(f"MLflow: {_short(self.home.mlflow_database)} ({_command()} ui)")
        else:
            where.append(f"MLflow: {redact(self.tracking_uri)}")
        if outcome.status == "interrupted":
            return [
                f"run {run} interrupted at step {outcome.step} of {self.plan.total_steps} · checkpoint: "
                f"{_place(outcome.checkpoint)} · go on: ditlab train SPEC --resume {run}"
            ]
        return [f"run {run} finished: {outcome.step} steps, loss {loss:.4f}", f"  {' · '.join(where)}"]


def start_run(experiment: Experiment, resume: str | None, *, local: bool, remote: bool, dry_run: bool) -> Start:
    """Checks everything that can be checked before a process is started, then makes or finds the run's folder.

    Raises UserError, with nothing left behind, for anything that is wrong.
    """
    home = Home.from_environment()
    asked = experiment.tracking.uri
    experiment = portable(experiment, launch_address(asked, home), home)
    check_devices(experiment, local, remote)
    if not remote:
        check_network(experiment)
    check_builds(experiment)
    counts = count_parameters(experiment.model, experiment.objective)
    found = _find(experiment, resume, home)
    if found:
        check_same_content(experiment, found)
        if asked is None:  # it goes on where it is tracked, whatever the environment says now
            experiment = tracked_at(experiment, read_record(found).tracking_uri or None)
    tracking_uri = resolve_tracking_uri(experiment.tracking.uri, home)
    check_storage(experiment)
    data = open_data(experiment.data, home)
    check_inputs(experiment, data, home)
    check_quality(experiment, data)
    plan = plan_run(experiment, data)
    home.ensure()
    lines = [describe(experiment, counts.total), *filter(None, [data.note, plan.note])]
    folder = found
    if not dry_run:
        lines += _tracking_warnings(tracking_uri)
        if folder is None:
            folder = _create(experiment, plan, home, tracking_uri if experiment.tracking.uri else "")
            left_out = f", {plan.left_out_samples} left out of each epoch" if plan.left_out_samples else ""
            lines.append(f"run {folder.run_id}: {plan.total_steps} steps on {plan.train_samples:,} samples{left_out}")
        else:
            lines.append(f"run {folder.run_id}: going on, to {plan.total_steps} steps")
    return Start(experiment, data, plan, counts.total, home, tracking_uri, folder, found is not None, lines)


def _tracking_warnings(uri: str) -> list[str]:
    """What is said at once: the run would find it out at its first upload."""
    later = "training goes on, `ditlab runs sync` sends what is missing."
    if uri.startswith("sqlite"):
        return []
    if reason := check_reachable(uri):
        return [f"warning: tracking.uri={redact(uri)} does not answer ({reason}); {later}"]
    return [f"warning: {refusal}; {later}"] if (refusal := check_admitted(uri)) else []


def _create(experiment: Experiment, plan: RunPlan, home: Home, tracking_uri: str) -> RunFolder:
    folder = None
    try:
        folder = create_run(
            home, experiment.name, family=experiment.model.family, spec_hash=experiment.content_hash(),
            total_steps=plan.total_steps, tracking_uri=tracking_uri,
        )  # fmt: skip
        write_durably(folder.spec, dump_yaml(experiment.to_dict()).encode())
    except OSError as error:
        if folder is not None:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise home_write_error(home, error) from error
    return folder


def _place(checkpoint: str | None) -> str:
    return checkpoint if checkpoint and "://" in checkpoint else _short(Path(checkpoint or "-"))


def describe(experiment: Experiment, num_parameters: int) -> str:
    """One line on what is about to be trained."""
    resources = experiment.resources
    fewest, most = resources.min_workers, resources.max_workers
    workers = str(most) if fewest == most else f"{fewest} to {most}"
    where = "GPU" if resources.gpus_per_worker else "CPU"
    return (
        f"{experiment.name}: {experiment.model.family}, {num_parameters:,} parameters, batch {experiment.batch.size}, "
        f"{workers} {where} worker{'s' if most > 1 else ''}, ZeRO {experiment.engine.zero.stage}, "
        f"{experiment.training.precision}"
    )


def _find(experiment: Experiment, resume: str | None, home: Home) -> RunFolder | None:
    if resume is None:
        return None
    if resume == "auto":
        unfinished = find_unfinished(home, experiment.name, experiment.content_hash())
        return unfinished.folder if unfinished else None
    return find_training_run(home, resume).folder


def _command() -> str:
    """How this shell calls the tool: by its name where that is on the path."""
    return "ditlab" if shutil.which("ditlab") else _short(Path(sys.executable).with_name("ditlab"))


def _short(path: Path) -> str:
    """Relative to the working directory where it lies below it, quoted for a shell."""
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return shlex.quote(str(path))
