"""Launch of a run: every check that needs no worker process, then the run's folder."""

import shutil
from contextlib import suppress
from dataclasses import dataclass

from denoisers.parameters import ParameterCount
from ditlab.data.splits import DataSplits, open_data
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.inputs.checks import check_inputs
from ditlab.quality import check_quality
from ditlab.runs.checks import (
    check_devices,
    check_network,
    check_same_content,
    check_storage,
    count_and_build,
    portable,
    tracked_at,
)
from ditlab.runs.forks import check_start, hold_start
from ditlab.runs.lifecycle import home_write_error
from ditlab.runs.lineage import lineage_tags
from ditlab.runs.relocation import check_run_place
from ditlab.runs.request import PreparedRun, RecordedProof, RunRequest
from ditlab.spec.compiling import CompileDecision, compile_decision
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import encode_recorded
from ditlab.spec.plugins import plugin_packages, plugin_tags
from ditlab.spec.start import first_step
from ditlab.storage.files import write_durably
from ditlab.tracking.access import check_access, check_reachable, launch_address, redact, resolve_tracking_uri
from ditlab.tracking.environment import source_tags
from ditlab.tracking.history import PROOF_TAG
from ditlab.tracking.records import create_run, find_training_run, find_unfinished, list_runs, read_record
from ditlab.tracking.relocation import check_place, record_place
from ditlab.training.plan import RunPlan, plan_run


@dataclass(frozen=True)
class CheckedRun:
    """A run that has passed every check, and of which nothing new exists yet."""

    experiment: Experiment
    """The spec with absolute paths and the tracking address of this launch."""
    data: DataSplits
    plan: RunPlan
    counts: ParameterCount
    home: Home
    tracking_uri: str
    """Resolved address of the tracked run."""
    resumed: RunFolder | None
    """Folder of the run that goes on; None for a new run."""
    start: str = ""
    """Line about the checkpoint of another run that this one begins from; empty for a run that is no fork."""

    @property
    def notes(self) -> list[str]:
        """Lines that describe the run and its data."""
        remarks = [self.start, self.plan.mixture, self.data.note, self.plan.note]
        return [describe(self.experiment, self.counts.total), *filter(None, remarks)]


def check_run(experiment: Experiment, resume: str | None, *, local: bool, remote: bool) -> CheckedRun:
    """Check everything that can be checked before a process is started.

    Args:
        experiment: the validated spec.
        resume: id or name of the run to go on with, `auto` for the newest unfinished one, None for a new run.
        local: True for one process without Ray.
        remote: True if the workers run on a cluster, whose nodes are checked apart.

    Raises:
        UserError: something is wrong. Nothing of the run is left behind.
    """
    home = Home.from_environment()
    check_place(home)
    given_uri = experiment.tracking.uri
    experiment = portable(experiment, launch_address(given_uri, home), home)
    check_devices(experiment, local, remote)
    if not remote:
        check_network(experiment)
    counts = count_and_build(experiment)
    resumed = _find_resumed(experiment, resume, home)
    if resumed:
        check_run_place(home, resumed)
        check_same_content(experiment, resumed)
        if given_uri is None:  # it goes on where it is tracked, whatever the environment says now
            experiment = tracked_at(experiment, read_record(resumed).tracking_uri or None)
    tracking_uri = resolve_tracking_uri(experiment.tracking.uri, home)
    check_storage(experiment)
    data = open_data(experiment.data, home)
    check_inputs(experiment, data, home)
    check_quality(experiment, data)
    plan = plan_run(experiment, data)
    start = check_start(experiment, home, plan.total_steps, resumed)
    home.ensure()
    return CheckedRun(experiment, data, plan, counts, home, tracking_uri, resumed, start)


