"""Export of adapters alone, as peft writes them (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from ditlab.analysis.averages import ExportSource
from ditlab.analysis.user_errors import output_folder
from ditlab.checkpoints.reader import CheckpointReader
from ditlab.errors import UserError, cannot_write
from ditlab.storage.files import replacing, write_durably
from ditlab_models.layers.lora import A, B, adapted_names

PEFT_WEIGHTS = "adapter_model.safetensors"
PEFT_CONFIG = "adapter_config.json"


def write_peft(source: ExportSource, folder: Path) -> list[Path]:
    """Write a run's adapters into a folder. Raises UserError as `write_adapter` does."""
    return write_adapter(source.saved.checkpoint, source.tensors, output_folder(folder))


def write_adapter(
    reader: CheckpointReader, tensors: Mapping[str, Tensor], folder: Path
) -> list[Path]:
    """Write a run's adapters as peft does: `adapter_model.safetensors` and `adapter_config.json`;
    return both.

    `tensors` are the network's, not merged. Raises UserError for a run without adapters, or one
    that trained more of the network than these, and where the disk refuses.
    """
    manifest = reader.manifest
    lora = manifest.spec["training"].get("lora")
    if lora is None:
        raise UserError(
            "--format peft writes the adapters of training.lora, and this run has none; leave "
            "--format out."
        )
    names = adapted_names(tensors)
    adapters = {f"{name}.{kind}": tensors[f"{name}.{kind}"] for name in names for kind in (A, B)}
    beside = {f"network.{name}" for name in tensors} - {f"network.{name}" for name in adapters}
    trained = sorted(beside - reader.frozen() - set(manifest.buffers))
    if trained:
        raise UserError(
            f"--format peft writes adapters alone, and this run trained {len(trained)} tensors "
            f"of the base too, such as {trained[0].removeprefix('network.')} "
            "(training.freeze); leave --format out for the merged weights."
        )
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": lora["rank"],
        "lora_alpha": lora["alpha"],
        "lora_dropout": 0.0,
        "target_modules": sorted(names),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "modules_to_save": None,
    }
    weights = {
        f"base_model.model.{name}.weight": each.contiguous() for name, each in adapters.items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / PEFT_WEIGHTS) as file:
            file.write(save(weights, metadata={"format": "pt"}))
        return [
            folder / PEFT_WEIGHTS,
            write_durably(folder / PEFT_CONFIG, json.dumps(config, indent=2).encode()),
        ]
    except OSError as error:
        raise cannot_write(folder, error, "name another folder") from error
