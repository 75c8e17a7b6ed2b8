"""Protocols of evaluations: what training measures is measured again afterwards, to the bit;
intervals of means.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from ditlab.data.splits import open_data
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.home import Home, RunFolder
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.receipts.records import Measurement, RecordedAttempt
from ditlab.storage.files import append_json_line
from ditlab.training.evaluation import (
    NUM,
    Protocol,
    StateEvaluator,
    evaluated_modules,
    held_out_intervals,
)
from ditlab_models.intervals import mean_estimate
from support.trainings.family_specs import FAMILIES, smallest
from support.trainings.workers import logged, newest, tiny, train_here, train_workers

OFTEN = {"every": 3, "samples": 2, "limit": 41}
BF16 = {"training__precision": "bf16"}
MIXTURE = {
    "kind": "mixture",
    "parts": {"a": {"kind": "digits"}, "b": {"kind": "digits"}},
    "weights": {"a": 1.0, "b": 3.0},
}


def afterwards(experiment, home, checkpoints):
    """Evaluate the newest checkpoint alone, as another process does."""
    data, rank = open_data(experiment.data, Home(home)), Rank(0, 1, 0, torch.device("cpu"))
    inputs = ModelInputs.from_experiment(
        experiment, data.train.columns, rank.device, print, Home(home)
    )
    with newest(checkpoints) as reader:
        network, objective = evaluated_modules(
            experiment,
            lambda prefix: reader.weights(prefix=prefix, merged=False),
            data.text,
            rank.device,
            experiment.training.precision,
            experiment.resources.max_workers,
        )
    evaluator = StateEvaluator(experiment, data, Home(home), inputs, rank, ControlChannel(rank))
    return evaluator.evaluate(
        network, objective, experiment.micro_size, inside=torch.no_grad(), with_intervals=True
    )


def of_evaluations(values):
    return {name: value for name, value in values.items() if name.startswith(("eval/", "quality/"))}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        *((family, {}) for family in FAMILIES),
        ("dit", BF16),
        ("dlm", BF16),
        ("pixelhdm", {"engine__zero": {"stage": 3}}),
        ("pixelhdm", {"engine__zero": {"stage": 0}}),
        ("pixelhdm", {"optimizer": {"kind": "muon", "lr": 1e-3}}),
        ("dit", {"training__lora": {"rank": 2, "targets": ["*.attention.*"]}}),
        ("dit", {"training__ema": None}),
        ("dit", {"data": MIXTURE}),
        ("dit", {"engine__compile": True}),
    ],
    ids=str,
)
def test_evaluated_afterwards(home, tmp_path, case):
    """Every family and what changes how a network computes; the run is resumed on its way."""
    family, changes = case
    experiment = smallest(
        family, **{"training__steps": 4, "checkpoint__every": 2, **changes, "evaluation": OFTEN}
    )
    train_here(experiment, home, tmp_path, stop_after=2)
    _, recorder = train_here(experiment, home, tmp_path)
    step = max(recorder.values)
    found = afterwards(experiment, home, tmp_path)
    assert of_evaluations(recorder.values[step]) == found.values and len(found.values) > 1
    assert set(found.intervals) <= set(found.values) and found.intervals
    for name, each in found.intervals.items():
        assert each.low <= found.values[name] <= each.high, name
    recorded = Measurement.parse(recorder.tagged["ditlab.measurement.eval"])
    assert found.measurements["eval"].digest == recorded.digest


@pytest.mark.slow
def test_two_workers_are_measured_by_one(home, tmp_path):
    changes = {"evaluation": OFTEN | {"quality": 100}, "sampling": {"steps": 1}}
    specs = [tiny(engine__zero__stage=stage, resources__workers=2, **changes) for stage in (1, 3)]
    more = {"evaluation": OFTEN, "training__steps": 4}
    specs += [smallest("pixelhdm", 2, engine__zero__stage=stage, **more) for stage in (2, 3)]
    jobs = [(spec, home, tmp_path / str(number)) for number, spec in enumerate(specs)]
    train_workers(jobs)
    for job in jobs:
        found, values = afterwards(*job).values, logged(job[2])
        assert of_evaluations(values[max(values)]) == found and "eval/velocity" in found


class Objective:
    """Metrics of one mean, of a function of one, and of two."""

    def summary(self, means):
        ratio = means["above"] / means["below"]
        return {**means, "perplexity": math.exp(means["bound"]), "ratio": ratio}


def test_intervals_of_means_and_of_what_is_made_of_them():
    """That of a mean; mapped by a monotone function; of a ratio the delta method's closed form."""
    rng = np.random.default_rng(0)
    below = rng.uniform(1, 3, 500)
    values = {
        "bound": rng.normal(2, 0.5, 500),
        "above": 2 * below + rng.normal(0, 0.1, 500),
        "below": below,
    }
    sums = {name: float(each.sum()) for name, each in values.items()}
    sums |= {NUM: 500.0, "one_value": 3.0}
    found = held_out_intervals(values, sums, Objective())
    mean = mean_estimate(values["bound"])
    assert found["bound"] == pytest.approx(mean) and "one_value" not in found
    assert found["perplexity"] == pytest.approx(mean.exp())
    ratio = values["above"].mean() / below.mean()
    linear = mean_estimate((values["above"] - ratio * below) / below.mean() + ratio)
    assert found["ratio"] == pytest.approx(linear, rel=1e-4)
    unpaired = mean_estimate(values["above"] / below.mean())
    half = found["ratio"].high - found["ratio"].low
    assert half < 0.2 * (unpaired.high - unpaired.low), "the two go together"


def test_the_protocol_is_that_of_the_attempt_that_evaluated(tmp_path):
    """Threads, halved micro-batch and workers of the last attempt that began before the
    checkpoint.
    """
    folder, experiment = RunFolder(tmp_path), tiny()
    assert Protocol.of_run(experiment, folder, 6) == Protocol(16, None, "cpu", 1)
    first = RecordedAttempt(1, 0, 2, 0, [], "cpu", "", 2, {}, "", "", "", 1, "eager", "")
    second = replace(first, attempt=2, step=4, workers=1, microbatch_splits=1)
    third = replace(second, attempt=3, step=6, microbatch_splits=2, threads=1)
    folder.receipt_attempts.parent.mkdir()
    for each in (first, second, third):
        append_json_line(folder.receipt_attempts, each.to_record())
    found = [Protocol.of_run(experiment, folder, step) for step in (3, 6, 9)]
    assert found == [Protocol(16, 2, "cpu", 2), Protocol(8, 2, "cpu", 1), Protocol(4, 1, "cpu", 1)]


def test_differences_are_in_words():
    sampler = {"solver": "heun", "steps": 25, "guidance": 4.0}
    parts = {"threads": 2, "precision": "fp32", "sampler": sampler}
    here = Measurement.of(parts | {"threads": 1, "sampler": {}})
    there = Measurement.of(parts)
    for each in (there, Measurement.parse(there.to_tag())):
        assert here.differences(each) == ["sampler", "threads 1 in place of 2"]
    assert here.differences(here) == []
    assert Measurement.parse('{"digest": "", "parts": {}, "words": []}') is None
