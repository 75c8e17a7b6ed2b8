"""Preparation of a launch: checks that need no worker and leave nothing behind, then the run's
folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.images.captions import LABEL
from ditlab.data.named_stores import portable_name, store_folder
from ditlab.encoders.checkpoint import encoder_difference
from ditlab.errors import UserError, nearest, shortened
from ditlab.home import Home, RunFolder, resolve_user_file, resolve_user_path
from ditlab.inputs.model_inputs import check_inputs
from ditlab.parts import places
from ditlab.quality import check_quality
from ditlab.runs.budget import check_home_budget
from ditlab.runs.forks import check_start, hold_start
from ditlab.runs.launch import Launch, RecordedProof, checkpoint_store, observer_makers, weights_of
from ditlab.runs.lifecycle import home_write_error
from ditlab.runs.lineage import change_tags, lineage_tags
from ditlab.secrets import hide
from ditlab.spec.compiling import CompileDecision, compile_decision
from ditlab.spec.experiment import Experiment, class_for, is_content
from ditlab.spec.files import encode_recorded, load_recorded_experiment
from ditlab.spec.overrides import changed_values
from ditlab.spec.plugins import check_sections, plugin_packages, plugin_tags
from ditlab.spec.resources import Resources
from ditlab.spec.start import first_step
from ditlab.spec.uris import check_texts
from ditlab.spec.values import format_value
from ditlab.storage.files import write_durably
from ditlab.tracking.access import access_fault, launch_address
from ditlab.tracking.environment import source_tags
from ditlab.tracking.history import PROOF_TAG
from ditlab.tracking.journal import recorded_dataset
from ditlab.tracking.names import change_texts, differing, flatten
from ditlab.tracking.records import (
    create_run,
    find_training_run,
    find_unfinished,
    list_runs,
    read_record,
)
from ditlab.training.metrics import metric_names
from ditlab.weights.class_names import unused_numbers

if TYPE_CHECKING:
    from ditlab.runs.seed_group import GroupPlace

RESUMABLE_CHANGES = (
    "training.steps",
    "training.epochs",
    "schedule.decay_start",
    "encoders.cache",
    "encoders.compile",
)
"""Content fields that a resumed run may change: a longer run is the same experiment, as is one that
ends its stable rate, and the rest costs only time."""


GROUPS = 6
"""Parts of a model that a line names."""
WEIGHTS_TAG = "ditlab.weights"
"""Tag with source, revision, format and hashes of the published weights that a run began from."""


def check_launch(
    experiment: Experiment, resume: str | None, *, local: bool, remote: bool
) -> Launch:
    """Check all that needs no process: of a new run, or of `resume` (id, name, `auto`: the newest
    unfinished one).

    `local`: one process without Ray; `remote`: workers on a cluster, whose nodes are checked apart.
    Raises UserError.
    """
    home = Home.from_environment()
    home.check_place()
    check_sections(experiment)
    check_home_budget(home, experiment)
    given_uri = experiment.tracking.uri
    portable_spec = portable(experiment, launch_address(given_uri, home), home)
    launch = Launch(portable_spec, home, observers=tuple(places("observers")))
    observer_makers(launch)  # one that cannot be used shows before the run has a folder
    resumed: RunFolder | None = None
    if resume == "auto":
        resumed, note = find_auto(launch.experiment, home)
        launch = launch.changed(resume_note=note)
    elif resume is not None:
        resumed = find_training_run(home, resume).folder
    if resumed:
        before = check_same_content(launch.experiment, resumed)
        launch = launch.changed(run_id=resumed.run_id, resumed=True)
        if given_uri is None:  # it goes on where it is tracked, whatever the environment says now
            tracked = tracked_at(launch.experiment, read_record(resumed).tracking_uri or None)
            launch = launch.changed(experiment=tracked)
        if before.to_dict() != launch.experiment.to_dict():
            launch = launch.changed(before=before)
    check_parts(launch, local, remote)
    if resumed:
        recorded = recorded_dataset(resumed.journal)
        changed = encoder_difference(launch.experiment.encoders, recorded.get("encoders", {}))
        difference = launch.data.difference(recorded) or changed
        if difference:
            raise UserError(
                f"run {resumed.run_id} cannot go on: {difference}; bring that back, or begin a "
                f"new run from its checkpoint, with --from {resumed.run_id} in place of "
                "--resume."
            )
    weights = weights_of(launch.experiment, home, resumed)
    if weights:
        if not resumed:
            classes = launch.data.classes.get(LABEL, ())
            launch = launch.changed(start_note=weights.check(launch.model.network, classes))
        launch = launch.changed(weights=weights.recorded())
    total_steps = launch.plan.total_steps
    if launch.experiment.start:
        note = check_start(
            launch.experiment, launch.model, home, total_steps, resumed, launch.data.classes
        )
        launch = launch.changed(start_note=note)
    home.ensure()
    return launch


def begin_launch(
    launch: Launch, proof: RecordedProof | None = None, place: GroupPlace | None = None
) -> Launch:
    """Make the run's folder and record, or take those of the run that goes on; keep its proof
    there.

    `place` is that of a run in a group of seeds.

    Raises UserError where DITLAB_HOME cannot be written, and where the checkpoint of a fork's
    parent is gone.
    """
    experiment = launch.experiment
    home = launch.home
    made = None
    start = experiment.start
    try:
        if not launch.resumed:
            made = _make_run(launch, place)
            launch = launch.changed(run_id=made.run_id)
            write_durably(made.spec, encode_recorded(experiment.to_dict()))
        if proof:
            write_durably(launch.folder.proof, proof.json.encode())
            write_durably(launch.folder.proof_table, proof.table.encode())
        if start:
            try:
                hold_start(start, home, launch.run_id)
            except UserError:
                # the parent of a resumed fork may be gone once it has checkpoints of its own
                if not launch.resumed:
                    raise
    except (OSError, UserError) as error:
        if made:
            shutil.rmtree(made.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise home_write_error(home, error) from error
        raise
    tags = {**source_tags(), **plugin_tags(experiment.to_dict())}
    if start:
        tags |= lineage_tags(start.point, list_runs(home))
    if place:
        tags |= place.tags()
    elif made:
        tags |= change_tags(home, launch.run_id, experiment.name, experiment.to_dict())
    if launch.weights:
        tags[WEIGHTS_TAG] = ", ".join(f"{key} {value}" for key, value in launch.weights.items())
    tags |= _model_tags(launch)
    if proof:
        tags[PROOF_TAG] = proof.summary
    return launch.changed(tags=tags)


def _model_tags(launch: Launch) -> dict[str, str]:
    """Return tags on how the model is trained."""
    tags = {"ditlab.compile": str(_compile_decision(launch.experiment))}
    groups = _groups_not_trained(launch)
    if groups:
        tags["ditlab.not_trained"] = ", ".join(groups)
    return tags


def _make_run(launch: Launch, place: GroupPlace | None) -> RunFolder:
    """Make the folder and record of a new run."""
    experiment = launch.experiment
    facts: dict[str, Any] = {}
    if place:
        facts |= {"parent": place.group, "trial": place.number, "group": place.group}
    if experiment.tracking.uri:
        facts["tracking_uri"] = launch.tracking_uri
    if experiment.start:
        facts["start"] = experiment.start.point
    return create_run(
        launch.home,
        experiment.name,
        family=experiment.model.family,
        spec_hash=experiment.content_hash(),
        total_steps=launch.plan.total_steps,
        plugins=plugin_packages(experiment.to_dict()),
        **facts,
    )


def launch_notes(launch: Launch) -> list[str]:
    """Lines on the run (family, parameters, batch, workers, ZeRO stage, precision, compiled blocks)
    and its data.
    """
    experiment = launch.experiment
    resources = experiment.resources
    threads = launch.threads
    counts = launch.model.counts
    size = f"{counts.total:,} parameters"
    if counts.frozen:
        size += f" ({counts.trainable:,} trainable, {counts.frozen:,} frozen)"
    workers = _workers_text(resources)
    if threads:
        workers += f" with {threads.text}"
    line = (
        f"{experiment.name}: {experiment.model.family}, {size}, "
        f"batch {experiment.batch.size}, {workers}, "
        f"ZeRO {experiment.engine.zero.stage}, {experiment.training.precision}"
    )
    if experiment.engine.compile is not False:
        line += f", {_compile_decision(experiment)}"
    notes = [
        launch.resume_note,
        launch.start_note,
        launch.plan.mixture,
        launch.data.note,
        _unused_classes(launch),
        _not_trained(launch),
        launch.plan.note,
    ]
    if threads and threads.reason:
        notes.append(f"threads of each worker: {threads.number}, as {threads.reason}")
    return [line, *filter(None, notes), *resume_lines(launch)]


def _groups_not_trained(launch: Launch) -> list[str]:
    """Return the parts of the model that stay as they are, with their numbers of parameters."""
    return [f"{name} ({number:,})" for name, number in launch.model.counts.not_trained.items()]


def _not_trained(launch: Launch) -> str:
    """Return a sentence on the parts of the model that stay as they are; empty for none."""
    groups = _groups_not_trained(launch)
    if not groups:
        return ""
    training = launch.experiment.training
    settings = {"training.freeze": training.freeze, "training.lora": training.lora}
    given = [name for name, value in settings.items() if value is not None]
    reason = " and ".join(given) or "as the family freezes them itself"
    return f"not trained ({reason}): {shortened(groups, GROUPS)}"


def _unused_classes(launch: Launch) -> str:
    """Return a sentence on classes of the model that the data do not have; empty for none."""
    label = launch.data.train.columns.get(LABEL)
    table = getattr(launch.experiment.model, "num_classes", None)
    if table is None or label is None or label.num_classes is None:
        return ""
    return unused_numbers(table, label.num_classes, label.names)


def _workers_text(resources: Resources) -> str:
    """Number and device of the workers: `1 CPU worker`, `2 to 4 GPU workers`."""
    fewest = resources.min_workers
    most = resources.max_workers
    number = f"{most}"
    if fewest != most:
        number = f"{fewest} to {most}"
    device = "GPU" if resources.gpus_per_worker else "CPU"
    return f"{number} {device} worker{'s' if most > 1 else ''}"


def resume_lines(launch: Launch) -> list[str]:
    """Lines on what a resume changes: a field each, then both learning rates where they are not as
    before.
    """
    if not launch.before:
        return []
    changes = differing(flatten(launch.before.to_dict()), flatten(launch.experiment.to_dict()))
    rates = launch.rate_change(
        max(launch.checkpoints().last_step(), first_step(launch.experiment.start))
    )
    return [
        *(f"resumed with {hide(text)}" for text in change_texts(changes)),
        *filter(None, [rates]),
    ]


def startup_lines(launch: Launch) -> list[str]:
    """Lines for the start of a run: its description, tracking problems that its first upload would
    meet, its length.
    """
    plan = launch.plan
    run_id = launch.run_id
    steps = f"{plan.total_steps} steps"
    if launch.resumed:
        last = f"run {run_id}: going on, to {steps}"
    else:
        first = first_step(launch.experiment.start)
        if first:
            steps = f"steps {first + 1} to {plan.total_steps}"
        last = f"run {run_id}: {steps} on {plan.train_samples:,} samples"
        if plan.left_out_samples:
            whole = plan.train_samples - plan.left_out_samples  # the rest fills no batch
            last += f" (each epoch draws {whole:,} of them)"
    lines = launch_notes(launch)
    uri = launch.tracking_uri
    if not uri.startswith("sqlite"):
        fault = access_fault(uri, "training goes on, `ditlab runs sync` sends what is missing")
        lines += [f"warning: {fault}"] * bool(fault)
    return [*lines, last]


def _compile_decision(experiment: Experiment) -> CompileDecision:
    return compile_decision(experiment, "cuda" if experiment.resources.gpus_per_worker else "cpu")


def portable(experiment: Experiment, tracking_uri: str | None, home: Home) -> Experiment:
    """Return an experiment for other working directories: absolute paths, and a tracking address
    (None: the home's).
    """
    plain = experiment.to_dict()
    spec = absolute_paths(plain, home)
    if spec != plain:
        experiment = class_for(spec).model_validate(spec)
    return tracked_at(experiment, tracking_uri)


def tracked_at(experiment: Experiment, uri: str | None) -> Experiment:
    """Return an experiment with another tracking address. Raises UserError for an address that
    holds a secret.
    """
    try:
        check_texts({"tracking": {"uri": uri}})
    except ValueError as error:
        raise UserError(str(error)) from None
    return experiment.model_copy(
        update={"tracking": experiment.tracking.model_copy(update={"uri": uri})}
    )


def absolute_paths(spec: Mapping[str, Any], home: Home) -> dict[str, Any]:
    """Mapping of a spec, whole or in part, with its paths and store names made absolute; URIs
    stay.
    """
    found = dict(spec)
    data = found.get("data")
    if isinstance(data, Mapping):
        found["data"] = _absolute_data(data, home)
    checkpoint = found.get("checkpoint")
    if isinstance(checkpoint, Mapping):
        found["checkpoint"] = _moved(checkpoint, "storage", resolve_user_path)
    model = found.get("model")
    if isinstance(model, Mapping) and isinstance(model.get("init"), Mapping):
        found["model"] = {**model, "init": _moved(model["init"], "from", resolve_user_file)}
    encoders = found.get("encoders")
    if isinstance(encoders, Mapping):
        folders = {
            key: resolve_user_path(encoders[key]) for key in ("text", "image") if encoders.get(key)
        }
        # the rest are names on the Hugging Face hub
        found["encoders"] = {
            **encoders,
            **{key: str(path) for key, path in folders.items() if path.is_dir()},
        }
    return found


def _absolute_data(data: Mapping[str, Any], home: Home) -> Mapping[str, Any]:
    """Section `data` of a spec, or one part of a mixture, with absolute paths."""

    def store(value: str) -> str:  # the store's own folder: a name may mean another later
        return portable_name(store_folder(value, home), home)

    data = _moved(data, "path", store)
    parts = data.get("parts")
    if isinstance(parts, Mapping):
        moved = {}
        for name, part in parts.items():
            moved[name] = _absolute_data(part, home) if isinstance(part, Mapping) else part
        data = {**data, "parts": moved}
    return data


def _moved(
    section: Mapping[str, Any], key: str, resolve: Callable[[str], str | Path]
) -> Mapping[str, Any]:
    """Section of a spec with a path resolved; a URI stays, as does what is no text."""
    value = section.get(key)
    if isinstance(value, str) and "://" not in value:
        return {**section, key: str(resolve(value))}
    return section


def check_parts(launch: Launch, local: bool, remote: bool) -> None:
    """Check devices, compilation, model, storage, data and quality metrics; a cluster's nodes are
    checked apart.

    Raises UserError.
    """
    experiment = launch.experiment
    resources = experiment.resources
    workers = resources.min_workers
    gpus = resources.gpus_per_worker
    if local and workers > 1:
        raise UserError(
            f"resources.workers={workers} needs Ray, and --local is one process; set "
            "resources.workers to 1, or leave --local out."
        )
    have = torch.cuda.device_count()
    check_evaluation(launch, have, remote)
    if not remote and gpus * workers > have:
        plural = "s" if gpus * workers > 1 else ""
        needed = f"{gpus * workers:g} GPU{plural}"
        raise UserError(
            f"resources.workers={workers} with resources.gpus_per_worker={gpus:g} needs "
            f"{needed}, this machine has {have}; set resources.gpus_per_worker=0, or name a "
            "cluster with --address."
        )
    _compile_decision(experiment)
    assert launch.model  # a mistake that only building finds shows before any file is touched
    storage = experiment.checkpoint.storage
    if storage:
        CheckpointStore.at(storage).files.check_writable()
    check_inputs(experiment, launch.data, launch.home)
    if experiment.evaluation.quality:
        check_quality(experiment, launch.data)


def check_evaluation(launch: Launch, num_gpus: int, remote: bool) -> None:
    """Check where evaluations are made, and that those which end a run early are. Raises
    UserError.
    """
    experiment = launch.experiment
    evaluation = experiment.evaluation
    if evaluation.mode == "async":
        asked = evaluation.resources
        workers = experiment.resources
        of_workers = workers.gpus_per_worker * workers.min_workers
        if evaluation.every is None:
            raise UserError(
                "evaluation.mode=async evaluates nothing, as evaluation.every is null; set "
                "evaluation.every to a number of steps, or evaluation.mode to inline."
            )
        if not remote and (asked.custom or (asked.gpus and asked.gpus + of_workers > num_gpus)):
            raise UserError(
                f"evaluation.resources={asked} are not on this machine, which has {num_gpus} "
                f"GPUs, {of_workers:g} of them for the workers, and no resources of other "
                "names; set evaluation.resources.gpus to 0 and leave "
                "evaluation.resources.custom out, or name a cluster with --address."
            )
    stop = experiment.training.stop
    if stop:
        known = metric_names(experiment, launch.data, launch.model.objective)
        measured = [name for name in known if not name.startswith("train/")]
        if stop.metric not in measured:
            if measured:
                hint = nearest(stop.metric, measured)
            else:
                hint = "set evaluation.every, with samples held out"
            raise UserError(
                f"training.stop.metric={format_value(stop.metric)} is not measured in this "
                f"run; {hint}"
            )


def find_auto(experiment: Experiment, home: Home) -> tuple[RunFolder | None, str]:
    """Return the newest unfinished run of a spec, for `--resume auto`, and a line that names it or
    says that none is there."""
    name = experiment.name
    spec_hash = experiment.content_hash()
    folder = find_unfinished(home, name, spec_hash)
    if folder:
        record = read_record(folder)
        where = f"{record.status} at step {record.step:,} of {record.total_steps:,}"
        note = f"--resume auto: run {folder.run_id} ({name}, spec hash {spec_hash}), {where}"
        return folder, note
    newest = next((each for each in list_runs(home) if each.name == name and not each.trials), None)
    note = f"--resume auto: no unfinished run {name} has spec hash {spec_hash}, so a new one begins"
    if newest:
        note += (
            f"; the newest of that name, {newest.run_id} ({newest.status}), has spec hash "
            f"{newest.spec_hash}"
        )
    return None, note


def content_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return path, old and new value of the fields of content in which two specs differ."""
    found: list[tuple[str, Any, Any]] = []
    for section in filter(is_content, dict.fromkeys([*old, *new])):
        found += changed_values(old.get(section), new.get(section), section)
    return [each for each in found if not each[0].startswith("training.stop")]


def check_same_content(experiment: Experiment, folder: RunFolder) -> Experiment:
    """Return the experiment that a resumed run was. Raises UserError where it would change its
    content: a longer run is the same experiment."""
    recorded = load_recorded_experiment(folder.spec)
    old = recorded.to_dict()
    new = experiment.to_dict()
    changed = [
        f"{path}={format_value(after)} (was {format_value(before)})"
        for path, before, after in content_changes(old, new)
        if path not in RESUMABLE_CHANGES
    ]
    if changed:
        raise UserError(
            f"run {folder.run_id} was started as another experiment: {', '.join(changed)}; "
            f"resume it with its own spec, or {_new_run(folder, old, new)}."
        )
    before = old["checkpoint"]["storage"]
    after = new["checkpoint"]["storage"]
    if before != after:
        own = "null" if before is None else before
        raise UserError(
            f"checkpoint.storage={after} is not where run {folder.run_id} keeps its "
            f"checkpoints ({before}); set checkpoint.storage={own}."
        )
    store = checkpoint_store(folder, after)
    longest = store.last_step()
    reached = read_record(folder).step
    if reached > 0 and not store.steps():
        raise UserError(
            f"run {folder.run_id} had reached step {reached}, and there is no checkpoint at "
            f"{store.location}: going on would begin again. Bring the checkpoints back (is the "
            "disk mounted?), or start a new run without --resume."
        )
    steps = new["training"]["steps"]
    if steps is not None and steps < longest:
        raise UserError(
            f"training.steps={steps} is behind run {folder.run_id}, which is at step "
            f"{longest}; give more steps."
        )
    return recorded


def _new_run(folder: RunFolder, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return how a new run of a changed spec begins: from the run's checkpoint, where that fits."""
    if old["model"] != new["model"]:
        return "start a new run without --resume"
    fork = f"begin a new run from its checkpoint, with --from {folder.run_id}"
    if old["optimizer"]["kind"] != new["optimizer"]["kind"]:
        fork += " --weights-only"
    return f"{fork} in place of --resume"
