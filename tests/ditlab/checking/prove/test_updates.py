"""Plain updates of a proof, against torch.optim and closed forms."""

import math

import pytest
import torch

from denoisers.parameters import ParameterRole
from ditlab.checking.prove.updates import adamw, clip, ema_decay, muon, orthogonalise, power_decay
from ditlab.spec.optimization import AdamW, Muon, NoClip, NormClip, RatioZClip, ZClip


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_adamw_is_that_of_torch_and_its_scales_are_above_its_terms():
    spec = AdamW(lr=1e-2, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.3)
    theirs = torch.nn.Parameter(randn(50))
    optimizer = torch.optim.AdamW([theirs], lr=spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=0.3)
    weights, state = theirs.detach().clone(), {name: torch.zeros(50).double() for name in ("exp_avg", "exp_avg_sq")}
    for number in range(1, 6):
        theirs.grad = randn(50, seed=number)
        optimizer.step()
        own = adamw(spec, spec.lr, 0.3, weights, theirs.grad, state, number)
        assert bool((own.change_scale >= own.change.abs() * (1 - 1e-12)).all())
        weights, state = weights + own.change, own.moments
        torch.testing.assert_close(weights, theirs.detach(), rtol=1e-12, atol=1e-13)
        for name, values in state.items():
            torch.testing.assert_close(values, optimizer.state[theirs][name], rtol=1e-12, atol=1e-15)
            assert bool((own.moment_scales[name] >= values.abs()).all())


@pytest.mark.parametrize("nesterov", [False, True])
def test_muon_is_that_of_torch_but_for_its_half_precision(nesterov):
    spec = Muon(lr=1e-2, momentum=0.9, nesterov=nesterov)
    for shape in ((6, 20), (20, 6)):
        theirs = torch.nn.Parameter(randn(*shape).float())
        optimizer = torch.optim.Muon(
            [theirs], lr=spec.lr, momentum=0.9, nesterov=nesterov, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
        )
        weights, momentum = theirs.detach().double().view(-1), torch.zeros(120).double()
        for number in range(3):
            theirs.grad = randn(*shape, seed=number + 1).float()
            before = theirs.detach().double().clone()
            optimizer.step()
            gradient = theirs.grad.double().view(-1)
            own = muon(spec, ParameterRole("matrix"), theirs.shape, spec.lr, 0.1, weights, gradient, momentum)
            moved = (theirs.detach().double() - before).view(-1)
            assert float((own.change - moved).norm()) < 0.03 * float(moved.norm())
            weights, momentum = theirs.detach().double().view(-1), own.moments["momentum"]


def test_matrices_of_a_fused_and_of_a_transposed_weight_are_turned_each_alone():
    spec, zeros = Muon(scale="spectral", nesterov=False, weight_decay=0.0), torch.zeros(96).double()
    gradient = randn(96)
    fused = muon(spec, ParameterRole("matrix", 3), torch.Size((12, 8)), 1.0, 0.0, zeros, gradient, zeros).change
    one = muon(spec, ParameterRole("matrix"), torch.Size((4, 8)), 1.0, 0.0, zeros[:32], gradient[:32], zeros[:32])
    torch.testing.assert_close(fused[:32], one.change)
    transposed, shape = ParameterRole("convolution", 1, True), torch.Size((12, 2, 2, 2))
    turned = muon(spec, transposed, shape, 1.0, 0.0, zeros, gradient, zeros)
    matrix = gradient.view(12, 2, 4).transpose(0, 1).reshape(2, 48)
    expected = -orthogonalise(matrix).view(2, 12, 4).transpose(0, 1).reshape(-1)
    torch.testing.assert_close(turned.change, expected)
    singular = torch.linalg.svdvals(orthogonalise(randn(5, 9)))
    assert float(singular.min()) > 0.6 and float(singular.max()) < 1.3


def test_clipping_divides_as_torch_does():
    for norm in (0.1, 0.5, 3.0):
        values = torch.nn.Parameter(torch.zeros(1))
        values.grad = torch.tensor([norm])
        torch.nn.utils.clip_grad_norm_([values], 0.5)
        factor = clip(NormClip(max_norm=0.5), norm, {}).factor
        assert norm / factor == pytest.approx(float(values.grad), rel=1e-6)
    assert clip(NoClip(), 1e9, {}).factor == 1


def test_adaptive_limits_are_the_published_ones():
    held = {"clip.count": 2.0, "clip.mean": 1.0, "clip.variance": 0.04}
    spike = clip(ZClip(z=2.0, decay=0.5, warmup=2, max_norm=None), 2.0, held)
    limit = 1 + 2**2 / 5 * 0.2  # mean + z^2 / z-score * sigma, at a z-score of (2 - 1) / 0.2
    assert spike.factor == pytest.approx((2 + 1e-6) / limit)
    assert spike.statistics["clip.mean"] == pytest.approx(0.5 + 0.5 * limit)
    assert clip(ZClip(z=2.0, decay=0.5, warmup=2, max_norm=None), 1.3, held).factor == 1
    beginning: dict[str, float] = {}
    for norm in (1.0, 2.0, 6.0):
        beginning = clip(ZClip(warmup=5), norm, beginning).statistics
    assert beginning["clip.mean"] == pytest.approx(3.0) and beginning["clip.variance"] == pytest.approx(14 / 3)
    ratio = clip(RatioZClip(ratio=2.0, decay=0.9), 4.0, held)
    assert ratio.factor == pytest.approx((4 + 1e-6) / 2) and ratio.statistics["clip.mean"] == pytest.approx(1.1)
    assert clip(RatioZClip(ratio=2.0), 4.0, {}).factor == 1


def test_decays_of_averages():
    assert [ema_decay(0.99, step) for step in (0, 8)] == [0.1, 0.5] and ema_decay(0.99, 10**6) == 0.99
    # Karras et al. 2024, table 1 of appendix C: gamma is 16.97 at 0.05 and 6.94 at 0.10.
    for length, gamma in ((0.05, 16.97), (0.10, 6.94)):
        assert math.log(power_decay(length, 100)) / math.log(1 - 1 / 100) - 1 == pytest.approx(gamma, abs=6e-3)
        assert power_decay(length, 1) == 0
