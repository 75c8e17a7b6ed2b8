"""Scaled-down specs of large experiments: less width, depth and batch, and everything else as it was."""

import pytest

from ditlab.inputs.flops import step_flops
from ditlab.spec.files import is_sweep, load_experiment
from ditlab_addons.check.prove.proving import MOST_FLOPS, MOST_PARAMETERS, ScaledDownSpec, scale_down
from support.documents import CHECKOUT

EXPERIMENTS = CHECKOUT / "experiments"


def smaller(name: str, *changes: str) -> ScaledDownSpec:
    return scale_down(load_experiment(EXPERIMENTS / name, changes))


def test_a_small_experiment_is_proved_as_it_is():
    found = smaller("digits/mixture.yaml", "batch.size=64")
    assert found.experiment == load_experiment(EXPERIMENTS / "digits/mixture.yaml", ["batch.size=64"])
    assert (found.changes, found.describe()) == ({}, "")


def test_a_scaled_down_spec_differs_in_what_it_says_alone():
    settings = ("engine.zero.stage=3", "training.precision=bf16", "resources.workers=2", "batch.micro=8")
    own, found = load_experiment(EXPERIMENTS / "mnist/dit.yaml", settings), smaller("mnist/dit.yaml", *settings)
    assert found.experiment == own.replace_all(found.changes)
    assert {path.partition(".")[0] for path in found.changes} <= {"model", "objective", "batch"}
    assert found.experiment.batch_fields() == own.batch_fields()
    assert found.describe().startswith("Proved on a scaled-down spec of ")
    assert all(f"{path}={value}" in found.describe() for path, value in found.changes.items())
    model = found.experiment.to_dict()["model"]
    assert (model["width"], model["depth"], model["patch_size"]) == (128, 6, own.to_dict()["model"]["patch_size"])


@pytest.mark.slow
def test_every_shipped_experiment_scales_down_to_few_parameters():
    for path in sorted(EXPERIMENTS.rglob("*.yaml")):
        if is_sweep(path):
            continue
        own = load_experiment(path)
        found = scale_down(own)
        bounds = (MOST_PARAMETERS, MOST_FLOPS)
        if path.name == "base.yaml":  # as wide as the text encoder, whose features the data hold
            bounds = (70_000_000, 40 * MOST_FLOPS)
        count = sum(each.numel() for each in found.experiment.family.build_network(found.experiment.model).parameters())
        assert count <= bounds[0] and step_flops(found.experiment).model <= bounds[1], path
        assert found.experiment.accumulation > 1 or own.accumulation == 1, path
