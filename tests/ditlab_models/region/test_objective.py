"""The region objective: closed forms, all reductions, masks, metrics, learning."""

import math
from dataclasses import asdict
from typing import get_args

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from ditlab_models.processes.draws import batch_means
from ditlab_models.processes.gaussian import linear_schedule
from ditlab_models.region.family import FAMILY
from ditlab_models.region.objective import Agreement, draw_mask
from ditlab_models.region.spec import Reduction, RegionObjectiveSpec, RegionWeights
from support.models.draws import Answering, KeyedNoise, perturb, seeded, train
from support.models.small_networks import region_spec


def zeros():
    """A network that predicts 0 for every region that is asked for."""
    return Answering(
        lambda x, mask, t, present, rows: x.new_zeros(*rows.shape, x.shape[-1]), torch.float64
    )


def objective(corruption="mask", **changes):
    return FAMILY.build_objective(
        RegionObjectiveSpec(**changes), region_spec(corruption=corruption)
    )


BOTH = RegionWeights(masked=1.0, accessibility=1.0)


def test_loss_of_a_zero_prediction_is_the_second_moment_of_masked_regions(windows):
    found = objective(weights=BOTH).loss(zeros(), windows, KeyedNoise())
    masked = zip(windows["regions"], draw_mask(windows, KeyedNoise(), 0.5), strict=True)
    squares = [x[mask].square() for x, mask in masked]
    assert_close(found["masked"], torch.stack([each.mean() for each in squares]).mean())
    last = torch.stack([each[:, -1].mean() for each in squares])
    assert_close(found["accessibility"], last.mean())


def test_reductions_differ_by_the_masked_share(windows):
    """In a window, the published code's mean over all entries is the masked share times the mean
    over masked ones; the published formula's sum over features is their number times it."""
    one = {name: values[3:] for name, values in windows.items()}
    mean = objective().loss(zeros(), one, KeyedNoise())["masked"]
    zeroed = objective(reduction="zeroed_mean").loss(zeros(), one, KeyedNoise())["masked"]
    mask = draw_mask(one, KeyedNoise(), 0.5)
    share = mask.sum() / 9  # of regions that are there: padding changes nothing
    assert_close(zeroed, share * mean)
    summed = one["regions"][mask].square().sum(-1).mean()
    assert_close(summed, 7 * mean)


def test_entries_count_alike_or_windows_do(windows):
    """A window with one masked region counts as much as one with nine in `masked_mean`, a ninth in
    `entry_mean`.
    """
    few = (torch.arange(12) < 1).expand(3, 12)
    many = torch.cat((few, (torch.arange(12) < 9)[None]))

    class Drawn(KeyedNoise):
        def uniform(self, name, shape):
            return torch.where(many, 0.0, 1.0) if name == "mask" else super().uniform(name, shape)

    x = windows["regions"]
    of_window = [x[i][many[i]].square().mean().item() for i in range(4)]
    by_window = objective().loss(zeros(), windows, Drawn())["masked"].item()
    by_entry = objective(reduction="entry_mean").loss(zeros(), windows, Drawn())["masked"].item()
    assert by_window == pytest.approx(sum(of_window) / 4)
    assert by_entry == pytest.approx(x[many].square().mean().item())
    assert abs(by_entry - by_window) > 1e-3


@pytest.mark.parametrize("reduction", get_args(Reduction))
def test_no_region_masked_gives_0_with_a_gradient(
    windows,
    reduction,
):
    spec = region_spec()
    network = perturb(FAMILY.build_network(spec).double())

    class NeverMasks(KeyedNoise):
        def uniform(self, name, shape):
            return torch.ones(shape) if name == "mask" else super().uniform(name, shape)

    built = FAMILY.build_objective(RegionObjectiveSpec(reduction=reduction, weights=BOTH), spec)
    found = built.loss(network, windows, NeverMasks())
    assert all(value.item() == 0 for value in found.values())
    sum(found.values()).backward()
    assert all(p.grad is not None and not p.grad.any() for p in network.parameters())
    metrics = built.summary(batch_means(built.metrics(network, windows, NeverMasks())))
    assert all(value == 0 for value in metrics.values())


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0])
def test_each_present_region_is_masked_by_itself_with_the_given_chance(ratio):
    present = torch.ones(400, 100, dtype=torch.bool)
    present[:, 90:] = False
    mask = draw_mask({"present": present}, KeyedNoise(), ratio)
    assert not mask[:, 90:].any()
    kept = mask[:, :90].double()
    assert kept.mean().item() == pytest.approx(
        ratio, abs=4 * math.sqrt(ratio * (1 - ratio) / 36_000)
    )
    # independent: numbers of masked regions of a window are binomial
    assert kept.sum(1).var().item() == pytest.approx(90 * ratio * (1 - ratio), rel=0.35, abs=1e-9)


