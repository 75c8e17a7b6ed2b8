"""Keyed random numbers depend on their key alone."""

import itertools

import pytest
import torch

from ditlab.inputs.noise import BLOCK, KeyedNoise, RowNoise, derived_seed

CPU = torch.device("cpu")
KEY = {"seed": 1, "stream": "train", "step": 5, "micro_index": 2, "micro_size": 8, "device": CPU}


def noise(**changes):
    return KeyedNoise(**{**KEY, **changes})


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_the_same_key_gives_the_same_numbers(distribution):
    one, two = (getattr(noise(), distribution)("time", (8, 3)) for _ in range(2))
    assert torch.equal(one, two)
    assert one.dtype == torch.float32 and one.shape == (8, 3)


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize(
    "change", [{"seed": 2}, {"stream": "evaluate"}, {"step": 6}, {"micro_index": 3}]
)
def test_another_key_gives_others(distribution, change):
    one, two = (
        getattr(source, distribution)("time", (8,)) for source in (noise(), noise(**change))
    )
    assert not torch.isin(one, two).any()


def test_names_are_part_of_the_key():
    assert not torch.isin(noise().uniform("time", (8,)), noise().uniform("time2", (8,))).any()


def test_keys_do_not_run_together():
    """(1, 23) and (12, 3) are two keys."""
    seeds = {
        derived_seed(*key) for key in itertools.product((1, 12, 123), ("a", "a/1"), (3, 23, 123))
    }
    assert len(seeds) == 18
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
def test_a_gpus_numbers_are_keyed_alike_and_not_a_cpus():
    device = torch.device("cuda", torch.cuda.current_device())
    for distribution in ("uniform", "normal"):
        one, two = (getattr(noise(device=device), distribution)("time", (8, 3)) for _ in range(2))
        assert one.device == device and torch.equal(one, two)
        assert torch.equal(
            getattr(noise(device=device, start=3), distribution)("time", (2, 3)), one[3:5]
        )
        assert not torch.isin(one.cpu(), getattr(noise(), distribution)("time", (8, 3))).any()


@pytest.mark.parametrize(("start", "length"), [(0, 4), (4, 4), (3, 2), (7, 1)])
def test_a_slice_gets_its_slice_of_the_whole(start, length):
    whole = noise().normal("noise", (8, 1, 4, 4))
    part = noise(start=start).normal("noise", (length, 1, 4, 4))
    assert torch.equal(part, whole[start : start + length])


def test_torchs_global_generator_is_neither_read_nor_changed():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one = noise().normal("noise", (8,))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    assert torch.equal(noise().normal("noise", (8,)), one)


@pytest.mark.parametrize("sizes", [[3 * BLOCK], [1] * 5, [7, BLOCK, 50], [BLOCK - 1, 2, BLOCK]])
def test_a_rows_numbers_do_not_depend_on_its_batch(sizes):
    whole = RowNoise(0, "evaluate", 0, CPU).normal("noise", (3 * BLOCK, 2))
    row = 0
    for size in sizes:
        assert torch.equal(
            RowNoise(0, "evaluate", row, CPU).normal("noise", (size, 2)), whole[row : row + size]
        )
        row += size
