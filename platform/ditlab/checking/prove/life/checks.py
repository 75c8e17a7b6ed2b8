"""All checks of a run's life, on one worker of a process group."""

import dataclasses
from pathlib import Path

import torch

from ditlab.checking.prove.findings import Compared
from ditlab.checking.prove.life.comparing import exact
from ditlab.checking.prove.life.dropout import compare_dropout, dropout_rate
from ditlab.checking.prove.life.evaluation import (
    EvaluatedState,
    compare_evaluation,
    compare_saved_weights,
    evaluate_engine,
)
from ditlab.checking.prove.life.observed_steps import observe_training
from ditlab.checking.prove.life.plain_model import build_plain, whole_weights
from ditlab.checking.prove.life.resume import (
    RESUME,
    compare_draws,
    compare_fields,
    compare_resume,
    stop_steps,
    train_resumed,
)
from ditlab.checking.prove.life.schedule import compare_schedule
from ditlab.checkpoints.store import CheckpointStore
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.spec.experiment import Experiment
from ditlab.training.plan import TrainingRun, worker_share
from ditlab.training.reporting import ProgressMarker, SilentReporter
from ditlab.training.trainer import Worker

MOST_HELD_OUT = 16
"""Held-out samples that are evaluated."""
MOST_SAMPLING_STEPS = 4
"""Steps of the sampler for the one sample."""


def check_life(run: TrainingRun, rank: Rank, folder: Path) -> list[Compared]:
    """Train a few steps of a run in an empty folder by its own loop, and compare; on every worker of its group.

    A comparison of one worker may fail where another's holds. `folder` is one that all workers see. Raises what
    training raises.
    """
    experiment = shortened(run.experiment)
    run = dataclasses.replace(run, experiment=experiment, checkpoints=CheckpointStore.at(folder / "whole"))
    channel = ControlChannel(rank)
    inputs = ModelInputs.from_experiment(experiment, run.data.train.columns, rank.device, home=run.home)
    reporter = SilentReporter(lambda: False, lambda message: None, ProgressMarker())
    memory = run.memory
    share = worker_share(experiment.num_micro, experiment.micro_size, rank.rank, rank.world_size, memory.halvings)
    evaluated: list[EvaluatedState] = []

    def evaluate(worker: Worker) -> None:
        evaluated.append(evaluate_engine(run, rank, channel, inputs, reporter, worker.state, share.pass_size))

    stops = stop_steps(run.plan)
    whole = observe_training(run, rank, stops.last if stops else 1, at_end=evaluate)
    comparisons = [
        *compare_schedule(experiment, run.plan, whole.steps),
        exact(RESUME, "training without a stop", bool(whole.failure), 1, "trainings", whole.failure),
        compare_draws(whole.steps),
        saved := compare_fields(run, whole.ended),
    ]
    if stops:
        comparisons += compare_resume(train_resumed(run, rank, folder, whole, stops.middle))
    if saved.distance or not evaluated:
        channel.close()
        return comparisons  # what is missing cannot be evaluated either
    comparisons += compare_saved_weights(run, rank, channel, whole.ended)
    comparisons += compare_evaluation(run, rank, channel, inputs, evaluated[0], share.pass_size)
    if dropout_rate(run):
        # The weights of the average that was set apart: a fresh network's predictions may depend on no condition.
        kind = "ema" if experiment.training.ema else "master"
        model = build_plain(run, rank, whole_weights(evaluated[0].before, channel, kind), torch.float32)
        if rank.is_first:
            comparisons += compare_dropout(run, inputs, model)
    channel.close()
    return comparisons


def shortened(experiment: Experiment) -> Experiment:
    """Return the experiment with each step logged, few held-out samples, and a sampler of few steps."""
    changes = {
        "tracking.every": 1, "checkpoint.every": None, "evaluation.every": None, "evaluation.samples": 0,
        "evaluation.quality": 0, "evaluation.limit": min(MOST_HELD_OUT, experiment.evaluation.limit),
    }  # fmt: skip
    if "steps" in type(experiment.sampling).model_fields:
        steps = getattr(experiment.sampling, "steps", None) or MOST_SAMPLING_STEPS
        changes["sampling.steps"] = min(MOST_SAMPLING_STEPS, steps)
    return experiment.replace_all(changes)
