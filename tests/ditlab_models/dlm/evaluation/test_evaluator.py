"""The evaluator of the language family: known bounds, baselines, and parts that add up."""

import math
import re

import numpy as np
import pytest

from ditlab_models.contract import TextCodec
from ditlab_models.dlm.evaluation import DLMEvaluator, noise_levels
from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.spec import DLMObjectiveSpec
from ditlab_models.processes.draws import batch_means
from ditlab_models.processes.specs import TokenNoiseSchedule
from ditlab_models.processes.uniform_graph import kl_from_uniform
from support.models.draws import perturb
from support.models.plain_score_entropy import (
    CLEAN,
    MODEL,
    AlwaysWrong,
    Scores,
    V,
    draw_clean,
    unigram,
)
from support.models.token_rows import token_rows

WIDE = TokenNoiseSchedule(sigma_min=1e-4, sigma_max=20.0)
COLUMNS = ["predictor", "kind", "bits a byte", "bits a token", "nats a token", "perplexity"]
PREDICTORS = ["model", "bigram", "unigram", "uniform"]


@pytest.fixture(scope="module")
def train():
    return token_rows(draw_clean(1000, 0))


@pytest.fixture(scope="module")
def held_out():
    return token_rows(draw_clean(1000, 1))


def codec(bytes_per_token):
    return TextCodec(lambda text: [], lambda tokens: "", V, 0, bytes_per_token)


def evaluate(network, train, held_out, text=None, batch=256, **objective):
    spec = DLMObjectiveSpec(**objective)
    return DLMEvaluator(spec, MODEL, text).evaluate(network.eval(), train, held_out, {}, batch)


def few(num=40):
    return token_rows(draw_clean(num, 2))


def test_a_network_of_token_frequencies_equals_the_unigram(train, held_out):
    """The bound is tight where sigma_min is small and sigma_max large."""
    metrics = evaluate(Scores(unigram), train, held_out, noise=WIDE).metrics
    entropy = -(CLEAN * CLEAN.log()).sum().item()
    assert metrics["baseline/unigram/nats_per_token"] == pytest.approx(entropy, abs=0.02)
    assert metrics["baseline/bigram/nats_per_token"] == pytest.approx(entropy, abs=0.02)
    assert metrics["bound"] == pytest.approx(entropy, abs=0.08)
    assert metrics["baseline/uniform/perplexity"] == pytest.approx(V)


def test_bits_a_byte_are_bits_a_token_over_its_bytes(train):
    with_bytes = evaluate(FAMILY.build_network(MODEL), train, few(), codec(4.0))
    for prefix in ("", "baseline/bigram/", "baseline/unigram/", "baseline/uniform/"):
        bits = with_bytes.metrics[f"{prefix}bits_per_token"]
        assert with_bytes.metrics[f"{prefix}bits_per_byte"] == pytest.approx(bits / 4)
        nats = with_bytes.metrics["bound" if not prefix else f"{prefix}nats_per_token"]
        assert bits == pytest.approx(nats / math.log(2))
    for text in (None, codec(None)):
        without = evaluate(FAMILY.build_network(MODEL), train, few(), text)
        assert not [name for name in without.metrics if "byte" in name]
        assert list(without.tables["likelihood"]) == [*COLUMNS[:2], *COLUMNS[3:]]
        assert "nats a token" in without.figures["bound"].title
    assert list(with_bytes.tables["likelihood"]) == COLUMNS
    assert "bits a byte" in with_bytes.figures["bound"].title


def test_tables_agree_with_metrics(train):
    found = evaluate(Scores(unigram), train, few(), codec(2.0))
    table = found.tables["likelihood"]
    assert table["predictor"].tolist() == PREDICTORS
    assert table["kind"].tolist() == ["upper bound", "exact", "exact", "exact"]
    assert table["nats a token"][0] == found.metrics["bound"]
    assert table["perplexity"].tolist()[1:] == [
        found.metrics[f"baseline/{name}/perplexity"] for name in PREDICTORS[1:]
    ]
    for each in found.tables.values():
        assert len({len(values) for values in each.values()}) == 1
    assert all(re.fullmatch(r"[\w\-. /]+", name) for name in found.metrics)


