"""Bounds of a proof, where they are known in closed form: rounding is within them, what is twice as far is not."""

import pytest
import torch

from ditlab.checking.prove.gradients import compare_gradients, compare_losses, compare_norm, norm_bound
from ditlab.checking.prove.recording import DrawKey, RecordedPass, RecordedStep, join_steps
from ditlab.checking.prove.reference import ReferenceGradient
from ditlab.checking.prove.tolerances import FLOAT32, MARGIN, UNITS, joint_norm, stored_dtype

KEYS = [DrawKey(0, "train", 3, number, 4, 0) for number in range(2)]


def reading(gradient: torch.Tensor, total: float = 1.0, size: float | None = None) -> ReferenceGradient:
    parts = {"network.one.weight": gradient[:8], "network.two.weight": gradient[8:]}
    sizes = {name: float(each.norm()) if size is None else size for name, each in parts.items()}
    return ReferenceGradient(parts, sizes, [total] * 2, [{"velocity": total}] * 2)


def engine(gradient: torch.Tensor, total: float = 1.0, norm: float | None = None) -> RecordedStep:
    """A worker's record of a step with a gradient."""
    passes = [RecordedPass(key, [], total, {"velocity": total}) for key in KEYS]
    slices = {("gradient", "network.one.weight", 0): gradient[:8], ("gradient", "network.two.weight", 0): gradient[8:]}
    reported = float(gradient.double().norm()) if norm is None else norm
    metrics = {"train/loss": total, "train/grad_norm": reported}
    return RecordedStep(3, {}, {}, passes, {key: values.float() for key, values in slices.items()}, metrics=metrics)


@pytest.mark.parametrize("dtype", UNITS)
def test_units_are_half_the_distance_of_numbers_at_most(dtype):
    assert UNITS[dtype] >= torch.finfo(dtype).eps / 2
    values = torch.rand(1000, generator=torch.Generator().manual_seed(1)) + 1
    assert float(((values.to(dtype).double() - values.double()) / values.double()).abs().max()) <= UNITS[dtype]


def test_a_joint_norm_is_that_of_all_values_and_a_stored_dtype_the_coarsest_that_holds_them():
    assert joint_norm([torch.full((2,), 3.0), torch.full((2,), 4.0)]) == pytest.approx(50**0.5)
    assert norm_bound(2.0, 100) == MARGIN * FLOAT32 * 2 * 10
    values = torch.tensor([1 / 3, 0.5])
    assert [stored_dtype(values.to(each).float()) for each in (torch.bfloat16, torch.float16, torch.float32)] == [
        torch.bfloat16, torch.float16, torch.float32
    ]  # fmt: skip


def test_a_gradient_holds_up_to_the_margin_and_the_module_beyond_it_is_named():
    exact = torch.linspace(1, 2, 16, dtype=torch.float64)
    low = reading(exact * (1 + 1e-5))  # one reading's distance from the other, relative, in both modules
    for far, expected in ((0.9 * MARGIN, []), (1.1 * MARGIN, ["network.two"])):
        found = exact.clone()
        found[8:] *= 1 + far * 1e-5
        compared = compare_gradients(join_steps([engine(found)]), reading(exact), low, torch.float32)
        assert [each.module for each in compared if not each.holds] == expected


def test_gradients_that_cancel_are_judged_by_what_they_are_sums_of():
    exact = torch.full((16,), 1e-6, dtype=torch.float64)
    found = exact + 5e-8  # large beside the sum, a rounding beside summands of norm 1
    for size, num_off in ((1.0, 0), (1e-6, 2)):
        readings = reading(exact, size=size)
        compared = compare_gradients(join_steps([engine(found)]), readings, readings, torch.float32)
        assert sum(not each.holds for each in compared) == num_off


def test_workers_that_hold_other_gradients_are_found_and_a_missing_one_is_zero():
    exact = torch.ones(16, dtype=torch.float64)
    workers = [engine(exact), engine(exact)]
    workers[1].gradients["gradient", "network.two.weight", 0] = torch.zeros(8)
    found = list(compare_gradients(join_steps(workers), reading(exact), reading(exact), torch.float32))
    assert [each.what for each in found if not each.holds] == ["alike on all workers"]
    del workers[0].gradients["gradient", "network.one.weight", 0]
    alone = compare_gradients(join_steps(workers[:1]), reading(exact), reading(exact), torch.float32)
    assert [each.module for each in alone if not each.holds] == ["network.one"]


def test_losses_and_norms_hold_within_roundings_alone():
    exact = torch.ones(16, dtype=torch.float64)
    for total, norm, off in ((1.0, None, []), (1 + 1e-5, None, ["velocity"]), (1.0, 4.001, ["before clipping"])):
        whole = join_steps([engine(exact, total, norm)])
        found = [*compare_losses(whole, KEYS, reading(exact), reading(exact), torch.float32), *compare_norm(whole)]
        assert [each.what for each in found if not each.holds] == off
