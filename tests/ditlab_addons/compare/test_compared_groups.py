"""Groups of seeds in a comparison: mean curves, differences from pairs or from means, and their
sentences.
"""

import numpy as np
import pytest

from ditlab_addons.compare.comparison import Comparison, RunCurve, group_of
from ditlab_addons.compare.page import summary_text, write_comparison
from support.compared import compared_run

STEPS = np.array([0.0, 50.0, 100.0])
SHARED = (0.3, -0.2, 0.1, 0.25)


def member(name, seed, last, **draws):
    values = np.array([2.0, 1.5, last])
    return compared_run(
        f"{name}{seed}",
        spec={"seed": str(seed), "model.family": "dit"},
        curves={"eval/velocity": RunCurve(STEPS, STEPS, values)},
        draws={"seed": seed, "batch.size": 10, **draws},
    )


def group(name, offset, num=3, noise=(0.01, -0.01, 0.0, 0.0), **draws):
    members = [
        member(name, seed, 1 + SHARED[seed] + offset + noise[seed], **draws) for seed in range(num)
    ]
    return group_of(name, name, members)


def compared(*runs):
    return Comparison(runs, seed=0)


def steps_difference(*runs):
    comparison = compared(*runs)
    return comparison.difference(comparison.budgets[0])


def test_groups_are_compared_by_pairs(tmp_path):
    one, two = group("one", 0.0), group("two", 0.1, noise=(0.0, 0.0, 0.0))
    mean = [2.0, 1.5, 1 + sum(SHARED[:3]) / 3]
    assert one.curves["eval/velocity"].values.tolist() == pytest.approx(mean)
    found = steps_difference(one, two)
    assert (found.num, found.num_other, found.excludes_zero) == (3, 0, True)
    assert found.mean == pytest.approx(-0.1)
    text = summary_text(compared(one, two))
    assert "one before two by 0.100 +- 0.025 in velocity (95 %, 3 pairs)" in text
    assert "Each is one run" not in text
    page = write_comparison(compared(one, two), tmp_path)[1].read_text()
    assert "| seeds | 0, 1, 2 | 0, 1, 2 |" in page and "1.07 +- 0.6" in page


def test_two_pairs_have_a_wide_interval_and_one_has_none():
    found = steps_difference(group("one", 0.0, 3), group("two", 0.1, 2))  # seeds that both have
    assert found.num == 2 and np.isfinite(found.half_width)
    assert steps_difference(group("one", 0.0), member("two", 0, 1.5)) is None


def test_groups_without_common_draws_are_compared_by_means():
    one, two = group("one", 0.0), group("two", 0.1, **{"batch.size": 20})
    found = steps_difference(one, two)
    assert (found.num, found.num_other) == (3, 3) and not found.excludes_zero
    text = summary_text(compared(one, two))
    assert "no difference larger than" in text and "3 and 3 seeds, unpaired" in text


def test_the_lowest_of_three_groups_holds_together_with_all_of_them():
    noisy = (0.02, -0.01, -0.01)
    groups = [group("one", 0.0), group("two", 0.1, noise=(0.0, 0.0, 0.0))]
    found = steps_difference(*groups, group("three", 0.3, noise=noisy))
    assert found.num_together == 2 and found.mean == pytest.approx(-0.1)
    assert found.half_width > steps_difference(*groups).half_width


def test_a_pair_far_from_the_others_is_named():
    groups = [group("one", 0.0, 4), group("two", 0.1, 4, noise=(0.0, 0.0, 3.0, 0.01))]
    said = "The pair of seed 2 is far from the others, and the interval depends on it"
    assert said in summary_text(compared(*groups))
