"""Tensors of a batch that its objective computes on the host, where reading a value waits for nothing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from denoisers.contract import PreparingObjective
from ditlab.data.loading.transfer import send
from ditlab.data.stores.manifest import Column
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import KeyedNoise

CPU = torch.device("cpu")


def prepare_on_host(
    objective: Any,
    raw: Mapping[str, Tensor],
    columns: Mapping[str, Column],
    inputs: ModelInputs,
    noise: KeyedNoise,
    rows: slice | None = None,
) -> dict[str, Tensor]:
    """Return what an objective prepares of rows in the store's dtype, on the noise's device; {} if it prepares nothing.

    `rows` None: all of `raw`. The numbers that it draws are those of a CPU, whatever the device.
    """
    if not isinstance(objective, PreparingObjective):
        return {}
    batch = inputs.only(objective.prepared_from).prepare_batch(raw, columns, CPU, rows)
    prepared = objective.prepare(batch, replace(noise, device=CPU))
    return {name: send(values, noise.device) for name, values in prepared.items()}
