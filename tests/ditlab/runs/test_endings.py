"""Twelve ends by signals, drawn by way, phase and moment (`support.trainings.endings`)."""

import random

import pytest

from support.trainings.endings import Endings

SEED = 36


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("where, count", [("local", 8), ("Ray", 4)])
def test_a_run_ends_in_time_leaves_nothing_and_is_resumed_to_the_same_bits(where, count, tmp_path):
    endings, drawn = Endings(tmp_path, on_ray=where == "Ray"), random.Random(SEED)
    found = [endings.draw(drawn) for _ in range(count)]
    print(f"seed {SEED}", *found, sep="\n")
    assert not [str(each) for each in found if each.faults]