@pytest.mark.parametrize(
    "noise", [TokenNoiseSchedule(), WIDE, TokenNoiseSchedule(kind="loglinear")]
)
def test_parts_add_up_to_the_bound(train, held_out, noise):
    found = evaluate(Scores(unigram), train, held_out, noise=noise)
    table = found.tables["bound_in_nats"]
    parts = table["part"].tolist()
    assert parts[:2] == ["last draw", "t 0 to 0.25"] and parts[-2:] == ["prior", "bound"]
    assert table["sigma from"][1:5] == pytest.approx(noise_levels(noise, 4)[:4])
    assert (
        table["sigma to"][4] == pytest.approx(noise.sigma_max) and table["sigma to"][5] == math.inf
    )
    for name in ("model", "unigram scores", "zero scores"):
        assert table[name][:-1].sum() == pytest.approx(table[name][-1])
    assert table["model"][-1] == pytest.approx(found.metrics["bound"])
    assert table["zero scores"][-1] == pytest.approx(math.log(V))
    assert table["zero scores"][-2] == pytest.approx(kl_from_uniform(noise.sigma_max, V))
    # nothing is lost there: scores that know frequencies are as good as the frequencies
    if noise == WIDE:
        assert table["unigram scores"][-1] == pytest.approx(
            found.metrics["baseline/unigram/nats_per_token"], abs=2e-3
        )
    # this network is the closed form of the unigram's scores, measured
    assert table["model"] == pytest.approx(table["unigram scores"], abs=0.07)


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_batches_change_nothing(batch):
    train, network = token_rows(draw_clean(60, 0)), perturb(FAMILY.build_network(MODEL))
    one = evaluate(network, train, few()).metrics
    assert evaluate(network, train, few(), batch=batch).metrics == pytest.approx(one, rel=1e-5)


def test_the_bound_is_that_of_the_objective_on_the_rows_own_draws(train):
    network, rows = FAMILY.build_network(MODEL), few()
    built = FAMILY.build_objective(DLMObjectiveSpec(), MODEL)
    (whole,) = rows.batches(1000)
    means = batch_means(built.metrics(network, whole.batch, whole.noise))
    assert evaluate(network, train, rows).metrics["bound"] == pytest.approx(
        built.summary(means)["bound"]
    )


def test_no_gradients_are_kept(train):
    network, calls = perturb(FAMILY.build_network(MODEL)), []
    network.register_forward_hook(
        lambda module, inputs, losses: calls.append(losses.total.requires_grad)
    )
    evaluate(network, train, few())
    assert calls and not any(calls)


def test_softmax_has_no_bound_in_the_table(train):
    found = evaluate(FAMILY.build_network(MODEL), train, few(), codec(2.0), score="softmax")
    assert not {"bound", "bits_per_token", "perplexity", "nats_per_token"} & set(found.metrics)
    table = found.tables["likelihood"]
    assert table["predictor"].tolist() == PREDICTORS
    assert table["kind"][0] == "no bound (softmax)" and np.isnan(table["nats a token"][0])
    assert np.isfinite(table["bits a byte"][1:]).all()
    assert set(found.tables) == {"likelihood"} and not found.figures


def test_a_hopeless_network_breaks_nothing(train):
    found = evaluate(AlwaysWrong(1e4), train, few())
    assert found.metrics["perplexity"] == math.inf and found.metrics["bound"] > 1e3


def test_the_figure_ends_at_the_bound_and_draws_the_others_as_levels(train, held_out):
    found = evaluate(Scores(unigram), train, held_out, codec(2.0))
    loss, sums = found.figures["bound"].panels
    assert [curve.label for curve in loss.curves] == ["model", "unigram scores", "zero scores"]
    table = found.tables["bound_in_nats"]
    to_bits = 1 / math.log(2) / 2
    for curve, added in zip(loss.curves, sums.curves[:3], strict=True):
        parts = table[curve.label]
        area = np.trapezoid(curve.y, curve.x)
        assert area == pytest.approx(to_bits * parts[1:5].sum())
        assert added.y[0] == pytest.approx(to_bits * parts[-1])
        assert added.y[8] == pytest.approx(to_bits * (parts[0] + parts[3:6].sum()), rel=1e-3)
    assert [curve.label for curve in sums.curves[3:]] == ["unigram", "bigram"]
    for curve, name in zip(sums.curves[3:], ("unigram", "bigram"), strict=True):
        assert curve.y.tolist() == pytest.approx(
            [found.metrics[f"baseline/{name}/bits_per_byte"]] * 2
        )
