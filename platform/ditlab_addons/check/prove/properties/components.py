"""Loss components by themselves: they fall along their own gradients, lie above their least values,
and are least where the output predicts their targets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ditlab.inputs.noise import derived_seed
from ditlab_addons.check.prove.findings import Findings
from ditlab_addons.check.prove.properties.checked_run import CheckedRun
from ditlab_addons.check.prove.properties.watching import replaced_output
from ditlab_addons.check.prove.reference import ReferenceModel, ReferenceNoise, Tensors
from ditlab_models.contract import DetachingObjective, KnownTargetObjective

PHASE = "loss components"
WIDTH = 1e-5
"""Length of the step along a component's gradient, in float64."""
SLOPE = 1e-3
"""Share by which the loss may fall more or less than its gradient says, its curvature."""
BELOW = 1e-9
"""Distance below a component's least value that float64 rounding explains."""
NEAR = 0.01
"""Distance of outputs near the targets, relative to these."""


@dataclass(frozen=True)
class LossPass:
    """One pass of an objective's loss, in float64."""

    model: ReferenceModel
    batch: Tensors
    noise: ReferenceNoise

    def components(self) -> dict[str, Tensor]:
        """Compute the loss components, unweighted, with the network's weights of now."""
        return dict(self.model.objective.loss(self.model.network, self.batch, self.noise))


def compare_components(checked: CheckedRun) -> None:
    """Compare each loss component by itself: it falls along its own negative gradient as that says,
    lies above its least value, and is least at the output that predicts its targets."""
    experiment = checked.experiment
    findings = checked.findings
    one = loss_pass(checked)
    objective = one.model.objective
    components = one.components()
    weights = checked.reference.spec["objective"]["weights"]
    trained = [name for name in components if weights.get(name)]
    detached: list[str] = []
    if isinstance(objective, DetachingObjective):
        detached = list(objective.detaching)
    for name in trained:
        if name not in detached:
            compare_slope(one, name, float(weights[name]), findings)
    least = experiment.objective.least_losses(experiment.model)
    for name in trained:
        if name not in least:
            findings.unchecked.append(
                f"the sign of {name}, as the objective's spec gives no least value (least_losses)"
            )
            continue
        below = max(0.0, least[name] - float(components[name].detach()))
        findings.near(PHASE, f"{name} is at least {least[name]:g}", below, BELOW)
    if not isinstance(objective, KnownTargetObjective):
        findings.unchecked.append(
            "that the loss is least at its targets, as the objective does not give them "
            "(best_output)"
        )
        return
    names = [name for name in trained if name in least and name not in detached]
    best = objective.best_output(one.batch, one.noise)
    compare_targets(one, best, names, experiment.seed, findings)


def loss_pass(checked: CheckedRun) -> LossPass:
    """Return the loss of the first training rows."""
    model = checked.model(torch.float64)
    batch = {}
    for name, each in checked.training_rows().items():
        batch[name] = each
        if each.is_floating_point():
            batch[name] = each.double()
    return LossPass(model, batch, replace(checked.training_noise(0), dtype=torch.float64))


def compare_slope(one: LossPass, name: str, weight: float, findings: Findings) -> None:
    """Compare the fall of a weighted component along its negative gradient with the gradient's
    norm."""
    parameters = [each for each in one.model.module.parameters() if each.requires_grad]
    value = weight * one.components()[name]
    gradients = torch.autograd.grad(value, parameters, materialize_grads=True)
    norm = math.sqrt(sum(float(each.square().sum()) for each in gradients))
    what = f"{name} falls along its negative gradient"
    if not norm:
        findings.near(PHASE, what, math.inf, SLOPE, "its gradient is 0")
        return
    kept = [each.detach().clone() for each in parameters]
    ends = []
    with torch.no_grad():
        for width in (WIDTH, -WIDTH):
            for parameter, gradient, old in zip(parameters, gradients, kept, strict=True):
                parameter.copy_(old - width * gradient / norm)
            ends.append(float(weight * one.components()[name]))
        for parameter, old in zip(parameters, kept, strict=True):
            parameter.copy_(old)
    fall = (ends[1] - ends[0]) / (2 * WIDTH)
    detail = f"it falls by {fall:.6g} a unit of length, the gradient's norm is {norm:.6g}"
    rounding = 100 * max(map(abs, ends)) * 2.0**-53 / WIDTH / norm
    findings.near(PHASE, what, abs(fall / norm - 1), SLOPE + rounding, detail)


def compare_targets(
    one: LossPass, best: Tensor, names: Sequence[str], seed: int, findings: Findings
) -> None:
    """Compare components at the output that predicts their targets, `best` (batch, ...), with those
    at outputs away from it."""
    generator = torch.Generator().manual_seed(derived_seed(seed, "prove", "targets"))
    drawn = torch.randn(best.shape, generator=generator, dtype=torch.float64).to(best)
    drawn = drawn * best.double().square().mean().sqrt()
    outputs = [best, -best]
    outputs += [best + width * drawn for width in (1.0, -1.0, NEAR, -NEAR)]
    values: dict[str, list[float]] = {name: [] for name in names}
    for output in outputs:
        with torch.no_grad(), replaced_output(one.model.network, output.expand_as):
            found = one.components()
        for name in names:
            values[name].append(float(found[name]))
    for name, (least, *others) in values.items():
        if all(each == least for each in others):
            continue  # it is not of the output, such as an alignment of features
        wrong = [
            f"{least:.6g} at its targets, {each:.6g} away from them"
            for each in others
            if not least < each
        ]
        findings.same(PHASE, f"{name} is least at its targets", wrong)
