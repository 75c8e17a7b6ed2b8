"""Export of a run's weights as safetensors, with the spec that rebuilds the network."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.checkpoints.store import open_checkpoint
from ditlab.data.text.tokenizer import TOKENIZER_NAME
from ditlab.data.text.tokenizer_files import TOKENIZER_BYTES
from ditlab.errors import UserError, first_line
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.loading import load_experiment
from ditlab.spec.plugin_packages import check_installed, plugin_packages
from ditlab.spec.reading.yaml_text import dump_yaml
from ditlab.storage.files import write_durably
from ditlab.storage.plain_files import read_plain
from ditlab.training.weights_file import ExportFacts, check_fit, file_hash, read_facts, read_weights, write_weights

WEIGHTS_NAME, SPEC_NAME = "weights.safetensors", "spec.yaml"

_log = logging.getLogger("ditlab")


class LoadedExport(NamedTuple):
    """An export's network, ready to use."""

    experiment: Experiment
    network: nn.Module
    """In evaluation mode."""


def export_weights(
    checkpoint: str | Path, folder: Path, averaged: bool = True, tokenizer: Path | None = None
) -> list[Path]:
    """Write `weights.safetensors` (float32, averaged weights where there are any) and `spec.yaml`; return both.

    `checkpoint` is the path or URI of one; `tokenizer`, where that file exists, is copied beside them. The same weights
    and spec give the same bytes. Raises UserError where the checkpoint is not whole, or the disk refuses.
    """
    with open_checkpoint(checkpoint) as reader:
        return write_export(reader.manifest, reader.weights(averaged), folder, tokenizer)


def write_export(
    trained: CheckpointManifest,
    tensors: Mapping[str, torch.Tensor],
    folder: Path,
    tokenizer: Path | None = None,
    facts: Mapping[str, str] = MappingProxyType({}),
) -> list[Path]:
    """Write an export of the network's weights at a checkpoint; `facts` join the metadata of the weights.

    Raises UserError where the disk refuses.
    """
    weights, spec = folder / WEIGHTS_NAME, folder / SPEC_NAME
    metadata = {"format": "pt", "family": str(trained.spec["model"]["family"]), "step": str(trained.step), **facts}
    if packages := plugin_packages(trained.spec):
        metadata["plugins"] = json.dumps(packages, sort_keys=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        beside = [write_durably(spec, dump_yaml(_portable(trained.spec)).encode())]
        if tokenizer and tokenizer.exists():
            beside.append(write_durably(folder / TOKENIZER_NAME, read_plain(tokenizer, TOKENIZER_BYTES)))
        write_weights(weights, tensors, metadata, beside)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written ({first_line(error)}); make room or name another folder."
        ) from error
    return [weights, *beside]


def _portable(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec without the tracking address and checkpoint folder, which belong to the run's machine."""
    return {
        **spec,
        "tracking": {**spec["tracking"], "uri": None},
        "checkpoint": {**spec["checkpoint"], "storage": None},
    }


def load_network(
    spec: Mapping[str, Any], weights: Mapping[str, torch.Tensor], device: torch.device
) -> tuple[Experiment, nn.Module]:
    """Build (experiment, network in evaluation mode) from a resolved spec and weights by name."""
    experiment = class_for(spec).model_validate(dict(spec))
    return experiment, _with_weights(experiment, weights, device)


def _with_weights(experiment: Experiment, weights: Mapping[str, torch.Tensor], device: torch.device) -> nn.Module:
    network: Any = experiment.family.build_network(experiment.model)
    network.load_state_dict(dict(weights))
    built: nn.Module = network.to(device).eval()
    return built


def load_export(folder: Path, device: torch.device, warn: Callable[[str], None] = _log.warning) -> LoadedExport:
    """Load the experiment and the network from a folder that `export_weights` wrote.

    `warn` is called for a spec.yaml that was changed since, and for weights that DiTLab did not write. Raises
    UserError for damaged or altered files, and where a package that the network needs is not installed here.
    """
    check_export(folder, warn)
    return load_checked(folder, device)


def check_export(folder: Path, warn: Callable[[str], None]) -> ExportFacts:
    """Check the hashes of an export's files. Raises and warns as `load_export` does."""
    weights, spec = folder / WEIGHTS_NAME, folder / SPEC_NAME
    facts = read_facts(weights)
    found = {name: _hash(folder / name) for name in (SPEC_NAME, *facts.hashes)}
    changed = [name for name, recorded in facts.hashes.items() if found[name] != recorded]
    for name in changed:
        if name != SPEC_NAME:
            raise UserError(f"{folder / name} was altered: its SHA-256 is not the export's; export the run again.")
        warn(f"{spec} was changed after the export (another SHA-256); the network is built as it says now.")
    if not facts.is_ours:
        warn(f"{weights} was not written by DiTLab: nothing tells whether these are the weights of {spec}.")
    check_installed(facts.packages, f"the export {folder}")
    return facts


def load_checked(folder: Path, device: torch.device) -> LoadedExport:
    """Load an export whose files were checked."""
    experiment, weights = load_experiment(folder / SPEC_NAME), read_weights(folder / WEIGHTS_NAME)
    with torch.device("meta"):  # a spec.yaml that asks for a huge network costs nothing yet
        expected: Any = experiment.family.build_network(experiment.model)
    check_fit(weights, expected.state_dict(), folder / WEIGHTS_NAME)
    return LoadedExport(experiment, _with_weights(experiment, weights, device))


def _hash(path: Path) -> str:
    try:
        return file_hash(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}); export the run again.") from error
