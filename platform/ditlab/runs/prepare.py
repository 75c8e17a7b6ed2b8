"""Preparation of a launch: every check that needs no worker process, then the run's folder."""

import shutil
from contextlib import suppress

from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.inputs.checks import check_inputs
from ditlab.quality import check_quality
from ditlab.runs.checks import (
    check_devices,
    check_network,
    check_same_content,
    check_storage,
    portable,
    tracked_at,
)
from ditlab.runs.forks import check_start, hold_start
from ditlab.runs.launch import Launch, RecordedProof
from ditlab.runs.lifecycle import home_write_error
from ditlab.runs.lineage import lineage_tags
from ditlab.runs.relocation import check_run_place
from ditlab.spec.compiling import CompileDecision, compile_decision
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import encode_recorded
from ditlab.spec.plugins import plugin_packages, plugin_tags
from ditlab.spec.start import first_step
from ditlab.storage.files import write_durably
from ditlab.tracking.access import check_access, check_reachable, launch_address, redact
from ditlab.tracking.environment import source_tags
from ditlab.tracking.history import PROOF_TAG
from ditlab.tracking.records import create_run, find_training_run, find_unfinished, list_runs, read_record
from ditlab.tracking.relocation import check_place, record_place


def check_launch(experiment: Experiment, resume: str | None, *, local: bool, remote: bool) -> Launch:
    """Check everything that can be checked before a process is started; nothing of the run exists yet.

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
    launch = Launch(portable(experiment, launch_address(given_uri, home), home), home)
    check_devices(launch.experiment, local, remote)
    if not remote:
        check_network(launch.experiment)
    assert launch.model  # a mistake that only building finds shows at once
    if resumed := _find_resumed(launch.experiment, resume, home):
        check_run_place(home, resumed)
        check_same_content(launch.experiment, resumed)
        launch = launch.changed(run_id=resumed.run_id, resumed=True)
        if given_uri is None:  # it goes on where it is tracked, whatever the environment says now
            tracked = tracked_at(launch.experiment, read_record(resumed).tracking_uri or None)
            launch = launch.changed(experiment=tracked)
    check_storage(launch.experiment)
    check_inputs(launch.experiment, launch.data, home)
    check_quality(launch.experiment, launch.data)
    total_steps = launch.plan.total_steps
    if launch.experiment.start:
        note = check_start(launch.experiment, launch.model, home, total_steps, resumed)
        launch = launch.changed(start_note=note)
    home.ensure()
    return launch


def begin_launch(launch: Launch, proof: RecordedProof | None = None) -> Launch:
    """Make the run's folder and record, or take those of the run that goes on; a proof of it is kept there.

    Raises UserError where DITLAB_HOME cannot be written, and where the checkpoint of a fork's parent is gone by now.
    """
    experiment, home = launch.experiment, launch.home
    record_place(home)
    if not launch.resumed:
        launch = launch.changed(run_id=_create_folder(launch, proof).run_id)
    else:
        try:
            if proof:
                proof.write(launch.folder)
        except OSError as error:
            raise home_write_error(home, error) from error
        if experiment.start:
            with suppress(UserError):  # its parent may be gone once it has checkpoints of its own
                hold_start(experiment, home, launch.run_id)
    tags = {**source_tags(), **plugin_tags(experiment.to_dict())}
    if start := experiment.start:
        tags |= lineage_tags(start.point, list_runs(home))
    tags["ditlab.compile"] = str(_compile_decision(experiment))
    if proof:
        tags[PROOF_TAG] = proof.summary
    return launch.changed(tags=tags)


def launch_notes(launch: Launch) -> list[str]:
    """Lines that describe the run and its data."""
    remarks = [launch.start_note, launch.plan.mixture, launch.data.note, launch.plan.note]
    return [describe(launch.experiment, launch.model.counts.total), *filter(None, remarks)]


def startup_lines(launch: Launch) -> list[str]:
    """Lines for the start of a run: its description, tracking problems that its first upload would meet, its length."""
    plan, run_id = launch.plan, launch.run_id
    left_out = f", {plan.left_out_samples} left out of each epoch" if plan.left_out_samples else ""
    first = first_step(launch.experiment.start)
    steps = f"steps {first + 1} to {plan.total_steps}" if first else f"{plan.total_steps} steps"
    length = f"{steps} on {plan.train_samples:,} samples{left_out}"
    last = f"run {run_id}: going on, to {plan.total_steps} steps" if launch.resumed else f"run {run_id}: {length}"
    return [*launch_notes(launch), *_tracking_warnings(launch.tracking_uri), last]


def _tracking_warnings(uri: str) -> list[str]:
    """Sentences on a tracking server that does not answer, or refuses this user."""
    later = "training goes on, `ditlab runs sync` sends what is missing."
    if uri.startswith("sqlite"):
        return []
    if reason := check_reachable(uri):
        return [f"warning: tracking.uri={redact(uri)} does not answer ({reason}); {later}"]
    return [f"warning: {refusal}; {later}"] if (refusal := check_access(uri)) else []


def _create_folder(launch: Launch, proof: RecordedProof | None) -> RunFolder:
    """Folder of a new run, with its record and spec. Raises UserError where the disk refuses, and leaves nothing."""
    experiment, folder = launch.experiment, None
    try:
        folder = create_run(
            launch.home, experiment.name, family=experiment.model.family, spec_hash=experiment.content_hash(),
            total_steps=launch.plan.total_steps,
            tracking_uri=launch.tracking_uri if experiment.tracking.uri else "",
            plugins=plugin_packages(experiment.to_dict()),
            start=experiment.start.point if experiment.start else "",
        )  # fmt: skip
        write_durably(folder.spec, encode_recorded(experiment.to_dict()))
        if proof:
            proof.write(folder)
        if experiment.start:
            hold_start(experiment, launch.home, folder.run_id)
    except (OSError, UserError) as error:
        if folder is not None:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise error if isinstance(error, UserError) else home_write_error(launch.home, error) from error
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
