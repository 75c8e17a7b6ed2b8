"""Dropout of conditions: decided sample by sample, at the model's rate.

Read off the network itself: a sample has lost its condition where its prediction stays the same, to the bit, under
another condition and the same draws.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ditlab.checking.prove.findings import Compared
from ditlab.checking.prove.life.comparing import bounded
from ditlab.checking.prove.life.plain_model import PlainModel
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import KeyedNoise
from ditlab.training.plan import TrainingRun

DROPOUT = "dropout of conditions"
"""Phase of these comparisons."""
ROWS, PASSES = 32, 16
"""Samples of a pass, and passes: 512 decisions."""
DEVIATIONS = 5.0
"""Standard deviations of a count by which chance may move it: one run in two million is further out."""


def dropout_rate(run: TrainingRun) -> float:
    """Return the share of samples that lose their condition; 0 for a model that drops none."""
    spec = run.experiment.model
    has_condition = len(spec.batch_fields()) > 1
    rates = [float(getattr(spec, name)) for name in type(spec).model_fields if name.endswith("_dropout")]
    return max(rates, default=0.0) if has_condition else 0.0


def compare_dropout(run: TrainingRun, inputs: ModelInputs, model: PlainModel) -> Iterator[Compared]:
    """Yield the comparisons of who lost its condition, in passes of training's own loss under fresh draws."""
    rate = dropout_rate(run)
    if not rate:
        return
    dropped = torch.stack([_dropped(run, inputs, model, number) for number in range(PASSES)]).float()
    yield from compare_decisions(dropped, rate)


def compare_decisions(dropped: Tensor, rate: float) -> Iterator[Compared]:
    """Yield the comparisons of decisions (passes, samples) float, 1 where a sample lost its condition, with a rate.

    Decided sample by sample, the number dropped is binomial, and so is the number of passes whose samples all agree.
    """
    passes, samples = dropped.shape
    num = passes * samples
    spread = DEVIATIONS * math.sqrt(rate * (1 - rate) / num) + 1 / num
    share = float(dropped.mean())
    yield bounded(DROPOUT, f"share of {num} samples", abs(share - rate), spread, f"{share:.3f}, the model's {rate:g}")
    agreeing = float((dropped == dropped[:, :1]).all(1).sum())
    chance = rate**samples + (1 - rate) ** samples
    expected = passes * chance
    bound = DEVIATIONS * math.sqrt(expected * (1 - chance)) + 1
    note = f"{agreeing:.0f} of {passes} passes of {samples} samples; {expected:.1f} by chance"
    yield bounded(DROPOUT, "passes alike on all samples", max(0.0, agreeing - expected), bound, note)


def _dropped(run: TrainingRun, inputs: ModelInputs, model: PlainModel, number: int) -> Tensor:
    """Return which samples (ROWS,) bool of a pass lost their condition."""
    view = run.data.train
    raw = {field.name: view.gather(field.name, np.arange(ROWS) % len(view)) for field in inputs.fields}
    batch = inputs.prepare_batch(raw, view.columns)
    noise = KeyedNoise(run.experiment.seed, "train", number, 0, ROWS, inputs.device)
    conditions = {field.name: field for field in run.experiment.model.batch_fields()}
    one, other = (_predictions(model, each, noise) for each in (batch, _other_conditions(batch, conditions)))
    return torch.stack([(a == b).flatten(1).all(1) for a, b in zip(one, other, strict=True)]).all(0).cpu()


def _other_conditions(batch: dict[str, Tensor], fields: dict[str, Any]) -> dict[str, Tensor]:
    """Return a batch with other conditions: the next class or byte, features of the other sign."""
    changed = dict(batch)
    for name, values in batch.items():
        classes = fields[name].num_classes if name in fields else None
        if name == "image" or name not in fields or values.dtype == torch.bool:
            continue
        if classes:
            changed[name] = torch.where(values > 0, values % (classes - 1) + 1, values) if values.ndim > 1 else (
                values + 1
            ) % classes  # fmt: skip
        elif values.is_floating_point():
            changed[name] = 1 - values
    return changed


def _predictions(model: PlainModel, batch: dict[str, Tensor], noise: KeyedNoise) -> list[Tensor]:
    """Return what the network predicts in the loss's passes, (ROWS, ...) each."""
    kept: list[Tensor] = []
    hook = model.network.register_forward_hook(lambda _, inputs, output: kept.append(_first_tensor(output)))
    try:
        with torch.no_grad():
            model.objective.loss(model.network, batch, noise)
    finally:
        hook.remove()
    return kept


def _first_tensor(output: Any) -> Tensor:
    """Return a network's prediction, which may come with further tensors."""
    return output if isinstance(output, Tensor) else output[0]
