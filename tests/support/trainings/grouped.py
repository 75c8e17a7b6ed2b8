"""Small experiments with Muon or grouped AdamW, and the reference trainer on a script of passes."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ditlab.inputs.meta_step import DTYPES
from ditlab.spec.experiment import Experiment
from ditlab_addons.check.prove.reference import ReferenceTrainer, clip, joint_norm
from support.trainings.engines import (
    Job,
    Pass,
    State,
    Step,
    Trace,
    batch_of,
    drive_workers,
    module_for,
    noise_of,
)
from support.trainings.workers import tiny

LR = 1e-3  # of the script of steps
SCRIPT = [Step([[Pass(0), Pass(1)]]), Step([[Pass(2), Pass(3)]]), Step([[Pass(4), Pass(5)]])]
SPLIT = [Step([[one], [two]]) for one, two in (step.passes[0] for step in SCRIPT)]


def muon(stage: int = 0, model: Any = None, **fields: Any) -> Experiment:
    """`small` with Muon."""
    return small(stage, model, kind="muon", adamw_lr=2 * LR, **fields)


def small(
    stage: int, model: Any = None, zero: Any = None, precision: str = "fp32", **fields: Any
) -> Experiment:
    """A tiny experiment whose clipping is at work, with groups of parameters; `zero`: more of that
    section.
    """
    optimizer = {"lr": LR, "weight_decay": 0.1, "no_decay": ["norm", "bias"], **fields}
    changes = {"model": model} if model else {"model__depth": 1}
    training = {
        "steps": 6,
        "ema": {"decay": 0.9},
        "clip": {"kind": "norm", "max_norm": 0.05},
        "precision": precision,
    }
    return tiny(
        engine__zero={"stage": stage, **(zero or {})},
        training=training,
        optimizer=optimizer,
        **changes,
    )


def reference_training(experiment: Experiment, script: Sequence[Step]) -> dict[str, Tensor]:
    """Weights by name after a script, by the reference trainer: one micro-batch after the other, no
    engine.
    """
    weights = {name: each.detach() for name, each in module_for(experiment).named_parameters()}
    trainer = ReferenceTrainer(experiment, len(script), 1)
    state: dict[str, dict[str, Tensor]] = {
        "master": {name: weights[name].reshape(-1) for name in trainer.settings}
    }
    for name, own in trainer.settings.items():
        for kind in ("momentum",) if own.is_orthogonalised else ("exp_avg", "exp_avg_sq"):
            state.setdefault(kind, {})[name] = torch.zeros_like(state["master"][name])
    training, statistics = trainer.spec["training"], dict[str, float]()
    for number, step in enumerate(script):
        passes: Any = [
            (batch_of(number, part), noise_of(number, part))
            for worker in step.passes
            for part in worker
        ]
        whole = {**weights, **{name: each.float() for name, each in state["master"].items()}}
        gradients = trainer.gradient(passes, whole, DTYPES[training["precision"]]).gradients
        divisor, statistics = clip(
            experiment.training.clip, joint_norm(gradients.values()), statistics
        )
        clipped = {name: each / divisor for name, each in gradients.items()}
        state = trainer.update(number, number + 1, state, clipped).values
    trained = {
        name: state["master"][name].float().view(weights[name].shape) for name in trainer.settings
    }
    return {**weights, **trained}


def assert_close(state: State, expected: Mapping[str, Tensor]) -> None:
    for name, weights in expected.items():
        field = "master" if ("master", name) in state.tensors else "frozen"
        found = state.tensors[field, name].view(weights.shape)
        torch.testing.assert_close(
            found, weights, rtol=2e-5, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def steps_of(num_workers: int, numbers: Iterable[int]) -> list[Step]:
    """Steps of one pass a worker."""
    return [
        Step([[Pass(rank)] for rank in range(num_workers)], number=number) for number in numbers
    ]


def resumed(
    experiments: Sequence[Experiment], num_workers: int, folder: Path
) -> list[tuple[Trace, Trace]]:
    """(Unbroken, resumed) traces of four steps, the resumed ones with other processes after the
    second step.
    """
    paths = [folder / f"half-{place}" for place in range(len(experiments))]
    whole, first, last = (
        steps_of(num_workers, numbers) for numbers in (range(4), range(2), range(2, 4))
    )
    places = list(zip(experiments, paths, strict=True))
    jobs = [Job(experiment, whole) for experiment in experiments]
    jobs += [Job(experiment, first, save=path) for experiment, path in places]
    unbroken = drive_workers(jobs, num_workers)[: len(experiments)]
    rest = drive_workers(
        [Job(experiment, last, load=path) for experiment, path in places], num_workers
    )
    return list(zip(unbroken, rest, strict=True))
