"""Schedule-free AdamW: the paper's numbers, the same at every ZeRO stage and after a resume, and
refusals.
"""

import math
import shutil

import pytest
import torch

from ditlab.home import Home
from ditlab.runs.forks import requested_start
from ditlab.spec.experiment import validate_experiment
from ditlab_addons.optimizers.schedule_free import ScheduleFreeAdamW
from support.damage import refused
from support.trainings.workers import TINY, newest, tiny, train_here, train_workers

OPTIMIZER = {"kind": "schedule_free_adamw", "lr": 0.01, "warmup": 4, "weight_decay": 0.1}
FIELDS = ("master", "ema", "moment_gap", "moment_second")


def free(stage=0, workers=1, **changes):
    zero = {"zero": {"stage": stage}}
    optimizer = OPTIMIZER | changes.pop("optimizer", {})
    return tiny(
        optimizer=optimizer,
        training__ema=None,
        engine=zero,
        resources={"workers": workers},
        **changes,
    )


def state(checkpoints):
    reader = newest(checkpoints)
    names = [name for name in reader.manifest.shapes if name not in reader.manifest.buffers]
    shapes = reader.manifest.shapes
    return {
        (kind, name): reader.read(kind, name, 0, math.prod(shapes[name]))
        for kind in FIELDS
        for name in names
    }


def same(one, two):
    return all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("warmup", [0, 7])
def test_updates_are_those_of_algorithm_1(warmup):
    """The paper's own lines, in float64, with every weight of the average kept."""
    torch.manual_seed(0)
    gamma, decay, beta1, beta2, eps = 0.02, 0.3, 0.9, 0.98, 1e-8
    optimizer = ScheduleFreeAdamW(lr=gamma, warmup=warmup, betas=(beta1, beta2), eps=eps)
    weights = torch.randn(50)
    tensors = {
        "average": weights.clone(),
        "moment_gap": torch.zeros(50),
        "moment_second": torch.zeros(50),
    }
    x = weights.double()
    z = x.clone()
    v = torch.zeros(50, dtype=torch.float64)
    squares = []
    for t in range(1, 31):
        y = (1 - beta1) * z + beta1 * x
        assert torch.allclose(weights.double(), y, rtol=1e-5, atol=1e-6)
        g = torch.randn(50)
        v = beta2 * v + (1 - beta2) * g.double() ** 2
        gamma_t = gamma * math.sqrt(1 - beta2**t) * (min(1, t / warmup) if warmup else 1)
        z = z - gamma_t * g.double() / (v.sqrt() + eps) - gamma_t * decay * y
        squares.append(gamma_t**2)
        c = gamma_t**2 / sum(squares)
        x = (1 - c) * x + c * z
        optimizer.decay(weights, tensors, t, gamma * decay)
        optimizer.update(weights, g, tensors, t, gamma)
        assert torch.allclose(tensors["average"].double(), x, rtol=1e-5, atol=1e-6)


def test_the_average_is_what_is_evaluated_and_no_evaluation_changes_a_bit(tmp_path):
    train_here(free(), tmp_path, tmp_path / "plain")
    _, recorder = train_here(
        free(evaluation={"every": 2, "samples": 2, "limit": 16}, sampling={"steps": 2}),
        tmp_path,
        tmp_path / "seen",
    )
    found = state(tmp_path / "plain")
    assert same(found, state(tmp_path / "seen"))
    for name in {name for _, name in found}:
        x, y = found["ema", name], found["master", name]
        between = torch.add(x, found["moment_gap", name], alpha=1 - 0.9)
        assert torch.equal(y, between), "the network trains between x and z"
        assert not torch.equal(y, x)
    for averaged, kind in ((True, "ema"), (False, "master")):
        for name, value in newest(tmp_path / "plain").weights(averaged=averaged).items():
            assert torch.equal(value.view(-1), found[kind, f"network.{name}"])
    assert recorder.values[2]["eval/velocity"] > 0


@pytest.mark.slow
def test_every_zero_stage_computes_the_same_and_resumes_to_the_bit(tmp_path):
    train_here(free(), tmp_path, tmp_path / "alone")
    alone = state(tmp_path / "alone")
    stages = (0, 1, 2, 3)
    whole, again = ([tmp_path / f"{name}-{stage}" for stage in stages] for name in "wa")

    def train_all(places):
        train_workers([(free(stage, 2), tmp_path, places[stage]) for stage in stages])

    def check_alike(place):
        found = state(place)
        assert all(torch.allclose(found[key], alone[key], rtol=1e-3, atol=2e-4) for key in alone)

    train_all(whole)
    for stage in stages:
        shutil.copytree(whole[stage], again[stage])
        shutil.rmtree(again[stage] / "step-00000006")
    train_all(again)
    for stage in stages:
        assert same(state(whole[stage]), state(again[stage])), stage
        check_alike(whole[stage])
    shutil.rmtree(again[3] / "step-00000006")
    train_here(free(1), tmp_path, again[3])  # another stage, and one worker
    check_alike(again[3])


def test_a_new_run_begins_from_the_average(ditlab, spec, home):
    change = ["--set", "optimizer={kind: schedule_free_adamw}", "--set", "training.ema=null"]
    change += ["--set", "schedule={kind: constant}", "--json"]
    parent = ditlab("train", spec, "--local", *change).ok()
    assert requested_start(parent.json["run_id"], True, None, Home(home)).state == "averaged"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "set training.ema and training.averages to null"),
        (
            {"training": {"steps": 6, "ema": None, "averages": {}}},
            "set training.ema and training.averages to null",
        ),
        (
            {"training": {"steps": 6, "ema": None}, "schedule": {"kind": "warmup_cosine"}},
            r"set schedule to \{kind",
        ),
        (
            {"training": {"steps": 6, "ema": None}, "schedule": {"kind": "constant", "warmup": 2}},
            "and optimizer.warmup to",
        ),
    ],
)
def test_refusals(changes, message):
    with refused(message):
        validate_experiment({**TINY, "optimizer": OPTIMIZER, **changes})
