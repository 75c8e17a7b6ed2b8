"""A loss that comes to an end leaves no gradient behind in a module that only it trains."""

from typing import NamedTuple

import pytest
import torch

from ditlab.engine.distributed import single_process
from ditlab.engine.engine import Engine, TrainingModule
from ditlab.inputs.noise import KeyedNoise
from ditlab.training.state import RootedNetwork
from ditlab_models.pixelhdm.family import FAMILY
from ditlab_models.pixelhdm.spec import PixelHDMObjectiveSpec
from support.trainings.family_specs import smallest
from support.trainings.workers import tiny

STEPS, ALIGNED = 6, 3


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_retired_alignments_last_gradient_is_gone(stage):
    """ZeRO-3 keeps the gradient of a parameter that a backward pass leaves out, and would count it
    in every norm from then on, and so in clipping."""
    found, expected = traced(stage), traced(0)
    assert found.norms == pytest.approx(expected.norms, rel=1e-4)
    assert found.alignments == pytest.approx(expected.alignments, rel=1e-4)


class Trace(NamedTuple):
    """Gradient norms of six steps, the first three of which have features to align with."""

    norms: list[float]
    """Norm of the gradient."""
    alignments: list[float]
    """Held-out, as long as there are features."""


def traced(stage):
    torch.manual_seed(0)
    spec = smallest("pixelhdm", model__text_length=4, model__max_resolution=16).model
    # at a weight that shows in the norm
    objective = FAMILY.build_objective(
        PixelHDMObjectiveSpec(weights={"alignment": 50.0}, alignment_block=1, alignment_width=6),
        spec,
    )
    plain = {"image": torch.rand(2, 3, 16, 16) * 2 - 1, "caption": torch.full((2, 4), 65)}
    features = {"image_features": torch.randn(2, 4, 6)}
    trace = Trace([], [])
    with single_process(use_gpu=False) as rank:
        network = FAMILY.build_network(spec)
        engine = Engine(
            TrainingModule(network, objective), tiny(engine__zero__stage=stage), rank, 2, 1
        )
        rooted = RootedNetwork(engine, network, lambda: None)
        for step in range(STEPS):
            batch = plain | features if step < ALIGNED else plain
            noise = KeyedNoise(0, "train", step, 0, 2, rank.device)
            engine.forward_backward(batch, noise, True)
            trace.norms.append(float(engine.step(step, 1e-3)))
            with engine.evaluating():
                found = objective.metrics(rooted, batch, noise)
            if "alignment" in found:
                trace.alignments.append(float(found["alignment"].mean()))
        engine.close()
    return trace
