"""Checks of a fork against its parent's checkpoint, before anything of the fork exists."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.checkpoints.reader import CheckpointReader
from ditlab.checkpoints.start_point import order_changes
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.runs.forks.lineage import ancestors
from ditlab.runs.request import checkpoint_store, start_point
from ditlab.spec.composition.start import Start
from ditlab.spec.experiment import Experiment
from ditlab.spec.reading.yaml_text import MAX_BYTES, parse_yaml
from ditlab.storage.plain_files import read_plain
from ditlab.tracking.records import find_training_run, list_runs, read_record
from ditlab.training.networks import named_parameters, persistent_buffers

MOST_LISTED = 12
"""Tensors of other shapes that a message lists."""


def check_start(experiment: Experiment, home: Home, total_steps: int, resumed: RunFolder | None = None) -> str:
    """Check that a run can begin where `start` says; return a line for people, empty for a run that is no fork.

    The shards of a checkpoint on this machine's disks are hashed. A resumed fork with a checkpoint of its own needs
    its parent no more. Raises UserError.
    """
    start = experiment.start
    if start is None:
        return ""
    name = _check_parent(start, home, resumed)
    if total_steps <= start.first_step:
        raise UserError(
            f"start.step={start.step} leaves nothing of the run's {total_steps} steps; raise training.epochs, or set "
            "start.state to averaged or trained, which begin at step 0."
        )
    if resumed and checkpoint_store(resumed, experiment.checkpoint.storage).steps():
        return f"fork of run {start.run} ({name}) at step {start.step:,}"
    point = start_point(experiment, home, resumed.run_id if resumed else "")
    assert point
    store = point.find_checkpoints()
    with point.open(verify=store.is_local) as reader:
        check_state(experiment, start, reader)
        return _describe(experiment, start, name, reader.manifest)


def check_state(experiment: Experiment, start: Start, reader: CheckpointReader) -> None:
    """Raise UserError where the parent's checkpoint does not hold what the fork takes over."""
    parent, wanted = reader.manifest.spec, f"run {start.run}"
    if (family := parent["model"]["family"]) != experiment.model.family:
        raise UserError(
            f"model.family={experiment.model.family} cannot go on from {wanted}, a {family}; name a run of the same "
            "family."
        )
    if differences := shape_differences(experiment, reader.manifest.shapes):
        more = f" and {len(differences) - MOST_LISTED} more" if len(differences) > MOST_LISTED else ""
        raise UserError(
            f"{wanted} has other parameters than this network and loss in {len(differences)} tensors: "
            f"{', '.join(differences[:MOST_LISTED])}{more}; give model and objective as that run has them."
        )
    if start.state == "averaged" and not reader.has("ema"):
        raise UserError(f"start.state=averaged: {wanted} keeps no average of its weights; set start.state to trained.")
    if start.state != "all":
        return
    before, now = parent["optimizer"].get("kind", "adamw"), experiment.optimizer.kind
    if before != now:
        raise UserError(
            f"optimizer.kind={now} cannot go on with the moments of {wanted}, which optimizer.kind={before} wrote; set "
            f"optimizer.kind to {before}, or take its weights alone (--weights-only, start.state)."
        )
    if experiment.training.ema and not reader.has("ema"):
        raise UserError(
            f"training.ema is set, and {wanted} keeps no average to go on with; set training.ema to null, or take its "
            "weights alone (--weights-only, start.state)."
        )


def shape_differences(experiment: Experiment, parent: Mapping[str, list[int]]) -> list[str]:
    """Return what differs between the tensors of an experiment, traced on the meta device, and those of a parent."""
    own = tensor_shapes(experiment)
    return [
        f"{name} {_shape(own.get(name))} here, {_shape(parent.get(name))} there"
        for name in dict.fromkeys([*own, *parent])
        if own.get(name) != parent.get(name)
    ]


def tensor_shapes(experiment: Experiment) -> dict[str, list[int]]:
    """Return the shape of each parameter and buffer of an experiment, traced on the meta device."""
    with torch.device("meta"):
        network: Any = experiment.family.build_network(experiment.model)
        objective: Any = experiment.family.build_objective(experiment.objective, experiment.model)
    owners = {"network": network, "objective": objective.modules or nn.Module()}
    return {name: list(value.shape) for name, value in (*named_parameters(owners), *persistent_buffers(owners))}


def _check_parent(start: Start, home: Home, resumed: RunFolder | None) -> str:
    """Return the parent's name; `gone` for one that a resumed fork has outlived.

    Raises UserError for a name in the place of an id, a circle of forks, and a parent that may lose its checkpoints.
    """
    records = {record.run_id: record for record in list_runs(home)}
    own = resumed.run_id if resumed else ""
    if resumed and start.run not in records:
        return "gone"
    try:
        found = find_training_run(home, start.run)
    except UserError as error:
        raise UserError(f"start.run={start.run}: {error}") from None
    if found.folder.run_id != start.run:
        raise UserError(
            f"start.run={start.run} names run {found.folder.run_id}; write that id, which no other run has."
        )
    line = [start.run, *(point.run for point in ancestors(records, start.run))]
    if own in line or len(set(line)) < len(line):
        names = " from ".join([own, *line] if own else line)
        raise UserError(
            f"start.run={start.run} makes a circle of forks ({names}); correct start.run in their spec.yaml."
        )
    if found.record.parent and _is_open_population(home.run(found.record.parent)):
        raise UserError(
            f"start.run={start.run} is a trial of sweep {found.record.parent}, whose trials take over each other's "
            "checkpoints until its end; finish the sweep first."
        )
    return found.record.name


def _is_open_population(sweep: RunFolder) -> bool:
    """Return True for a population-based sweep that has not finished."""
    try:
        spec = parse_yaml(read_plain(sweep.path / "sweep.yaml", MAX_BYTES).decode(), "sweep.yaml")
        return spec["scheduler"]["kind"] == "pbt" and read_record(sweep).status != "finished"
    except (OSError, ValueError, UserError, KeyError, TypeError):
        return False  # gone, or no sweep any more


def _describe(experiment: Experiment, start: Start, name: str, parent: CheckpointManifest) -> str:
    """One line about a fork: what it takes over, and what begins anew."""
    point = f"fork of run {start.run} ({name}) at step {start.step:,}"
    if start.state != "all":
        return f"{point}: its {start.state} weights; optimiser, schedules and order of samples begin anew"
    changed = order_changes(parent.spec, experiment)
    order = f"the order of samples begins anew, by {', '.join(changed)}" if changed else "the order of samples goes on"
    return f"{point}: all of its state; schedules and noise go on at that step, {order}"


def _shape(shape: list[int] | None) -> str:
    return "none" if shape is None else "x".join(map(str, shape)) or "1"
