"""Rotary positions on one axis and on several."""

import torch
from torch.testing import assert_close

from ditlab_models.layers.rope import AxisTable, MRoPE, rotate, rotation


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
    assert_close(turned[:, 0], expected)


def test_neighbours_are_the_same_pairs_in_another_order():
    """Entries 2j and 2j + 1 turn as j and j + K / 2 do in halves."""
    x, by = torch.randn(2, 9, 16).double(), rotation(torch.arange(9), 16, dtype=torch.float64)
    order = torch.arange(16).view(2, 8).T.flatten()  # 0, 8, 1, 9, ...
    assert_close(rotate(x[..., order], by, "neighbours"), rotate(x, by)[..., order])


def test_far_positions_keep_their_digits():
    """float32 angles of about 1e5 would be off by 4e-3."""
    far = torch.tensor([100_003])
    single, double = rotation(far, 64), rotation(far, 64, dtype=torch.float64)
    assert_close(single.sin.double(), double.sin, rtol=0, atol=1e-7)


def test_half_precision_is_turned_in_float32():
    x = torch.randn(2, 64).bfloat16()
    by = rotation(torch.tensor([0, 1000]), 64)
    turned = rotate(x, by)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rotate(x.float(), by).bfloat16())


LENGTHS, WIDTHS = (13, 20, 20), (4, 6, 6)


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
