"""Checks of an experiment before its run exists; each raises UserError and leaves nothing behind."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from denoisers.contract import Spec
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.named_stores import store_folder
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder, followed
from ditlab.runs.launch import checkpoint_store
from ditlab.spec.experiment import NOT_CONTENT, Experiment
from ditlab.spec.files import load_recorded_experiment
from ditlab.spec.mixture import MixtureData
from ditlab.spec.uris import refuse_secrets
from ditlab.tracking.records import read_record

RESUMABLE_CHANGES = ("training.steps", "training.epochs", "encoders.cache", "encoders.compile")
"""Content fields that a resumed run may change: a longer run is the same experiment, and the rest costs only time."""


def portable(experiment: Experiment, tracking_uri: str | None, home: Home) -> Experiment:
    """The same experiment with absolute paths and a tracking address, for other working directories and environments.

    An address of None stays None, so that DITLAB_HOME can be moved. Nothing is validated again.
    """
    spec = absolute_paths(experiment.to_dict(), home)
    changed = {}
    for name in ("data", "checkpoint", "encoders"):
        section = getattr(experiment, name)
        changed[name] = _with_paths(section, spec[name])
        if isinstance(section, MixtureData):
            parts = {part: _with_paths(section.parts[part], spec[name]["parts"][part]) for part in section.parts}
            changed[name] = section.model_copy(update={"parts": parts})
    return tracked_at(experiment.model_copy(update=changed), tracking_uri)


def _with_paths(section: Spec, values: Mapping[str, Any]) -> Spec:
    """Return a section of a spec with the paths that its plain values hold."""
    own = section.model_dump(mode="json")
    return section.model_copy(update={key: value for key, value in values.items() if value != own[key]})


def tracked_at(experiment: Experiment, uri: str | None) -> Experiment:
    """The same experiment, tracked at another address. Raises UserError for an address that holds a secret."""
    try:
        refuse_secrets({"tracking": {"uri": uri}})
    except ValueError as error:
        raise UserError(str(error)) from None
    return experiment.model_copy(update={"tracking": experiment.tracking.model_copy(update={"uri": uri})})


def absolute_paths(spec: Mapping[str, Any], home: Home) -> dict[str, Any]:
    """Mapping of a spec, whole or in part, with its paths and store names made absolute; URIs stay."""
    found = dict(spec)
    for section, key in (("data", "path"), ("checkpoint", "storage")):
        part = found.get(section)
        if isinstance(part, Mapping) and isinstance(value := part.get(key), str) and "://" not in value:
            place = store_folder(value, home) if section == "data" else followed(value)
            found[section] = {**part, key: str(place)}
    if isinstance(data := found.get("data"), Mapping) and isinstance(parts := data.get("parts"), Mapping):
        found["data"] = {
            **data,
            "parts": {name: absolute_paths({"data": part}, home)["data"] for name, part in parts.items()},
        }
    if isinstance(encoders := found.get("encoders"), Mapping):
        folders = {key: followed(encoders[key]) for key in ("text", "image") if encoders.get(key)}
        # the rest are names on the Hugging Face hub
        found["encoders"] = {**encoders, **{key: str(path) for key, path in folders.items() if path.is_dir()}}
    return found


def check_devices(experiment: Experiment, local: bool, remote: bool) -> None:
    """Raises UserError for more GPUs or processes than this machine has; a cluster is checked once connected."""
    workers, gpus = experiment.resources.min_workers, experiment.resources.gpus_per_worker
    if local and workers > 1:
        raise UserError(
            f"resources.workers={workers} needs Ray, and --local is one process; set resources.workers to 1, or leave "
            "--local out."
        )
    have = torch.cuda.device_count()
    if not remote and gpus * workers > have:
        needed = f"{gpus * workers:g} GPU{'s' if gpus * workers > 1 else ''}"
        raise UserError(
            f"resources.workers={workers} with resources.gpus_per_worker={gpus:g} needs {needed}, "
            f"this machine has {have}; set resources.gpus_per_worker=0, or name a cluster with --address."
        )


def check_network(experiment: Experiment) -> None:
    """Raises UserError where this machine lacks the configured network interface.

    Nodes of a cluster are checked by `ditlab.cluster.nodes.survey`, once connected.
    """
    interface = experiment.resources.network.interface
    if interface and interface not in (existing := interface_names()):
        raise UserError(missing_interface(interface, f"node {socket.gethostname()}", existing))


def check_storage(experiment: Experiment) -> None:
    """Raises UserError where `checkpoint.storage` cannot be written."""
    if storage := experiment.checkpoint.storage:
        CheckpointStore.at(storage).check_writable()


def check_same_content(experiment: Experiment, folder: RunFolder) -> None:
    """Raises UserError where a resumed run would change its content. A longer run is the same experiment."""
    old = load_recorded_experiment(folder.spec).to_dict()
    new = experiment.to_dict()
    changed = [
        f"{path}={after!r} (was {before!r})"
        for path, before, after in _differences(old, new)
        if path.split(".")[0] not in NOT_CONTENT and path not in RESUMABLE_CHANGES
    ]
    if changed:
        raise UserError(
            f"run {folder.run_id} was started as another experiment: {', '.join(changed)}; "
            "resume it with its own spec, or start a new run without --resume."
        )
    if (before := old["checkpoint"]["storage"]) != (after := new["checkpoint"]["storage"]):
        raise UserError(
            f"checkpoint.storage={after} is not where run {folder.run_id} keeps its checkpoints ({before}); "
            f"set checkpoint.storage={'null' if before is None else before}."
        )
    store = checkpoint_store(folder, after)
    longest, reached = store.last_step(), read_record(folder).step
    if reached > 0 and not store.steps():
        raise UserError(
            f"run {folder.run_id} had reached step {reached}, and there is no checkpoint at {store.location}: going on "
            "would begin anew. Bring the checkpoints back (is the disk mounted?), or start a new run without --resume."
        )
    steps = new["training"]["steps"]
    if steps is not None and steps < longest:
        raise UserError(
            f"training.steps={steps} is behind run {folder.run_id}, which is at step {longest}; give more steps."
        )


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


def interface_names() -> list[str]:
    """Names of this machine's network interfaces."""
    return [name for _, name in socket.if_nameindex()]


def missing_interface(interface: str, nodes: str, existing: Sequence[str]) -> str:
    """Error message for nodes that lack the configured interface.

    Args:
        interface: value of `resources.network.interface`.
        nodes: the nodes, as `node a` or `nodes a and b`.
        existing: names of the interfaces that these nodes have.
    """
    return (
        f"resources.network.interface={interface} does not exist on {nodes}, which has {', '.join(existing)}; name one "
        "that every node has, or set it to null."
    )
