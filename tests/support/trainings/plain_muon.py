"""Training with Muon or grouped AdamW as a script would write it, for engines to be compared with."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from denoisers.parameters import parameter_roles
from ditlab.spec.experiment import Experiment
from support.trainings.engines import Pass, State, Step, batch_of, module_for, noise_of
from support.trainings.workers import tiny

LR = 1e-3  # of the script of steps
SCRIPT = [Step([[Pass(0), Pass(1)]]), Step([[Pass(2), Pass(3)]]), Step([[Pass(4), Pass(5)]])]


def muon(stage: int = 0, model: Any = None, **fields: Any) -> Experiment:
    """`small` with Muon."""
    return small(stage, model, kind="muon", adamw_lr=2 * LR, **fields)


def small(stage: int, model: Any = None, zero: Any = None, precision: str = "fp32", **fields: Any) -> Experiment:
    """A tiny experiment whose clipping is at work, with groups of parameters; `zero`: more of that section."""
    optimizer = {"lr": LR, "weight_decay": 0.1, "no_decay": ["norm", "bias"], **fields}
    changes = {"model": model} if model else {"model__depth": 1}
    training = {"steps": 6, "ema": {"decay": 0.9}, "clip": {"kind": "norm", "max_norm": 0.05}, "precision": precision}
    return tiny(engine__zero={"stage": stage, **(zero or {})}, training=training, optimizer=optimizer, **changes)


def five_iterations(matrix: Tensor) -> Tensor:
    """The published iteration, in float64, on one matrix with as many columns as rows or more."""
    x = matrix.double() / (matrix.double().norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    return x


def plain_muon(matrix: Tensor) -> Tensor:
    return five_iterations(matrix) if matrix.shape[0] <= matrix.shape[1] else five_iterations(matrix.T).T


def plain_training(experiment: Any, script: Sequence[Step]) -> dict[str, Tensor]:
    """Weights by name after a script, by a loop of its own: autograd, clipping, Muon one matrix at a time, AdamW."""
    spec, module = experiment.optimizer, module_for(experiment)
    roles, parameters = parameter_roles(module), dict(module.named_parameters())
    is_muon = {name: spec.kind == "muon" and roles[name].role in ("matrix", "convolution") for name in parameters}
    rest = [
        {
            "params": [parameters[name]],
            "lr": ((getattr(spec, "adamw_lr", None)) or spec.lr) * getattr(spec.lr_factors, roles[name].role),
            "weight_decay": 0.0 if roles[name].role in spec.no_decay else spec.weight_decay,
        }
        for name in parameters
        if not is_muon[name]
    ]
    adamw = torch.optim.AdamW(rest, betas=spec.betas, eps=spec.eps)
    momenta = {name: torch.zeros_like(each) for name, each in parameters.items() if is_muon[name]}
    for number, step in enumerate(script):
        passes = [part for worker in step.passes for part in worker]
        module.zero_grad()
        for part in passes:
            (module("loss", batch_of(number, part), noise_of(number, part))[0] / len(passes)).backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), experiment.training.clip.max_norm)
        adamw.step()
        with torch.no_grad():
            for name, momentum in momenta.items():
                one, role = parameters[name], roles[name]
                momentum.mul_(spec.momentum).add_(one.grad)
                followed = one.grad + spec.momentum * momentum if spec.nesterov else momentum
                turned = followed.transpose(0, 1) if role.is_transposed else followed
                parts = turned.flatten(1).chunk(role.num_parts)
                update = torch.cat([plain_muon(part) * _scale(spec.scale, *part.shape) for part in parts])
                update = update.view(turned.shape)
                rate = spec.lr * getattr(spec.lr_factors, role.role)
                one.mul_(1 - rate * spec.weight_decay)
                one.sub_(rate * (update.transpose(0, 1) if role.is_transposed else update).float())
    return {name: parameter.detach() for name, parameter in parameters.items()}


def _scale(kind: str, rows: int, columns: int) -> float:
    return 0.2 * math.sqrt(max(rows, columns)) if kind == "rms" else math.sqrt(max(1, rows / columns))


def assert_close(state: State, expected: Mapping[str, Tensor]) -> None:
    for name, weights in expected.items():
        found = state.tensors["master", name].view(weights.shape)
        torch.testing.assert_close(found, weights, rtol=2e-5, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}")
