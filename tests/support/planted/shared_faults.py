"""Faults in code that engine and reference share, planted in this process: a comparison of the two
sees none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Any

import numpy as np
import torch

from ditlab.data import splits
from ditlab.data.loading import order
from ditlab.engine.engine import Engine
from ditlab.inputs import noise
from ditlab.training import evaluation
from ditlab_addons.check.prove import reference
from ditlab_models import parameters
from ditlab_models.dit.network import DiT
from ditlab_models.dlm import sampling as dlm_sampling
from ditlab_models.dlm.objective import DLMObjective
from ditlab_models.parameters import ParameterRole
from ditlab_models.pixelhdm import sampling as pixelhdm_sampling
from ditlab_models.processes import flow, flow_sampling, noise_prediction
from ditlab_models.processes.noise_prediction import NoiseObjective
from ditlab_models.processes.specs import LogitNormalTime, TokenNoiseSchedule, UniformTime
from ditlab_models.region import objective as region_objective
from ditlab_models.region.objective import RegionObjective
from support.trainings.family_specs import GAUSSIAN

Changed = Callable[..., Any]
"""Replacement of a function: it gets the function, then its arguments."""


@dataclass(frozen=True)
class SharedFault:
    """A fault, and what a proof must say of it."""

    name: str
    owner: Any
    attribute: str
    """Text that `change` is put around."""
    change: Changed
    named: str
    """Regular expression of the sentence on one of the findings, `First off: ` left out; empty for
    a fault that no check sees."""
    family: str = "dit"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the family's smallest spec."""
    others: tuple[Any, ...] = ()
    """Further owners of the attribute."""

    def plant(self, monkeypatch: Any) -> None:
        """Put the fault in its places."""
        name = self.attribute
        for owner in (self.owner, *self.others):
            if isinstance(owner, dict):
                monkeypatch.setitem(owner, name, _around(owner[name], self.change))
            else:
                monkeypatch.setattr(owner, name, _around(getattr(owner, name), self.change))


def _around(original: Callable[..., Any], change: Changed) -> Callable[..., Any]:
    def changed(*given, **named):
        return change(original, *given, **named)

    return changed


def role_in_place_of(role: str, other: str) -> Changed:
    def change(original, *given):
        found = original(*given)
        return ParameterRole(other) if found.role == role else found  # type: ignore[arg-type]

    return change


def result(change: Callable[[Any], Any]) -> Changed:
    """Change what a function returns."""
    return lambda original, *given, **named: change(original(*given, **named))


def without_last_time(original, velocity, x, times, *record):
    return original(velocity, x, times[:-1], *record)


def half_a_last_step(original, velocity, x, times, *record):
    shorter = times.clone()
    shorter[-1] = (times[-1] + times[-2]) / 2
    return original(velocity, x, shorter, *record)


def no_last_step(original, velocity, x, times, *record):
    shorter = times.clone()
    shorter[-1] = times[-2]
    return original(velocity, x, shorter, *record)


def guidance(formula: Callable[[Any, Any, float], Any]) -> Changed:
    """Predict by another formula of the conditional prediction, the other one and the scale."""

    def change(original, predict, x, t, own, negative, scale, *given, **named):
        return formula(predict(x, t, own), predict(x, t, negative), scale)

    return change


def training_rows(original, network, objective, view, *given):
    others = np.setdiff1d(np.arange(len(view.store)), view.rows)
    return original(network, objective, replace(view, rows=others), *given)


def all_rows_trained(original, num, *given):
    _, held_out = original(num, *given)
    return np.arange(num), held_out


EVALUATIONS = count()


def frozen_blocks(original, self, *given, **named):
    original(self, *given, **named)
    self.blocks[0].requires_grad_(False)


def frozen_in_the_engine(original, self, module, *given, **named):
    module.network.blocks[0].requires_grad_(False)
    original(self, module, *given, **named)


def first_alone(values):
    return values[:1].expand(values.shape)


def of_one_pixel(values):
    return values.flatten(1)[:, :1].view(-1, *(1,) * (values.ndim - 1)).expand(values.shape)


def with_replacement(_, seed, epoch, length):
    return np.random.default_rng((seed, epoch)).integers(length, size=length)


def without_step(original, *key):
    if key[1:2] == ("train",):
        key = (*key[:2], *key[3:])
    return int(original(*key))


