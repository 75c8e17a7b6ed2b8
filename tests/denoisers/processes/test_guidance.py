"""Classifier-free guidance."""

import torch

from denoisers.processes.guidance import guided


class Labelled:
    """Predicts the label everywhere; counts its passes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, x: torch.Tensor, t: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        return x + t[:, None] + label[:, None].float()


X, T, LABEL = torch.randn(3, 4), torch.rand(3), torch.tensor([1, 2, 3])


def test_scale_one_is_the_conditional_prediction_at_no_extra_cost():
    predict = Labelled()
    assert torch.equal(guided(predict, X, T, LABEL, null=10, scale=1.0), Labelled()(X, T, LABEL))
    assert predict.sizes == [3]


def test_other_scales_take_one_pass_of_both():
    predict = Labelled()
    out = guided(predict, X, T, LABEL, null=10, scale=3.0)
    assert predict.sizes == [6]
    with_label, without = Labelled()(X, T, LABEL), Labelled()(X, T, torch.full((3,), 10))
    torch.testing.assert_close(out, without + 3 * (with_label - without))


def test_scale_zero_forgets_the_label():
    torch.testing.assert_close(guided(Labelled(), X, T, LABEL, 10, 0.0), Labelled()(X, T, torch.full((3,), 10)))
