"""Rotary positions on one axis and on several."""

import pytest
import torch

from ditlab_models.layers.rope import AxisTable, MRoPE, Rotation, rotate, rotation


def test_it_keeps_norms_and_position_0_as_it_is():
    x = torch.randn(2, 3, 9, 16).double()
    by = rotation(torch.arange(9), 16, dtype=torch.float64)
    turned = rotate(x, by)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    assert not torch.allclose(turned[:, :, 1:], x[:, :, 1:], atol=0.1)


def test_products_depend_on_relative_position_alone():
    q, k = torch.randn(7, 16).double(), torch.randn(7, 16).double()

    def products(first):
        by = rotation(torch.arange(first, first + 7), 16, dtype=torch.float64)
        return rotate(q, by) @ rotate(k, by).T

    torch.testing.assert_close(products(0), products(1000))
    same = rotation(torch.arange(7), 16, dtype=torch.float64)
    apart = rotation(torch.arange(3, 10), 16, dtype=torch.float64)
    assert not torch.allclose(rotate(q, same) @ rotate(k, apart).T, products(0), atol=0.1)


def test_pairs_are_half_a_head_apart_and_turn_by_their_frequency():
    """At position m, unit vector j becomes cos(m theta_j) there and sin(m theta_j) at j + K / 2."""
    theta = 100.0 ** (-2 * torch.arange(3).double() / 6)
    turned = rotate(
        torch.eye(6).double()[:, None],
        rotation(torch.tensor([5]), 6, base=100.0, dtype=torch.float64),
    )
    expected = torch.zeros(6, 6).double()
    j = torch.arange(3)
    expected[j, j] = expected[j + 3, j + 3] = (5 * theta).cos()
    expected[j, j + 3], expected[j + 3, j] = (5 * theta).sin(), -(5 * theta).sin()
    torch.testing.assert_close(turned[:, 0], expected)


def test_neighbours_are_the_same_pairs_in_another_order():
    """Entries 2j and 2j + 1 turn as j and j + K / 2 do in halves."""
    x, by = torch.randn(2, 9, 16).double(), rotation(torch.arange(9), 16, dtype=torch.float64)
    order = torch.arange(16).view(2, 8).T.flatten()  # 0, 8, 1, 9, ...
    torch.testing.assert_close(rotate(x[..., order], by, "neighbours"), rotate(x, by)[..., order])


def test_tokens_of_each_sample_may_have_a_rotation_of_their_own():
    x = torch.randn(2, 3, 9, 16).double()
    rotations = [
        rotation(torch.arange(first, first + 9), 16, dtype=torch.float64) for first in (0, 4)
    ]
    own = Rotation(*(torch.stack(each)[:, None] for each in zip(*rotations, strict=True)))
    for layout in ("halves", "neighbours"):
        expected = torch.stack(
            [rotate(each, by, layout) for each, by in zip(x, rotations, strict=True)]
        )
        torch.testing.assert_close(rotate(x, own, layout), expected)


def test_far_positions_keep_their_digits():
    """float32 angles of about 1e5 would be off by 4e-3."""
    far = torch.tensor([100_003])
    single, double = rotation(far, 64), rotation(far, 64, dtype=torch.float64)
    torch.testing.assert_close(single.sin.double(), double.sin, rtol=0, atol=1e-7)


def test_half_precision_is_turned_in_float32():
    x = torch.randn(2, 64).bfloat16()
    by = rotation(torch.tensor([0, 1000]), 64)
    turned = rotate(x, by)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rotate(x.float(), by).bfloat16())


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="width 7"):
        rotation(torch.arange(3), 7)


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
    assert torch.equal(found.cos.flatten(0, 1), expected.cos) and torch.equal(
        found.sin.flatten(0, 1), expected.sin
    )


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
    """Axis by axis: the entries 0-3, 4-9 and 10-15 of a head, pairs of neighbours, by their own
    frequencies.
    """
    x = torch.ones(1, 1, 1, 16).double()
    for axis, first, last in ((0, 0, 4), (1, 4, 10), (2, 10, 16)):
        positions = torch.zeros(1, 1, 3, dtype=torch.int64)
        positions[..., axis] = 3
        turned = rotate(
            x, MRoPE(LENGTHS, WIDTHS, base=100.0)(positions, torch.float64), "neighbours"
        ).flatten()
        inside = torch.zeros(16, dtype=torch.bool)
        inside[first:last] = True
        assert torch.equal(turned[~inside], torch.ones(12 if axis == 0 else 10).double())
        angles = 3 * 100.0 ** (-torch.arange(0, last - first, 2).double() / (last - first))
        torch.testing.assert_close(turned[inside][0::2], angles.cos() - angles.sin())
        torch.testing.assert_close(turned[inside][1::2], angles.cos() + angles.sin())