def scaled_losses(name: str) -> Changed:
    return result(lambda losses: losses | {name: -losses[name]})


EULER = (flow_sampling.SOLVERS, "euler")
FLOW_GUIDANCE = (flow_sampling, "guided_prediction")
LOGIT_NORMAL = {"objective__time": {"kind": "logit_normal", "std": 0.5}}
SHARED_FAULTS = (
    # roles, and what trains
    SharedFault("biases decay as matrices", parameters, "_role",
                role_in_place_of("bias", "matrix"), "parameters, roles.*bias has the role matrix"),
    SharedFault("norms decay as matrices", parameters, "_role",  # ServiceNow/Fast-LLM#542
                role_in_place_of("norm", "matrix"), "parameters, roles.*norm.*matrix", "region"),
    SharedFault("embeddings are matrices", parameters, "_role",
                role_in_place_of("embedding", "matrix"), "parameters, roles.*not embedding"),
    # nttcslab/byol-a#7
    SharedFault("a block frozen in the network", DiT, "__init__", frozen_blocks,
                "parameters, those that do not train"),
    SharedFault("a block frozen in the engine", Engine, "__init__", frozen_in_the_engine,
                "parameters, those that do not train"),
    # laws of draws
    # ArchiMickey/Just-a-DiT#4
    SharedFault("logit-normal times in place of uniform ones", UniformTime, "draw",
                lambda _, self, noise_source, num: noise_source.normal("time", (num,)).sigmoid(),
                "laws of draws, t of the network"),
    SharedFault("times lean to the data", UniformTime, "draw", result(torch.square),
                "laws of draws, t of the network"),
    SharedFault("a density's width is ignored", LogitNormalTime, "draw",
                lambda original, self, *given: original(self.model_copy(update={"std": 1.0}), *given),
                "laws of draws, t of the network", settings=LOGIT_NORMAL),
    SharedFault("times keep from both ends", LogitNormalTime, "draw",
                result(lambda t: t.clamp(0.3, 0.7)), "laws of draws, t of the network", "pixelhdm"),
    SharedFault("timesteps of half the schedule", NoiseObjective, "timestep",
                result(lambda t: t // 2), "laws of draws, t of the network", settings=GAUSSIAN),
    SharedFault("windows at early timesteps", RegionObjective, "_corrupt",
                lambda original, self, x, mask, time, noise: original(self, x, mask, time**2, noise),
                "laws of draws, t of the network", "region"),
    SharedFault("noise levels too high", TokenNoiseSchedule, "sigma",
                result(lambda sigma: 1.5 * sigma), "laws of draws, sigma of the network", "dlm"),
    SharedFault("one time for a whole batch", UniformTime, "draw", result(first_alone),
                "laws of draws, t of each row"),
    SharedFault("noise from a uniform law", noise._Drawn, "normal",
                lambda _, self, name, shape: 12**0.5 * (self.uniform(name, shape) - 0.5),
                "laws of draws, numbers of training of normal noise|laws of draws, numbers.*normal"),
    SharedFault("noise alike in all pixels", noise._Drawn, "normal", result(of_one_pixel),
                "laws of draws, numbers of a row alike"),
    SharedFault("noise alike in all steps", noise, "derived_seed", without_step,
                "laws of draws, each row's own in training", others=(reference,)),
    SharedFault("data and noise change ends", flow, "interpolate",
                lambda original, data, noise, t, *given: original(noise, data, t, *given),
                "laws of draws, inputs are noise"),
    # loss components
    SharedFault("the loss has another sign", flow.COMPONENTS, "velocity",
                result(torch.neg), "loss components, velocity is at least 0"),
    SharedFault("1 + cosine in place of 1 - cosine", flow.COMPONENTS, "direction",
                result(lambda value: 2 - value), "loss components, direction is least"),
    SharedFault("the target has another sign", flow, "velocity_target", result(torch.neg),
                "loss components, velocity is least at its targets"),
    SharedFault("the score entropy has another sign", DLMObjective, "loss",
                scaled_losses("score_entropy"), "loss components, score_entropy is at least", "dlm"),
    SharedFault("targets of other regions", region_objective, "_sums",
                lambda original, output, batch, *given: original(
                    output, {**batch, "regions": batch["regions"].roll(1, 1)}, *given),
                "loss components, masked is least at its targets", "region"),
    SharedFault("the noise's error has a constant", noise_prediction, "velocity_errors",
                result(lambda value: value - 10), "loss components, noise is at least 0",
                settings=GAUSSIAN),
    # held-out rows and draws
    # andpol5/credit-classifier#1
    SharedFault("evaluation on training rows", evaluation, "held_out_sums", training_rows,
                "held-out rows, those that evaluation reads"),
    SharedFault("held-out rows are trained on", splits, "hold_out_rows", all_rows_trained,
                "held-out rows, none is trained on"),
    SharedFault("held-out noise by place in the batch", evaluation, "fixed_noise",
                lambda original, first, *given: original(0, *given), "held-out draws"),
    SharedFault("held-out noise of each evaluation", evaluation, "fixed_noise",
                lambda original, *given: replace(original(*given), seed=next(EVALUATIONS)),
                "held-out draws, alike in two evaluations"),
    SharedFault("held-out noise alike on all rows", noise.RowNoise, "_draw",
                result(first_alone), "held-out draws, each row's own"),
    # order
    # pytorch/pytorch#31771
    SharedFault("every epoch in one order", order, "epoch_order",
                lambda original, seed, epoch, length: original(seed, 0, length),
                "order of epochs, epochs differ"),
    SharedFault("samples with replacement", order, "epoch_order", with_replacement,
                "order of epochs, each row once"),
    # sampler
    SharedFault("the last step is left out", *EULER,
                without_last_time, "sampler, times"),
    SharedFault("the last step is half a step", *EULER,
                half_a_last_step, "sampler, sum of its steps"),
    # huggingface/diffusers#6477
    SharedFault("the last step has no size", *EULER,
                no_last_step, "sampler, sum of its steps"),
    # invoke-ai/InvokeAI#900
    SharedFault("one step too few", *EULER,
                lambda original, velocity, x, times, *record: original(
                    velocity, x, torch.linspace(1, 0, len(times) - 1, dtype=times.dtype), *record),
                "sampler, times", "unet"),
    # lucidrains/rectified-flow-pytorch#14
    SharedFault("sampling goes towards the noise", *EULER,
                lambda original, velocity, *given: original(lambda x, t: -velocity(x, t), *given),
                "sampler, sum of its steps"),
    SharedFault("the last timestep is not taken", noise_prediction, "timesteps",
                lambda original, num, taken: original(num, taken + 1)[:-1], "sampler, times",
                settings=GAUSSIAN),
    SharedFault("the last noise stays in a text", dlm_sampling, "reverse_steps",
                result(lambda steps: steps[:-1]), "sampler, times", "dlm"),
    SharedFault("an image's last step is left out",
                pixelhdm_sampling.SOLVERS, "heun", without_last_time, "sampler, times",
                "pixelhdm"),
    # guidance
    # threestudio-project/threestudio#127
    SharedFault("guidance + 1", *FLOW_GUIDANCE, guidance(lambda v, u, scale: v + scale * (v - u)),
                "guidance, scale 0"),
    SharedFault("guidance away from the condition", *FLOW_GUIDANCE,
                guidance(lambda v, u, scale: v + scale * (u - v)), "guidance, scale 0"),
    SharedFault("guidance by the square of its scale", *FLOW_GUIDANCE,
                guidance(lambda v, u, scale: u + scale**2 * (v - u)), "guidance, linear"),
    SharedFault("guidance - 1", pixelhdm_sampling, "guided_prediction",
                guidance(lambda v, u, scale: u + (scale - 1) * (v - u)), "guidance, scale 0",
                "pixelhdm"),
    SharedFault("the condition is not read", *FLOW_GUIDANCE, guidance(lambda v, u, scale: u),
                "guidance, conditions change"),
    # seen by none
    SharedFault("Heun's steps are Euler's", flow_sampling.SOLVERS, "heun",
                lambda original, velocity, x, times, *record: _euler_at_heuns_times(
                    velocity, x, times), "", settings={"sampling__solver": "heun"}),
)  # fmt: skip
"""Faults by what they are of; a proof finds each but those without words."""


def _euler_at_heuns_times(velocity, x, times):
    for t, t_next in pairwise(times):
        first = velocity(x, t)
        velocity(x + (t_next - t) * first, t_next)
        x = x + (t_next - t) * first
    return x
