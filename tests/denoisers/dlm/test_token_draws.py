"""Draws of tokens by their probabilities: exact frequencies, in bounded memory."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from denoisers.dlm import reverse_process
from denoisers.dlm.reverse_process import draw_tokens, euler_probabilities

GPT2 = 50257


def as_they_are(output, _x):
    return output


def draw(probabilities, uniform):
    """Draw one token for each uniform number, all by the same probabilities."""
    rows = torch.tensor(probabilities, dtype=torch.float64).expand(1, len(uniform), -1)
    at = torch.tensor([uniform], dtype=torch.float64)
    return draw_tokens(as_they_are, rows, torch.zeros(1, len(uniform), dtype=torch.int64), at)[0].tolist()


def test_tokens_are_drawn_by_their_probabilities():
    assert draw([0.2, 0.0, 0.5, 0.3], [0.0, 0.1999, 0.2, 0.6999, 0.7, 1 - 2**-53]) == [0, 0, 2, 2, 3, 3]


def test_probabilities_need_not_sum_to_1_and_tokens_of_0_are_never_drawn():
    assert draw([0.0, 4.0, 0.0, 12.0, 0.0], [0.0, 0.2499, 0.25, 1 - 2**-53]) == [1, 1, 3, 3]
    assert draw([0.0, 1.0, 0.0], [0.0, 1 - 2**-53]) == [1, 1]


def test_tiny_probabilities_are_kept():
    """A step of 1e-4 of noise from log scores 0: each other token of 50,257 has a probability of 2e-9."""
    output, x = torch.zeros(1, 3, GPT2), torch.full((1, 3), 7)
    first = (1e-4 / GPT2) * 3.5  # within the fourth token's probability
    last = 1 - (1e-4 / GPT2) * 2.5  # within those of the third from the end
    uniform = torch.tensor([[first, 0.5, last]], dtype=torch.float64)
    assert draw_tokens(euler_probabilities(1e-4, "log"), output, x, uniform).tolist() == [[3, 7, GPT2 - 3]]


@pytest.mark.parametrize("entries", [1, 40, 10**6])
def test_chunks_change_nothing(monkeypatch, entries):
    generator = torch.Generator().manual_seed(0)
    output, x = torch.randn(3, 10, 11, generator=generator), torch.randint(11, (3, 10), generator=generator)
    uniform = torch.rand(3, 10, generator=generator, dtype=torch.float64)
    at_once = draw_tokens(euler_probabilities(0.5, "log"), output, x, uniform)
    monkeypatch.setattr(reverse_process, "CHUNK_ENTRIES", entries)
    assert torch.equal(draw_tokens(euler_probabilities(0.5, "log"), output, x, uniform), at_once)


class LargestNew(TorchDispatchMode):
    """Size of the largest new tensor, views of `known` left out."""

    def __init__(self, known):
        super().__init__()
        self.known = known.untyped_storage().data_ptr()
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() != self.known:
                self.entries = max(self.entries, each.numel())
        return made


@pytest.mark.parametrize("score", ["log", "softmax"])
@pytest.mark.parametrize("solver", ["euler", "analytic", "categorical"])
def test_no_second_tensor_of_the_outputs_size_is_made(monkeypatch, solver, score):
    monkeypatch.setattr(reverse_process, "CHUNK_ENTRIES", 1000)
    output, x = torch.randn(2, 64, 100), torch.randint(100, (2, 64))
    probabilities = {
        "euler": reverse_process.euler_probabilities(0.1, score),
        "analytic": reverse_process.analytic_probabilities(0.1, score),
        "categorical": reverse_process.categorical_probabilities,
    }
    uniform = torch.rand(2, 64, dtype=torch.float64)
    with LargestNew(output) as made:
        draw_tokens(probabilities[solver], output, x, uniform)
    assert 0 < made.entries <= 1000


def test_nan_output_still_gives_tokens_of_the_vocabulary():
    nan = torch.full((1, 2, 5), torch.nan)
    drawn = draw_tokens(euler_probabilities(0.1, "log"), nan, torch.zeros(1, 2, dtype=torch.int64), torch.rand(1, 2))
    assert ((drawn >= 0) & (drawn < 5)).all()
