"""Export of a run's weights as safetensors, with the spec that rebuilds the network."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from ditlab.checkpoints.store import open_checkpoint
from ditlab.data.text.tokenizer import TOKENIZER_NAME
from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.plugin_packages import check_installed, plugin_packages
from ditlab.spec.reading.yaml_text import dump_yaml, parse_yaml


def export_weights(
    checkpoint: str | Path, folder: Path, averaged: bool = True, tokenizer: Path | None = None
) -> list[Path]:
    """Write `weights.safetensors` (float32, averaged weights where there are any) and `spec.yaml`; return both.

    `checkpoint` is the path or URI of one; `tokenizer`, where that file exists, is copied beside them.
    Raises UserError where the checkpoint is not whole, or the disk refuses.
    """
    with open_checkpoint(checkpoint) as reader:
        trained, tensors = reader.manifest, reader.weights(averaged)
    weights, spec = folder / "weights.safetensors", folder / "spec.yaml"
    metadata = {"format": "pt", "family": str(trained.spec["model"]["family"]), "step": str(trained.step)}
    if packages := plugin_packages(trained.spec):
        metadata["plugins"] = json.dumps(packages)
    partial = weights.with_suffix(".partial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, metadata=metadata)
        spec.write_text(dump_yaml(_portable(trained.spec)), encoding="utf-8")
        carried = (
            [Path(shutil.copyfile(tokenizer, folder / TOKENIZER_NAME))] if tokenizer and tokenizer.exists() else []
        )
        partial.replace(weights)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{folder} cannot be written ({reason}); make room or name another folder.") from error
    return [weights, spec, *([folder / TOKENIZER_NAME] if carried else [])]


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
    network: Any = experiment.family.build_network(experiment.model)
    network.load_state_dict(dict(weights))
    return experiment, network.to(device).eval()


def load_export(folder: Path, device: torch.device) -> tuple[Experiment, nn.Module]:
    """Load (experiment, network in evaluation mode) from a folder that `export_weights` wrote.

    Raises UserError where a package that the network needs is not installed here.
    """
    with safe_open(folder / "weights.safetensors", framework="pt") as weights:
        packages = json.loads((weights.metadata() or {}).get("plugins", "{}"))
    check_installed(packages, f"the export {folder}")
    spec = parse_yaml((folder / "spec.yaml").read_text(encoding="utf-8"), str(folder / "spec.yaml"))
    return load_network(spec, load_file(folder / "weights.safetensors"), device)
