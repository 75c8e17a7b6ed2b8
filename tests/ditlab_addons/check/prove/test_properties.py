"""Properties that need no second implementation: no alarm under any solver, density or source of
data; bounds that chance keeps.
"""

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from ditlab.data.orders import training_order
from ditlab.data.splits import open_data
from ditlab.home import Home
from ditlab.inputs.model_inputs import ModelInputs
from ditlab_addons.check.process_group import unattended_run
from ditlab_addons.check.prove.findings import Findings, Proof, ProofComparison
from ditlab_addons.check.prove.life import compare_properties
from ditlab_addons.check.prove.properties.checked_run import CheckedRun
from ditlab_addons.check.prove.properties.draws import kolmogorov_bound, kolmogorov_distance
from ditlab_addons.check.prove.properties.parameters import compare_parameters
from ditlab_addons.check.prove.properties.sampler import compare_guided
from ditlab_addons.check.prove.properties.training_rows import compare_order
from ditlab_addons.check.prove.reference import ReferenceTrainer
from ditlab_models.processes.specs import timestep_law, uniform_cdf
from support.trainings.family_specs import GAUSSIAN, smallest
from support.trainings.proven import MIXTURE, off

BELL = {"kind": "logit_normal", "mean": 0.7, "std": 0.4}
SETTINGS = [
    ("dit", {"sampling__solver": "heun", "sampling__guidance": 3.0}),
    ("dit", {"sampling__solver": "midpoint", "objective__time": {**BELL, "eps": 0.1}}),
    ("dit", {"sampling__solver": "rk4", "sampling__steps": 3}),
    ("dit", {"model__num_classes": None}),
    ("dit", {**GAUSSIAN, "sampling__steps": 1}),
    ("dit", {**GAUSSIAN, "sampling__solver": "ddim", "sampling__guidance": 2.0}),
    ("dit", {**GAUSSIAN, "objective__noise": {"steps": 7, "beta_start": 0.4, "beta_end": 0.6}}),
    ("dit", {"data": MIXTURE}),
    ("dit", {"training__lora": {"rank": 2, "targets": ["*"]}}),
    ("unet", {"model__label_dropout": 0.0}),
    ("region", {"objective__weights__accessibility": 0.5, "objective__reduction": "entry_mean"}),
    ("region", {"model__corruption": "ddpm", "sampling__solver": "ddim", "sampling__steps": 4}),
    ("region", {"model__corruption": "ddpm"}),
    ("dlm", {"objective__noise": {"kind": "loglinear", "sigma_max": 20.0}}),
    ("dlm", {"objective__time": BELL, "sampling__denoise": False}),
    ("dlm", {"objective__score": "softmax", "sampling__solver": "categorical"}),
    ("dlm", {"model__block_size": 4, "sampling__block": {}, "sampling__solver": "analytic"}),
    ("dlm", {"model__block_size": 4, "sampling__block": {"cache": False}}),
    ("pixelhdm", {"sampling__solver": "dpmpp_2m", "sampling__final_projection": False}),
    ("pixelhdm", {"sampling__solver": "dpmpp_2s", "objective__prediction": "image"}),
    ("pixelhdm", {"sampling__solver": "midpoint", "sampling__rescale": 0.7}),
    ("pixelhdm", {"sampling__guidance_schedule": "linear", "sampling__interval": [0.2, 0.6]}),
]


def properties(experiment, home):
    """Compare the properties of an experiment's fresh weights, moved; no step is trained."""
    home = Home(home)
    open_data(experiment.data, home)
    with tempfile.TemporaryDirectory() as folder:
        run = unattended_run(experiment, home, Path(folder), {"evaluation.limit": 8})
    device = torch.device("cpu")
    reference = ReferenceTrainer(
        run.experiment, run.plan.total_steps, run.plan.epoch_steps, device, run.data.text
    )
    inputs = ModelInputs.from_experiment(run.experiment, run.data.train.columns, device, home=home)
    generator = torch.Generator().manual_seed(3)
    weights = {
        name: each + 0.05 * torch.randn(each.shape, generator=generator)
        for name, each in reference.fresh.items()
        if each.is_floating_point()
    }
    findings = Findings()
    compare_parameters(reference, reference.settings, findings)
    order = training_order(experiment.data, run.data, experiment.batch.size, experiment.seed)
    compare_order(order.sources(), findings)
    compare_properties(CheckedRun(run, reference, inputs, 3, findings, weights))
    return findings


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        pytest.param(*each, marks=[pytest.mark.slow] * (n % 4 > 0))
        for n, each in enumerate(SETTINGS)
    ],
)
def test_no_setting_raises_an_alarm(family, changes, home):
    findings = properties(smallest(family, **changes), home)
    assert not off(findings.all())


def test_guidance_of_a_network_that_predicts_nothing_is_said_to_be_unchecked():
    findings = Findings()
    compare_guided([torch.zeros(2, 1, 4, 4)] * 4, torch.zeros(2, 1, 4, 4), findings)
    assert findings.unchecked == ["guidance, as all predictions of the network are 0"]
    assert not findings.all()


def test_what_a_family_does_not_give_is_said_to_be_unchecked(home):
    findings = properties(smallest("dlm"), home)
    assert [each.partition(",")[0] for each in findings.unchecked] == [
        "that the loss is least at its targets",
        "the size of the sampler's steps",
        "guidance",
    ]


def test_frozen_parameters_are_said_first_and_are_no_alarm_where_the_spec_freezes_them(home):
    findings = properties(smallest("dit", training__freeze=["blocks.0", "*.bias"]), home)
    assert not off(findings.all())
    (sentence,) = findings.untrained
    assert "parameters do not train, as training.freeze" in sentence
    proof = Proof(tuple(findings.all()), "a", "engine", 1.0, untrained=(sentence,))
    assert str(proof).startswith(sentence[:60])


def test_the_distance_of_a_law_is_that_of_its_distribution_function():
    even = (np.arange(100) + 0.5) / 100
    assert kolmogorov_distance(even, uniform_cdf) == pytest.approx(0.005)
    assert kolmogorov_distance(even**2, uniform_cdf) == pytest.approx(0.25, abs=0.01)
    (law,) = timestep_law(10)
    assert kolmogorov_distance(np.arange(10.0), law.cdf) == pytest.approx(0, abs=1e-12)
    assert kolmogorov_distance(np.zeros(7), law.cdf) == pytest.approx(0.9)


def test_chance_stays_within_the_bound():
    generator = np.random.default_rng(0)
    largest = max(kolmogorov_distance(generator.random(256), uniform_cdf) for _ in range(500))
    assert kolmogorov_bound(256) / 2 < largest < kolmogorov_bound(256)
    assert 2 * math.exp(-2 * 2560 * kolmogorov_bound(2560) ** 2) <= 1e-6


def test_the_count_tells_comparisons_from_properties():
    proof = Proof(
        (
            ProofComparison("loss", "velocity", 0.0, 1.0, times=20),
            ProofComparison("guidance", "linear in its scale", 0.0, 1.0),
        ),
        "a",
        "engine",
        1.0,
    )
    assert proof.verdict.startswith("All 20 comparisons with the reference and 1 properties hold")
