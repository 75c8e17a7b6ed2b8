"""Decisions on conditions: a rate off, and a batch that decides as one, show; chance does not."""

import torch

from ditlab.checking.prove.life import PASSES, ROWS, compare_decisions


def decided(rate, shared=False, seed=0):
    drawn = torch.rand(PASSES, ROWS, generator=torch.Generator().manual_seed(seed))
    return ((drawn[:, :1].expand(PASSES, ROWS) if shared else drawn) < rate).float()


def test_chance_holds_and_a_shared_decision_does_not():
    for rate in (0.01, 0.1, 0.5, 0.9):
        for seed in range(20):
            assert all(each.distance <= each.bound for each in compare_decisions(decided(rate, seed=seed), rate))
    for rate in (0.1, 0.5, 0.9):
        _, alike = compare_decisions(decided(rate, shared=True), rate)
        assert alike.distance > alike.bound and "alike" in alike.what


def test_another_rate_shows():
    for rate, other in ((0.1, 0.2), (0.1, 0.0), (0.5, 0.3)):
        share, _ = compare_decisions(decided(other), rate)
        assert share.distance > share.bound, (rate, other)
