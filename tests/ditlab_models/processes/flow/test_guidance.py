"""Classifier-free guidance."""

import torch
from torch.testing import assert_close

from ditlab_models.processes.flow_sampling import guided_prediction


class Labelled:
    """A network that predicts the label everywhere and counts its passes."""

    def __init__(self):
        self.sizes = []

    def __call__(self, x, t, conditions):
        self.sizes.append(len(x))
        return x * conditions["label"][:, None].float() + t[:, None]


X, T, LABEL = torch.randn(3, 40), torch.rand(3), {"label": torch.tensor([1, 2, 3])}
NULL = {"label": torch.full((3,), 10)}


def test_scale_one_is_the_conditional_prediction_at_no_extra_cost():
    predict = Labelled()
    assert torch.equal(
        guided_prediction(predict, X, T, LABEL, NULL, scale=1.0, rescale=0.7),
        Labelled()(X, T, LABEL),
    )
    assert predict.sizes == [3]


def test_other_scales_take_one_pass_of_both():
    predict = Labelled()
    out = guided_prediction(predict, X, T, LABEL, NULL, scale=3.0)
    assert predict.sizes == [6]
    with_label, without = Labelled()(X, T, LABEL), Labelled()(X, T, NULL)
    assert_close(out, without + 3 * (with_label - without))


def test_rescaling_gives_each_sample_the_conditional_predictions_deviation():
    plain, v = guided_prediction(Labelled(), X, T, LABEL, NULL, 3.0), Labelled()(X, T, LABEL)
    whole = guided_prediction(Labelled(), X, T, LABEL, NULL, 3.0, rescale=1.0)
    assert_close(whole.std(1), v.std(1))
    assert_close(whole / plain, (v.std(1) / plain.std(1))[:, None].expand_as(v))
    half = guided_prediction(Labelled(), X, T, LABEL, NULL, 3.0, rescale=0.5)
    assert_close(half, (whole + plain) / 2)
    assert torch.equal(guided_prediction(Labelled(), X, T, LABEL, NULL, 3.0, rescale=0.0), plain)


def test_the_spread_is_over_all_of_a_samples_values():
    v = torch.randn(2, 3, 4, 4)
    t = torch.zeros(2)
    # of 3 v + 1
    scaled = guided_prediction(lambda *_: torch.cat((v, -v - 1)), v, t, {}, {}, 2.0, rescale=1.0)
    assert_close(scaled.flatten(1).std(1), v.flatten(1).std(1))