def prepare_run(checked: CheckedRun, proof: RecordedProof | None = None) -> PreparedRun:
    """Make the run's folder and record, or take those of the run that goes on; a proof of it is kept there.

    Raises UserError where DITLAB_HOME cannot be written, and where the checkpoint of a fork's parent is gone by now.
    """
    record_place(checked.home)
    folder = checked.resumed or _create_folder(checked, proof)
    if checked.resumed:
        try:
            if proof:
                proof.write(folder)
        except OSError as error:
            raise home_write_error(checked.home, error) from error
        with suppress(UserError):  # its parent may be gone once it has checkpoints of its own
            hold_start(checked.experiment, checked.home, folder.run_id)
    tags = {**source_tags(), **plugin_tags(checked.experiment.to_dict())}
    if start := checked.experiment.start:
        tags |= lineage_tags(start.point, list_runs(checked.home))
    tags["ditlab.compile"] = str(_compile_decision(checked.experiment))
    if proof:
        tags[PROOF_TAG] = proof.summary
    request = RunRequest(
        checked.experiment, folder.run_id, checked.home, resumed=checked.resumed is not None, tags=tags
    )
    return PreparedRun(request, checked.data, checked.plan, checked.counts)


def startup_lines(checked: CheckedRun, run_id: str) -> list[str]:
    """Lines for the start of a run: its description, tracking problems that its first upload would meet, its length."""
    plan = checked.plan
    left_out = f", {plan.left_out_samples} left out of each epoch" if plan.left_out_samples else ""
    first = first_step(checked.experiment.start)
    steps = f"steps {first + 1} to {plan.total_steps}" if first else f"{plan.total_steps} steps"
    length = f"{steps} on {plan.train_samples:,} samples{left_out}"
    last = f"run {run_id}: going on, to {plan.total_steps} steps" if checked.resumed else f"run {run_id}: {length}"
    return [*checked.notes, *_tracking_warnings(checked.tracking_uri), last]


def _tracking_warnings(uri: str) -> list[str]:
    """Sentences on a tracking server that does not answer, or refuses this user."""
    later = "training goes on, `ditlab runs sync` sends what is missing."
    if uri.startswith("sqlite"):
        return []
    if reason := check_reachable(uri):
        return [f"warning: tracking.uri={redact(uri)} does not answer ({reason}); {later}"]
    return [f"warning: {refusal}; {later}"] if (refusal := check_access(uri)) else []


def _create_folder(checked: CheckedRun, proof: RecordedProof | None) -> RunFolder:
    """Folder of a new run, with its record and spec. Raises UserError where the disk refuses, and leaves nothing."""
    experiment, folder = checked.experiment, None
    try:
        folder = create_run(
            checked.home, experiment.name, family=experiment.model.family, spec_hash=experiment.content_hash(),
            total_steps=checked.plan.total_steps,
            tracking_uri=checked.tracking_uri if experiment.tracking.uri else "",
            plugins=plugin_packages(experiment.to_dict()),
            start=experiment.start.point if experiment.start else "",
        )  # fmt: skip
        write_durably(folder.spec, encode_recorded(experiment.to_dict()))
        if proof:
            proof.write(folder)
        hold_start(experiment, checked.home, folder.run_id)
    except (OSError, UserError) as error:
        if folder is not None:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise error if isinstance(error, UserError) else home_write_error(checked.home, error) from error
    return folder


def describe(experiment: Experiment, num_parameters: int) -> str:
    """One line about a run: family, parameters, batch size, workers, ZeRO stage, precision, compiled blocks."""
    resources = experiment.resources
    fewest, most = resources.min_workers, resources.max_workers
    workers = str(most) if fewest == most else f"{fewest} to {most}"
    where = "GPU" if resources.gpus_per_worker else "CPU"
    decision = _compile_decision(experiment)
    compiled = "" if experiment.engine.compile is False else f", {decision}"
    return (
        f"{experiment.name}: {experiment.model.family}, {num_parameters:,} parameters, batch {experiment.batch.size}, "
        f"{workers} {where} worker{'s' if most > 1 else ''}, ZeRO {experiment.engine.zero.stage}, "
        f"{experiment.training.precision}{compiled}"
    )


def _compile_decision(experiment: Experiment) -> CompileDecision:
    return compile_decision(experiment, "cuda" if experiment.resources.gpus_per_worker else "cpu")


def _find_resumed(experiment: Experiment, resume: str | None, home: Home) -> RunFolder | None:
    """Folder of the run that `resume` names; None for a new run. Raises UserError for an unknown name."""
    if resume is None:
        return None
    if resume == "auto":
        unfinished = find_unfinished(home, experiment.name, experiment.content_hash())
        return unfinished.folder if unfinished else None
    return find_training_run(home, resume).folder
