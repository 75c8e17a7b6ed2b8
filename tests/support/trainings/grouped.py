"""Small experiments with Muon or grouped AdamW, and the reference trainer on a script of passes."""

import torch

from ditlab.inputs.meta_step import DTYPES
from ditlab_addons.check.prove.reference import ReferenceTrainer, clip, joint_norm
from support.trainings.engines import Job, Pass, Step, batch_of, drive_workers, module_for, noise_of
from support.trainings.workers import tiny

LR = 1e-3  # of the script of steps
SCRIPT = [Step([[Pass(0), Pass(1)]]), Step([[Pass(2), Pass(3)]]), Step([[Pass(4), Pass(5)]])]
SPLIT = [Step([[one], [two]]) for one, two in (step.passes[0] for step in SCRIPT)]


def muon(stage=0, model=None, **fields):
    """`small` with Muon."""
    return small(stage, model, kind="muon", adamw_lr=2 * LR, **fields)


def small(stage, model=None, zero=None, precision="fp32", **fields):
    """A tiny experiment whose clipping is at work, with groups of parameters; `zero`: more of that
    section.
    """
    changes = {"model": model} if model else {"model__depth": 1}
    return tiny(
        engine__zero={"stage": stage, **(zero or {})},
        training__clip={"kind": "norm", "max_norm": 0.05},
        training__precision=precision,
        optimizer={"lr": LR, "weight_decay": 0.1, "no_decay": ["norm", "bias"], **fields},
        **changes,
    )


def reference_training(experiment, script):
    """Weights by name after a script, by the reference trainer: one micro-batch after the other, no
    engine.
    """
    weights = {name: each.detach() for name, each in module_for(experiment).named_parameters()}
    trainer = ReferenceTrainer(experiment, len(script), 1)
    state = {"master": {name: weights[name].reshape(-1) for name in trainer.settings}}
    for name, own in trainer.settings.items():
        for kind in ("momentum",) if own.is_orthogonalised else ("exp_avg", "exp_avg_sq"):
            state.setdefault(kind, {})[name] = torch.zeros_like(state["master"][name])
    training, statistics = trainer.spec["training"], dict[str, float]()
    for number, step in enumerate(script):
        passes = [
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


def assert_close(state, expected):
    for name, weights in expected.items():
        field = "master" if ("master", name) in state.tensors else "frozen"
        found = state.tensors[field, name].view(weights.shape)
        torch.testing.assert_close(
            found, weights, rtol=2e-5, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def steps_of(num_workers, numbers):
    """Steps of one pass a worker."""
    return [
        Step([[Pass(rank)] for rank in range(num_workers)], number=number) for number in numbers
    ]


def resumed(experiments, num_workers, folder):
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
