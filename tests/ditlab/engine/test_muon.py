"""Muon and parameter groups under ZeRO against a plain reading; exact resume; state that moves between stages."""

import math

import pytest
import torch

from denoisers.parameter_roles import parameter_roles
from ditlab.engine.optimisers.newton_schulz import orthogonalise
from ditlab.errors import UserError
from support.trainings.engines import Job, Pass, Step, batch_of, drive_here, drive_workers, module_for, noise_of
from support.trainings.workers import tiny, train_here

STAGES = (0, 1, 2, 3)
LR = 1e-3  # of the script of steps
SCRIPT = [Step([[Pass(0), Pass(1)]]), Step([[Pass(2), Pass(3)]]), Step([[Pass(4), Pass(5)]])]
SPLIT = [Step([[one], [two]]) for one, two in (step.passes[0] for step in SCRIPT)]
UNET = {"family": "unet", "image_size": 8, "width": 8, "num_classes": None, "time_scale": 1000.0}


def muon(stage=0, model=None, **fields):
    """A tiny experiment whose clipping is at work."""
    return small(stage, model, kind="muon", adamw_lr=2 * LR, **fields)


def small(stage, model=None, **fields):
    optimizer = {"lr": LR, "weight_decay": 0.1, "no_decay": ["norm", "bias"], **fields}
    changes = {"model": model} if model else {"model__depth": 1}
    training = {"steps": 6, "ema": {"decay": 0.9}, "clip": {"kind": "norm", "max_norm": 0.05}}
    return tiny(engine__zero={"stage": stage}, training=training, optimizer=optimizer, **changes)


def five_iterations(matrix):
    """The published iteration, in float64, on one matrix with as many columns as rows or more."""
    x = matrix.double() / (matrix.double().norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    return x


def plain_muon(matrix):
    return five_iterations(matrix) if matrix.shape[0] <= matrix.shape[1] else five_iterations(matrix.T).T


def plain_training(experiment, script):
    """Weights by name after a script, by a loop of its own: autograd, clipping, Muon one matrix at a time, AdamW."""
    spec, module = experiment.optimizer, module_for(experiment)
    roles, parameters = parameter_roles(module), dict(module.named_parameters())
    is_muon = {name: spec.kind == "muon" and roles[name].role in ("matrix", "convolution") for name in parameters}
    rest = [
        {
            "params": [parameters[name]],
            "lr": ((getattr(spec, "adamw_lr", None)) or spec.lr) * getattr(spec.lr_factors, roles[name].role),
            "weight_decay": 0.0 if roles[name].role in spec.no_decay else spec.weight_decay,
        }
        for name in parameters
        if not is_muon[name]
    ]
    adamw = torch.optim.AdamW(rest, betas=spec.betas, eps=spec.eps)
    momenta = {name: torch.zeros_like(each) for name, each in parameters.items() if is_muon[name]}
    for number, step in enumerate(script):
        passes = [part for worker in step.passes for part in worker]
        module.zero_grad()
        for part in passes:
            (module("loss", batch_of(number, part), noise_of(number, part))[0] / len(passes)).backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), experiment.training.clip.max_norm)
        adamw.step()
        with torch.no_grad():
            for name, momentum in momenta.items():
                one, role = parameters[name], roles[name]
                momentum.mul_(spec.momentum).add_(one.grad)
                followed = one.grad + spec.momentum * momentum if spec.nesterov else momentum
                turned = followed.transpose(0, 1) if role.is_transposed else followed
                parts = turned.flatten(1).chunk(role.num_parts)
                update = torch.cat([plain_muon(part) * _scale(spec.scale, *part.shape) for part in parts])
                update = update.view(turned.shape)
                rate = spec.lr * getattr(spec.lr_factors, role.role)
                one.mul_(1 - rate * spec.weight_decay)
                one.sub_(rate * (update.transpose(0, 1) if role.is_transposed else update).float())
    return {name: parameter.detach() for name, parameter in parameters.items()}


def _scale(kind, rows, columns):
    return 0.2 * math.sqrt(max(rows, columns)) if kind == "rms" else math.sqrt(max(1, rows / columns))


