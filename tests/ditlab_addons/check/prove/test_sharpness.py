"""Faults of some steps only, of a few per cent in half precision, of labels and of the loss itself:
each is found.
"""

import re
from itertools import count

import pytest
import torch

from ditlab.engine.averages import WeightAverages
from ditlab.engine.engine import Engine
from ditlab.engine.update import Update
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.spec.optimization import AdamW
from ditlab.training import stepping
from ditlab.training.plan import RunPlan
from ditlab_addons.check.prove.findings import Findings, Proof
from ditlab_addons.check.prove.life import PASSES, ROWS, RunStages, compare_decisions
from ditlab_models.dit.network import DiT
from ditlab_models.processes.flow import VelocityObjective
from ditlab_models.processes.flow_sampling import FlowSampler
from support.marks import slow
from support.trainings.family_specs import smallest
from support.trainings.proven import prove_here
from support.trainings.workers import tiny


def proof(comparisons):
    return Proof(tuple(comparisons), "smallest", "engine", 1.0)


def wrapped(monkeypatch, owner, name, change):
    """Put `change(original, *arguments)` in the place of an attribute."""
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **named: change(original, *given, **named))


def every_fifth_average(begin, self, step):
    begin(self, step if step % 5 else step + 1)


CLIPPINGS = count(1)
LOSSES = count(1)


def every_seventh_clipping(prepare, self, norm, healthy):
    prepare(self, norm, healthy)
    if next(CLIPPINGS) % 7 == 0:
        self._adam.grad_scale = None


def even_gradients(original, self, batch, noise, last, weight=1.0):
    return original(self, batch, noise, last, weight * (1.001 if noise.step % 2 else 1.0))


def later_rates(rate, experiment, plan, step):
    return rate(experiment, plan, step) * (1 + 1e-6 * (step >= 2))


def seventh_draws(noise, self, part):
    found = noise(self, part)
    return found if found.step % 7 else type(found)(**{**vars(found), "step": found.step + 1})


def a_role_ignored(rates, self, role, *_):
    return rates(self, "matrix" if role == "norm" else role)


def labels_given(change):
    """A loss or metrics of a batch with other labels."""

    def changed(original, self, network, batch, noise):
        return original(self, network, {**batch, "label": change(batch["label"])}, noise)

    return changed


def labels_made(change):
    """Batches, or conditions, with other labels."""

    def changed(original, *given, **named):
        found = original(*given, **named)
        return found | {"label": change(found["label"])}

    return changed


def loss_times(factor):
    def changed(loss, *given):
        own = factor()
        return {name: each * own for name, each in loss(*given).items()}

    return changed


def next_label(label):
    return (label + 1) % 10


def others_label(label):
    return label.roll(1)


FAULTS = [
    [
        (Update, "prepare", every_seventh_clipping, r"clipping, factor in steps 7, 19"),
        (
            stepping,
            "planned_rate",
            later_rates,
            r"learning rate, of each parameter in steps 3, 4, 5",
        ),
        (
            WeightAverages,
            "begin",
            every_fifth_average,
            r"average, exponential average.* in steps 1, 6, 11, 16",
        ),
        (
            VelocityObjective,
            "metrics",
            labels_given(torch.zeros_like),
            "labels, of held-out metrics",
        ),
        (FlowSampler, "conditions", labels_made(next_label), "labels, of samples"),
    ],
    [
        (Engine, "forward_backward", even_gradients, r"gradient, by module.* in steps 2, 4, 6, 8"),
        (VelocityObjective, "loss", labels_given(others_label), "labels, of training"),
    ],
    [
        (
            ModelInputs,
            "prepare_batch",
            labels_made(next_label),
            r"draws, fields as the store has them.*label is not the column's",
        ),
        (
            stepping.Stepper,
            "noise",
            seventh_draws,
            r"draws, keys of random numbers in steps 1, 8, 15",
        ),
    ],
    [(stepping.Stepper, "batch", labels_made(others_label), "draws, samples and their order")],
    [
        (
            AdamW,
            "rates",
            a_role_ignored,
            r"learning rate, of each parameter.*\(norm\)|update, weight decay of each parameter.*\(norm\)",
        )
    ],
    [
        (
            VelocityObjective,
            "loss",
            loss_times(lambda: 1 + 1e-4 * next(LOSSES)),
            (
                "loss, the same inputs and draws again.*has a state, or draws random numbers "
                "without a key"
            ),
        )
    ],
]
"""Faults that are planted at once, none of which hides another: owner, attribute, what stands in its
place, and the words that name it.
"""
TRAINED = "those that do not train are frozen by the spec"
SETTINGS = {
    "optimizer": {
        "kind": "adamw",
        "lr": 1e-3,
        "weight_decay": 0.05,
        "no_decay": ["norm"],
        "lr_factors": {"norm": 2.0},
    },
    "training__clip": {"kind": "norm", "max_norm": 0.01},
    "batch": {"size": 8, "micro": 4},
}


