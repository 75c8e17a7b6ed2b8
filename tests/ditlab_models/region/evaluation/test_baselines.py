"""Baselines of masked regions: closed forms on sequences with a known best prediction."""

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.region.evaluation import fit_baselines, impute_nearest, neighbours
from ditlab_models.region.objective import Agreement
from support.models.region_rows import as_row_set, gaussian_chain


def window(*cells: str):
    """x (1, R, 1), mask and present (1, R) from cells: a number is visible, `?` masked, `-`
    padding.
    """
    values = [0.0 if cell in "?-" else float(cell) for cell in cells]
    mask = torch.tensor([[cell == "?" for cell in cells]])
    present = torch.tensor([[cell != "-" for cell in cells]])
    return torch.tensor(values)[None, :, None], mask, present


def r2(predictor, x, mask, present):
    predicted, target = predictor(x, mask, present), x[mask]
    return float(
        Agreement.of(target, predicted, torch.ones(len(target), dtype=torch.bool)).r2_within()
    )


def test_neighbours_are_the_nearest_seen_regions_of_the_same_window():
    x, mask, present = window("1", "2", "?", "?", "5", "?", "-")
    found = neighbours(x, mask, present)
    assert found.values[..., 0].tolist() == [[2, 1, 5, 0], [2, 1, 5, 0], [5, 2, 0, 0]]
    assert found.exists.tolist() == [[True, True, True, False]] * 2 + [[True, True, False, False]]
    assert found.distance.tolist() == [[1, 2, 2, 0], [2, 3, 1, 0], [1, 4, 0, 0]]


def test_nearest_takes_the_left_one_of_two_and_the_mean_where_there_is_none():
    x, mask, present = (
        torch.cat(pair)
        for pair in zip(
            window("1", "?", "3", "?", "?", "6", "?", "-"),
            window("?", "?", "?", "-", "-", "-", "-", "-"),
            strict=True,
        )
    )
    found = impute_nearest(x, mask, present, torch.tensor([0.5], dtype=torch.float64))
    assert found.flatten().tolist() == [1, 3, 6, 6, 0.5, 0.5, 0.5]


def test_what_masked_regions_and_padding_hold_plays_no_part():
    x = gaussian_chain(40, 10, 2)
    present = torch.ones(40, 10, dtype=torch.bool)
    present[::2, 7:] = False
    mask = (torch.rand(40, 10) < 0.5) & present
    spoilt = torch.where((mask | ~present)[..., None], 1e6, x)
    for name, baseline in fit_baselines(as_row_set(x, present), 16).items():
        assert torch.equal(baseline(x, mask, present), baseline(spoilt, mask, present)), name
    fitted = fit_baselines(as_row_set(torch.where(present[..., None], x, 1e6), present), 16)
    assert torch.equal(
        fitted["ridge"].weights, fit_baselines(as_row_set(x, present), 16)["ridge"].weights
    )


def test_the_motif_mean_is_that_of_present_regions_and_explains_nothing_within_features():
    x = torch.tensor([1.0, -2.0]) + gaussian_chain(1000, 16, 2)
    present = torch.ones(1000, 16, dtype=torch.bool)
    present[:, 12:] = False
    mean = fit_baselines(as_row_set(x, present), 300)["motif_mean"]
    mask = (torch.rand(1000, 16) < 0.5) & present
    assert_close(mean(x, mask, present)[0], x[:, :12].double().mean((0, 1)))
    assert r2(mean, x, mask, present) == pytest.approx(0.0, abs=1e-3)


def test_the_regression_is_near_the_optimum_of_a_gaussian_chain():
    """Every second region masked: the best prediction is rho / (1 + rho^2) times the sum of both
    neighbours, which leaves (1 - rho^2) / (1 + rho^2) of the variance."""
    rho = 0.8
    x = gaussian_chain(4000, 16, 2, rho)
    present = torch.ones(4000, 16, dtype=torch.bool)
    mask = torch.zeros_like(present)
    mask[:, 1:15:2] = True
    optimum = 1 - (1 - rho**2) / (1 + rho**2)
    baselines = fit_baselines(as_row_set(x, present), 500)
    assert optimum - 0.05 < r2(baselines["ridge"], x, mask, present) < optimum + 0.02
    # of one neighbour alone: 1 - 2 (1 - rho)
    assert r2(baselines["nearest"], x, mask, present) == pytest.approx(1 - 2 * (1 - rho), abs=0.03)


def test_the_regression_reads_other_features():
    """The second feature is the first one of the region before, so the left neighbour determines
    it.
    """
    x = torch.randn(2000, 12, 2)
    x[:, 1:, 1] = x[:, :-1, 0]
    present = torch.ones(2000, 12, dtype=torch.bool)
    mask = torch.zeros_like(present)
    mask[:, 5] = True
    ridge = fit_baselines(as_row_set(x, present), 256)["ridge"]
    assert r2(ridge, x, mask, present) > 0.3


def test_nothing_to_fit_on_gives_numbers_all_the_same():
    x = torch.zeros(3, 5, 2)
    x[:, 0] = 1.0
    for present in (torch.zeros(3, 5, dtype=torch.bool), torch.arange(5).expand(3, 5) < 1):
        mask = torch.ones_like(present) & present
        for baseline in fit_baselines(as_row_set(x, present), 2).values():
            assert baseline(x, mask, present).isfinite().all()