def assert_close(state, expected):
    for name, weights in expected.items():
        found = state.tensors["master", name].view(weights.shape)
        torch.testing.assert_close(found, weights, rtol=2e-5, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("shape", [(16, 16), (8, 40), (40, 8), (3, 12, 20)], ids=str)
def test_singular_values_are_brought_near_one_and_directions_stay(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonalise(matrix)
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    large = values > 0.02 * matrix.norm(dim=(-2, -1)).unsqueeze(-1)  # smaller ones are on their way yet
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
    expected = plain_training(muon(**fields), SCRIPT)
    assert_close(drive_here(Job(muon(stage, **fields), SCRIPT)).state, expected)


@pytest.mark.parametrize("fields", [{"nesterov": False}, {"scale": "spectral", "momentum": 0.5}], ids=str)
def test_variants_and_convolutions(fields):
    """Biases ahead of a norm of one channel are left out: their gradient is rounding, which Adam makes a step of."""
    trained = plain_training(muon(model=UNET, **fields), SCRIPT)
    expected = {name: weights for name, weights in trained.items() if weights.ndim > 1}
    assert sum(weights.ndim == 4 for weights in expected.values()) > 15
    assert_close(drive_here(Job(muon(1, UNET, **fields), SCRIPT)).state, expected)


def test_two_workers_train_the_same_weights_at_every_stage(tmp_path):
    """And what they saved goes on at every other stage on one worker."""
    paths = [tmp_path / f"stage-{stage}" for stage in STAGES]
    traces = drive_workers([Job(muon(stage), SPLIT, save=path) for stage, path in zip(STAGES, paths, strict=True)], 2)
    expected = plain_training(muon(), SCRIPT)
    for trace in traces:
        assert_close(trace.state, expected)
    more = Step([[Pass(6), Pass(7)]], number=3)
    expected = plain_training(muon(), [*SCRIPT, more])
    for stage, path in zip(STAGES, reversed(paths), strict=True):
        assert_close(drive_here(Job(muon(stage), [more], load=path)).state, expected)


@pytest.mark.parametrize("stage", STAGES)
def test_resume_is_bit_identical(tmp_path, stage):
    steps = [Step([[Pass(number)]], number=number) for number in range(4)]
    unbroken = drive_here(Job(muon(stage), steps))
    drive_here(Job(muon(stage), steps[:2], save=tmp_path / "half"))
    assert drive_here(Job(muon(stage), steps[2:], load=tmp_path / "half")).state.equals(unbroken.state)


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_that_is_left_out_changes_nothing(stage):
    script = [Step([[Pass(0)]]), Step([[Pass(1, poison=True)]]), Step([[Pass(2)]], healthy=False)]
    states = drive_here(Job(muon(stage), script, kept=range(3))).states
    assert states[1].equals(states[0]) and states[2].equals(states[0])


def test_state_has_one_moment_for_matrices_and_two_for_the_rest():
    experiment = muon(2)
    state = drive_here(Job(experiment, SCRIPT)).state
    roles = parameter_roles(module_for(experiment))
    for name, role in roles.items():
        held = {field for field, owner in state.tensors if owner == name}
        assert held == {"master", "ema", *experiment.optimizer.rates(role.role).moments}, name
        assert ("momentum" in held) == (role.role == "matrix")


@pytest.mark.parametrize("stage", STAGES)
def test_groups_of_adamw_train_as_plain_ones_and_take_over_an_older_state(stage, tmp_path):
    """A state of one group goes into several, and back."""
    grouped = small(stage, kind="adamw", lr_factors={"head": 2.0})
    assert_close(drive_here(Job(grouped, SCRIPT)).state, plain_training(grouped, SCRIPT))
    single = small(stage, kind="adamw", no_decay=[])
    before = drive_here(Job(single, SCRIPT, save=tmp_path / "single")).state
    moved = drive_here(
        Job(grouped, [Step([[Pass(9)]], healthy=False)], load=tmp_path / "single", save=tmp_path / "many")
    )
    back = drive_here(Job(single, [Step([[Pass(9)]], healthy=False)], load=tmp_path / "many"))
    assert moved.state.equals(before) and back.state.equals(before)


@pytest.mark.parametrize("written", ["adamw", "muon"])
def test_a_checkpoint_of_the_other_optimiser_is_refused(written, tmp_path):
    other = {"adamw": "muon", "muon": "adamw"}[written]
    train_here(small(1, kind=written), tmp_path, tmp_path / "checkpoints", stop_after=3)
    sentence = f"optimizer.kind={other} cannot go on from a checkpoint that optimizer.kind={written} wrote"
    with pytest.raises(UserError, match=sentence):
        train_here(small(1, kind=other), tmp_path, tmp_path / "checkpoints")
