"""Rotary positions on several axes."""

import pytest
import torch

from denoisers.layers.rope import AxisTable, MRoPE, rotate, rotation

LENGTHS, WIDTHS = (13, 20, 20), (4, 6, 6)


def scores(q, k, positions):
    by = MRoPE(LENGTHS, WIDTHS)(positions, torch.float64)
    return rotate(q, by, "neighbours") @ rotate(k, by, "neighbours").transpose(-2, -1)


@pytest.fixture
def qk():
    return torch.randn(2, 3, 9, 16).double(), torch.randn(2, 3, 9, 16).double()


def test_looked_up_rotations_are_the_computed_ones():
    table, at = AxisTable(513, 16, 10000.0), torch.tensor([[0, 512], [7, 300]])
    found = table(at)
    expected = rotation(at.flatten(), 16)
    assert torch.equal(found.cos.flatten(0, 1), expected.cos) and torch.equal(found.sin.flatten(0, 1), expected.sin)


def test_tables_keep_their_digits_in_a_half_precision_network_and_out_of_checkpoints():
    table = MRoPE(LENGTHS, WIDTHS)
    positions = torch.randint(0, 13, (2, 5, 3))
    before = table(positions, torch.float64)
    assert torch.equal(table.bfloat16()(positions, torch.float64).cos, before.cos)
    assert not table.state_dict()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scores_do_not_change_when_all_tokens_move_along_an_axis(qk, axis):
    positions = torch.randint(0, 8, (2, 9, 3))
    moved = positions.clone()
    moved[..., axis] += 5
    torch.testing.assert_close(scores(*qk, positions), scores(*qk, moved))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scores_do_change_when_one_token_moves_along_an_axis(qk, axis):
    positions = torch.randint(0, 8, (2, 9, 3))
    moved = positions.clone()
    moved[:, 4, axis] += 5
    change = (scores(*qk, positions) - scores(*qk, moved)).abs().amax(dim=(0, 1))
    assert change[4].sum() - change[4, 4] > 0.1
    rest = torch.arange(9) != 4
    assert change[rest][:, rest].max() < 1e-12


def test_each_axis_turns_its_own_run_of_entries():
    """Axis by axis: the entries 0-3, 4-9 and 10-15 of a head, pairs of neighbours, by their own frequencies."""
    x = torch.ones(1, 1, 1, 16).double()
    for axis, first, last in ((0, 0, 4), (1, 4, 10), (2, 10, 16)):
        positions = torch.zeros(1, 1, 3, dtype=torch.int64)
        positions[..., axis] = 3
        turned = rotate(x, MRoPE(LENGTHS, WIDTHS, base=100.0)(positions, torch.float64), "neighbours").flatten()
        inside = torch.zeros(16, dtype=torch.bool)
        inside[first:last] = True
        assert torch.equal(turned[~inside], torch.ones(12 if axis == 0 else 10).double())
        angles = 3 * 100.0 ** (-torch.arange(0, last - first, 2).double() / (last - first))
        torch.testing.assert_close(turned[inside][0::2], angles.cos() - angles.sin())
        torch.testing.assert_close(turned[inside][1::2], angles.cos() + angles.sin())
