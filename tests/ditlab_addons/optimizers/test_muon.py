"""Muon under ZeRO on one worker against a plain reading; a step left out; fields and refusals."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ditlab.spec.experiment import validate_experiment
from ditlab_addons.optimizers.muon import Muon
from ditlab_addons.optimizers.muon_update import Matrices, orthogonalise, orthogonalised
from ditlab_models.parameters import ParameterRole
from support.damage import refused
from support.trainings.engines import Job, Pass, Step, drive_here
from support.trainings.grouped import SCRIPT, assert_close, muon, reference_training, small
from support.trainings.workers import TINY, train_here

STAGES = (0, 1, 2, 3)
UNET = {"family": "unet", "image_size": 8, "width": 8, "num_classes": None, "time_scale": 1000.0}


@pytest.mark.parametrize("shape", [(16, 16), (8, 40), (40, 8), (3, 12, 20)], ids=str)
def test_singular_values_are_brought_near_one_and_directions_stay(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonalise(matrix)
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    # smaller ones are on their way yet
    large = values > 0.02 * matrix.norm(dim=(-2, -1)).unsqueeze(-1)
    along = torch.diagonal(u.mT @ found @ v.mT, dim1=-2, dim2=-1)
    assert large.sum() > 0.8 * large.numel()
    assert along[large].min() > 0.6 and along[large].max() < 1.25
    across = u.mT @ found @ v.mT - torch.diag_embed(along)
    assert across.abs().max() < 1e-3
    torch.testing.assert_close(orthogonalise(1000 * matrix), found, rtol=1e-3, atol=1e-4)
    assert not orthogonalise(torch.zeros(shape)).any()


@pytest.mark.parametrize("stage", STAGES)
def test_one_worker_trains_the_weights_of_the_plain_reading(stage):
    fields = {"lr_factors": {"embedding": 3.0, "matrix": 0.5}}
    expected = reference_training(muon(**fields), SCRIPT)
    assert_close(drive_here(Job(muon(stage, **fields), SCRIPT)).state, expected)


@pytest.mark.parametrize(
    "fields", [{"nesterov": False}, {"scale": "spectral", "momentum": 0.5}], ids=str
)
def test_variants_and_convolutions(fields):
    """Biases ahead of a norm of one channel are left out: their gradient is rounding, which Adam
    makes a step of.
    """
    trained = reference_training(muon(model=UNET, **fields), SCRIPT)
    expected = {name: weights for name, weights in trained.items() if weights.ndim > 1}
    assert sum(weights.ndim == 4 for weights in expected.values()) > 15
    assert_close(drive_here(Job(muon(1, UNET, **fields), SCRIPT)).state, expected)


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_that_is_left_out_changes_nothing(stage):
    script = [Step([[Pass(0)]]), Step([[Pass(1, poison=True)]]), Step([[Pass(2)]], healthy=False)]
    states = drive_here(Job(muon(stage), script, kept=range(3))).states
    assert states[1].equals(states[0]) and states[2].equals(states[0])


@pytest.mark.parametrize("written", ["adamw", "muon"])
def test_a_checkpoint_of_the_other_optimiser_is_refused(written, tmp_path):
    other = {"adamw": "muon", "muon": "adamw"}[written]
    train_here(small(1, kind=written), tmp_path, tmp_path / "checkpoints", stop_after=3)
    sentence = (
        f"optimizer.kind={other} cannot go on from a checkpoint that optimizer.kind={written} wrote"
    )
    with refused(sentence):
        train_here(small(1, kind=other), tmp_path, tmp_path / "checkpoints")


def test_operations_of_muons_iterations():
    """As many as torch counts in the optimiser's own."""
    roles = [
        ((96, 64), ParameterRole("matrix")),
        ((64, 96), ParameterRole("matrix")),
        ((96, 32), ParameterRole("matrix", 3)),
        ((16, 8, 3, 3), ParameterRole("convolution")),
        ((8, 16, 4, 4), ParameterRole("convolution", is_transposed=True)),
    ]
    for shape, role in roles:
        matrices = Matrices(shape, role)
        with FlopCounterMode(display=False) as counter:
            orthogonalised(matrices, torch.empty(matrices.numel, device="meta"))
        assert Muon().update_flops(shape, role) == counter.get_total_flops(), shape


@pytest.mark.parametrize(
    ("optimizer", "zero", "message"),
    [
        ({"kind": "muon", "momentum": 1.0}, {}, "optimizer.momentum=1.0 must be below 1"),
        (
            {"kind": "muon"},
            {"stage": 1, "offload": "cpu"},
            "engine.zero.offload=cpu keeps its state elsewhere; set",
        ),
        (
            {"kind": "adamw", "momentum": 0.9},
            {},
            "optimizer.kind=adamw has no field 'momentum=0.9'; set optimizer.kind to",
        ),
    ],
)
def test_refusals(optimizer, zero, message):
    with refused(message):
        validate_experiment({**TINY, "optimizer": optimizer, "engine": {"zero": zero}})