def test_mask_corruption_hands_the_data_over_and_draws_t(windows):
    network = zeros()
    objective().loss(network, windows, KeyedNoise())
    x, _, t, *_ = network.calls[0]
    assert torch.equal(x, windows["regions"])
    assert t.dtype == torch.int64 and t.min() >= 0 and t.max() <= 999 and len(t.unique()) > 1


def test_ddpm_corruption_noises_masked_regions_alone(windows):
    network = zeros()
    objective("ddpm").loss(network, windows, KeyedNoise())
    x_t, mask, t, *_ = network.calls[0]
    x = windows["regions"]
    assert torch.equal(x_t[~mask], x[~mask])
    bar = linear_schedule(RegionObjectiveSpec().noise).alphas_cumprod[t][:, None, None]
    noise = KeyedNoise().normal("noise", x.shape)
    assert_close(x_t[mask], (bar.sqrt() * x + (1 - bar).sqrt() * noise)[mask])


def test_small_deviations_from_a_large_mean_are_not_rounded_away():
    """x = 1000 +- 0.01: its variance is 1e-10 of its second moment, below float32's resolution."""
    x = 1000 + torch.tensor([-0.01, 0.01], dtype=torch.float64)
    sums = Agreement.of(x[:, None], x[:, None], torch.ones(2, dtype=torch.bool)).total()
    means = {f"sum_{name}": float(value) for name, value in asdict(sums).items()}
    found = objective().summary(means)
    assert found["r2"] == found["pearson"] == pytest.approx(1, abs=1e-4)


def test_agreement_is_numpys():
    generator = seeded()
    x = torch.rand(500, 3, generator=generator).double() * torch.tensor([1.0, 5.0, 0.1])
    y = 0.6 * x + 0.1 * torch.rand(500, 3, generator=generator).double()
    counts = torch.rand(500, generator=generator) < 0.7
    sums = Agreement.of(x, y, counts)
    kept, guess = x[counts], y[counts]
    correlations = np.corrcoef(kept.T, guess.T)[:3, 3:].diagonal()
    assert sums.pearson().numpy() == pytest.approx(correlations)
    error, total = (kept - guess).square(), sums.total()
    assert_close(total.mse(), error.mean())
    assert_close(total.r2(), 1 - error.sum() / (kept - kept.mean()).square().sum())
    assert_close(sums.r2_within(), 1 - error.sum() / (kept - kept.mean(0)).square().sum())
    first, rest = slice(100), slice(100, None)
    parts = [Agreement.of(x[rows], y[rows], counts[rows]) for rows in (first, rest)]
    assert_close((parts[0] + parts[1]).total().pearson(), total.pearson())


def test_agreement_where_nothing_varies_is_0():
    same = torch.full((9, 2), 0.3)
    sums = Agreement.of(same, same, torch.ones(9, dtype=torch.bool))
    assert sums.r2().tolist() == sums.pearson().tolist() == [0, 0]
    nothing = Agreement.of(same, same, torch.zeros(9, dtype=torch.bool)).total()
    assert nothing.mse() == nothing.r2() == nothing.pearson() == 0


def test_training_approaches_the_best_loss():
    """Regions alternate between two patterns: with positions and neighbours, every masked one is
    certain.
    """
    patterns = torch.tensor([[1.0, 0, 1, 0, 1, 0, 1], [0, 1, 0, 1, 0, 1, 0]])
    starts = torch.arange(64) % 2
    x = patterns[(starts[:, None] + torch.arange(12)) % 2]
    batch = {"regions": x, "present": torch.ones(64, 12, dtype=torch.bool)}
    spec = region_spec(positions="sinusoidal", depth=2)
    network, built = FAMILY.build_network(spec), FAMILY.build_objective(RegionObjectiveSpec(), spec)
    train(network, built, batch, KeyedNoise, steps=120, rate=1e-2)
    found = built.summary(batch_means(built.metrics(network, batch, KeyedNoise(-1))))
    assert found["r2"] > 0.9 and found["pearson"] > 0.95 and found["spread"] > 0.3
