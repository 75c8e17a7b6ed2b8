"""Draws of training: random numbers of the loss, and the network's inputs that are made of them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ditlab_addons.check.prove.findings import Findings
from ditlab_addons.check.prove.properties.checked_run import CheckedRun
from ditlab_addons.check.prove.properties.draws import (
    RowDraws,
    add_draws,
    compare_draws,
    compare_law,
)
from ditlab_addons.check.prove.properties.watching import (
    WatchedNoise,
    first_numbers,
    watched_calls,
)
from ditlab_addons.check.prove.reference import Tensors
from ditlab_addons.check.prove.steps import DEVIATIONS
from ditlab_models.contract import InputLaw

PHASE = "laws of draws"
PASSES = 80
"""Passes of the loss: 2,560 times are drawn."""
ROUNDING = 1e-9
"""Difference of two mean likenesses that is none."""


def compare_training_draws(checked: CheckedRun) -> None:
    """Compare the numbers that the loss draws in many passes, and the network's inputs whose laws
    the objective's spec gives, with these laws; and that rows and steps have their own."""
    experiment = checked.experiment
    findings = checked.findings
    model = checked.model(torch.float32)
    known = inspect.signature(model.network.forward).parameters
    laws = [
        law for law in experiment.objective.input_laws(experiment.model) if law.argument in known
    ]
    if not laws:
        findings.unchecked.append(
            "the law of training times, as the objective's spec gives none of an input of the "
            "network (input_laws)"
        )
    batch = checked.training_rows()
    draws: dict[str, RowDraws] = {}
    calls: list[Tensors] = []
    for step in range(PASSES):
        noise = WatchedNoise(checked.training_noise(step))
        with watched_calls(model.network, is_last=True) as seen:
            model.objective.loss(model.network, batch, noise)
        calls += seen
        add_draws(draws, noise.drawn)
    compare_draws(PHASE, "training", draws, findings)
    for law in laws:
        compare_inputs(law, calls, findings)
    compare_ends(checked, batch, calls)


def compare_inputs(law: InputLaw, calls: Sequence[Tensors], findings: Findings) -> None:
    """Compare an input of the network's calls with its law, and that rows have their own."""
    inputs = [first_numbers(call[law.argument]).numpy() for call in calls]
    what = f"{law.argument} of the network, {law.law}"
    compare_law(PHASE, what, "", np.concatenate(inputs), law.cdf, findings)
    shared = [
        f"all {len(each)} rows of a pass have {each[0]:.4g}"
        for each in inputs
        if len(each) > 2 and len(set(each.tolist())) == 1
    ]
    findings.same(PHASE, f"{law.argument} of each row", shared)


def compare_ends(checked: CheckedRun, batch: Tensors, calls: Sequence[Tensors]) -> None:
    """Compare the network's inputs near the time at which sampling begins with those near its end:
    they are less like the data."""
    experiment = checked.experiment
    times = experiment.sampling.evaluation_times(experiment.model, experiment.objective)
    x = next(iter(calls[0].values()))
    data = next((each.cpu() for each in batch.values() if each.shape == x.shape), None)
    if times is None or times.argument not in calls[0] or data is None:
        return
    drawn = np.concatenate([first_numbers(call[times.argument]).numpy() for call in calls])
    from_start = np.abs(drawn - times.values[0])
    alike = np.concatenate([likeness(next(iter(call.values())), data).numpy() for call in calls])
    order = np.argsort(from_start)
    third = len(order) // 3
    near = alike[order[:third]]
    far = alike[order[-third:]]
    error = math.sqrt((near.var() + far.var()) / third)
    detail = f"likeness {near.mean():.3g} where sampling begins, {far.mean():.3g} at the end"
    checked.findings.near(
        PHASE,
        "inputs are noise where sampling begins",
        max(0.0, float(near.mean() - far.mean())),
        DEVIATIONS * error + ROUNDING,
        detail,
    )


def likeness(x: Tensor, data: Tensor) -> Tensor:
    """Return how like each sample is to its data, (batch,): the cosine, or the share of equal
    tokens."""
    if not x.is_floating_point():
        return (x == data).flatten(1).double().mean(1)
    return nn.functional.cosine_similarity(x.flatten(1).double(), data.flatten(1).double())