@pytest.mark.parametrize("faults", [*FAULTS[:2], *slow(*FAULTS[2:])])
def test_each_fault_is_named_and_one_of_them_first(faults, home, monkeypatch):
    for *planted, _ in faults:
        wrapped(monkeypatch, *planted)
    found = prove_here(smallest("dit", **SETTINGS), home)
    said = [proof([each]).first_off for each in found if not each.holds]
    for *_, named in faults:
        assert any(re.match(f"First off: ({named})", each) for each in said), (named, said)
    first = proof(found).first_off
    assert any(re.match(f"First off: ({named})", first) for *_, named in faults), first


def test_a_gradient_of_a_twentieth_more_is_found_in_half_precision(home, monkeypatch):
    def build(original, self, module, *given, **named):
        original(self, module, *given, **named)
        for parameter in module.network.blocks[0].mlp.parameters():
            parameter.register_hook(lambda gradient: gradient * 1.05)

    wrapped(monkeypatch, Engine, "__init__", build)
    experiment = smallest("dit", training__precision="bf16", model__width=32, **SETTINGS)
    scales = [each for each in prove_here(experiment, home) if each.what == "scale over all steps"]
    wrong = {each.module for each in scales if not each.holds}
    assert len(scales) > 3 and wrong
    assert all("blocks.0.mlp" in module for module in wrong)  # no other module is an alarm


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_frozen_parameters_are_no_traceback(home, monkeypatch, stage):
    def build(original, self, *given):
        original(self, *given)
        self.patch_embedding.requires_grad_(False)

    wrapped(monkeypatch, DiT, "__init__", build)
    found = prove_here(smallest("dit", engine__zero__stage=stage), home)
    wrong = {each.what: each.detail for each in found if not each.holds}
    # The spec freezes nothing. A checkpoint holds no frozen weights, a finding of its own.
    assert wrong.keys() <= {TRAINED, "weights that sampling opens"}
    assert "patch_embedding" in wrong[TRAINED] and "training.freeze" in wrong[TRAINED]
    asked = smallest("dit", engine__zero__stage=stage, training__freeze=["patch_embedding"])
    assert all(each.holds for each in prove_here(asked, home) if each.what == TRAINED)


def decided(rate, shared=False, seed=0):
    drawn = torch.rand(PASSES, ROWS, generator=torch.Generator().manual_seed(seed))
    return ((drawn[:, :1].expand(PASSES, ROWS) if shared else drawn) < rate).float()


def held(dropped, rate):
    findings = Findings()
    compare_decisions(dropped, rate, findings)
    return [each.holds for each in findings.all()]


def test_chance_holds_and_a_shared_decision_or_another_rate_does_not():
    for rate in (0.01, 0.1, 0.5, 0.9):
        assert all(held(decided(rate, seed=seed), rate) == [True, True] for seed in range(20))
    for rate in (0.1, 0.5, 0.9):
        assert not held(decided(rate, shared=True), rate)[1]
    for rate, other in ((0.1, 0.2), (0.1, 0.0), (0.5, 0.3)):
        assert not held(decided(other), rate)[0], (rate, other)


def test_the_kill_is_in_the_middle_of_an_epoch_and_the_steps_are_around_an_epochs_end():
    def stages(total, epoch, **changes):
        return RunStages.of(tiny(**changes), RunPlan(total, epoch, 0, 0, 0))

    assert stages(100, 10) == RunStages(4, 4, 11, 13, 20)
    assert stages(
        10**6, 100, training__steps=10**6, schedule={"kind": "constant", "warmup": 250}
    ) == RunStages(4, 292, 299, 301, 308)
    for total in range(1, 40):
        for epoch in (0, 1, 2, 3, 7, 50):
            found = stages(total, epoch)
            assert (
                0 < found.fresh <= found.begun <= found.saved <= found.killed <= found.last <= total
            ), (total, epoch)
