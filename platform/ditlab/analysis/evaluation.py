"""What `ditlab evaluate` finds out: held-out figures, a family's assessment, the quality of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from denoisers.contract import Assessment
from ditlab.analysis.saved_run import SavedRun
from ditlab.cli import assessing
from ditlab.cli.common import building
from ditlab.data.splits import DataSplits
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.quality.evaluator import QualityMeter
from ditlab.training.evaluation import held_out_metrics


def of_held_out_rows(
    saved: SavedRun, network: nn.Module, data: DataSplits, inputs: ModelInputs, num: int, batch_size: int
) -> Assessment:
    """`held_out/...` over the first `num` held-out rows, and `assessed/...` where the family has an assessment."""
    rank = Rank(0, 1, 0, inputs.device)
    with building():
        objective = saved.objective(inputs.device, data.text)
    with torch.no_grad():
        found = held_out_metrics(
            network, objective, data.held_out, inputs, batch_size, num, rank, ControlChannel(rank)
        )  # fmt: skip
    held_out = Assessment({f"held_out/{name}": value for name, value in found.items()}, {}, {})
    own = assessing.assess(saved.experiment(), network, data, num, batch_size, inputs)
    if own is None:
        return held_out
    return joined([held_out, replace(own, metrics={f"assessed/{name}": value for name, value in own.metrics.items()})])


def of_samples(meter: QualityMeter, network: nn.Module, num: int, batch_size: int) -> Assessment:
    """`quality/...` of `num` samples, with a figure of what they show by what was asked for."""
    drawn = meter.draw(network, num, batch_size)
    confusion = meter.confusion(drawn)
    return Assessment(meter.measure(drawn), {}, {"caption_agreement": confusion} if confusion else {})


def joined(parts: Sequence[Assessment]) -> Assessment:
    """One of several, whose names differ."""
    whole = Assessment({}, {}, {})
    for part in parts:
        whole.metrics.update(part.metrics)
        whole.tables.update(part.tables)
        whole.figures.update(part.figures)
    return whole
