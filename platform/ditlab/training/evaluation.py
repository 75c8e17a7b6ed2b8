"""Held-out figures on fixed times and noise, and sample grids."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from denoisers.contract import BatchField
from denoisers.figures import Figure
from ditlab.data.fields import held_out_batches, to_device
from ditlab.data.sources import DataSplits
from ditlab.data.view import View
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.spec.experiment import Experiment
from ditlab.training.noise import RowNoise, derived_seed
from ditlab.training.rows import conditions_of, shown_rows


def held_out_metrics(
    network: nn.Module,
    objective: Any,
    view: View,
    fields: Sequence[BatchField],
    batch_size: int,
    limit: int,
    rank: Rank,
    channel: ControlChannel,
) -> dict[str, float]:
    """The objective's metrics by name, over the first `limit` held-out samples.

    Times and noise of a sample are the same at every call, in every experiment and whatever the batches, so numbers of
    two runs can be compared.
    Workers take batches in turn, equally many each (ZeRO-3 gathers parameters on all at once).
    """
    rows = view.rows[:limit]
    if not len(rows):
        return {}
    sums: dict[str, float] = {}
    count = 0.0
    for turn in range(0, len(rows), batch_size * rank.world_size):
        first = turn + rank.rank * batch_size
        counts = first < len(rows)
        first = first if counts else 0
        part = dataclasses.replace(view, rows=rows[first : first + batch_size])
        (raw,) = held_out_batches(part, fields, batch_size)
        batch = to_device(raw, fields, view.columns, rank.device)
        size = len(part)
        noise = RowNoise(0, "evaluate", first, rank.device)
        values = objective.metrics(network, batch, noise)
        if counts:
            count += size
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + size * float(value)
    names = sorted({name for group in channel.gather(list(sums)) for name in group})  # type: ignore[attr-defined]
    totals = channel.sum([count, *(sums.get(name, 0.0) for name in names)])
    means = {name: total / totals[0] for name, total in zip(names, totals[1:], strict=True)}
    found: dict[str, float] = objective.summary(means)
    return found


def sample_grid(network: nn.Module, experiment: Experiment, data: DataSplits, num: int, device: torch.device) -> Figure:
    """`num` samples from the same noise at every call, as shown to people; of held-out rows where rows are completed.

    Raises UserError where none can be drawn under the experiment's sampling settings.
    """
    sampler: Any = experiment.sampling.build(experiment.model, experiment.objective, data.text)
    generator = torch.Generator(device).manual_seed(derived_seed(experiment.seed, "samples"))
    conditions = conditions_of(sampler, num, shown_rows(data), experiment.batch_fields())
    tensors = {name: value.to(device) for name, value in conditions.tensors.items()}
    return sampler.show(sampler.sample(network, tensors, conditions.num, generator))
