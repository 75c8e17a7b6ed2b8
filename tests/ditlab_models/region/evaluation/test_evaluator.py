"""The evaluator of the region family: closed forms, one set of masks for all, sums that do not
depend on batches.
"""

import math
import re

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr

from ditlab_models.contract import Samples
from ditlab_models.region.evaluation import RegionEvaluator
from ditlab_models.region.family import FAMILY
from ditlab_models.region.objective import draw_masks
from ditlab_models.region.spec import RegionObjectiveSpec, RegionSpec
from support.models.draws import Answering, seeded
from support.models.region_rows import as_row_set, gaussian_chain

REGIONS, FEATURES = 12, 3
NAMES = ("GATA/1", "CTCF", "accessibility")
MODEL = RegionSpec(
    num_features=FEATURES,
    num_regions=REGIONS,
    width=16,
    depth=1,
    num_heads=2,
    mlp_ratio=2.0,
    time_width=8,
)


def scaled(gain=1.0, offset=0.0):
    """A network that predicts `gain` times the true features, plus an offset."""
    return Answering(lambda x, *_, **named: gain * x + offset)


def padded(num):
    present = torch.ones(num, REGIONS, dtype=torch.bool)
    present[::3, 9:] = False
    return present


@pytest.fixture(scope="module")
def held_out():
    torch.manual_seed(1)
    x = gaussian_chain(300, REGIONS, FEATURES) + torch.tensor([0.0, 3.0, -3.0])
    return as_row_set(
        x * padded(300)[..., None], padded(300), ["chr1"] * 100 + ["chr2"] * 200, NAMES
    )


@pytest.fixture(scope="module")
def train():
    torch.manual_seed(2)
    x = gaussian_chain(600, REGIONS, FEATURES) + torch.tensor([0.0, 3.0, -3.0])
    return as_row_set(x * padded(600)[..., None], padded(600), ["chr3"] * 600, NAMES)


def evaluate(network, train, held_out, references=None, batch=256):
    return RegionEvaluator(RegionObjectiveSpec(), MODEL).evaluate(
        network, train, held_out, references or {}, batch
    )


def true_features(x, mask, present):
    return x


@pytest.fixture(scope="module")
def perfect(train, held_out):
    """Measurements of a network that predicts the true features, beside a reference that does."""
    return evaluate(scaled(), train, held_out, {"optimal": true_features})


@pytest.fixture(scope="module")
def halved(train, held_out):
    """Measurements of a network that predicts half of the true features, beside the same
    reference.
    """
    return evaluate(scaled(0.5), train, held_out, {"optimal": true_features})


def column(table, name, **where):
    rows = np.ones(len(table[name]), dtype=bool)
    for key, value in where.items():
        rows &= table[key] == value
    return table[name][rows]


def test_figures_of_known_predictions(perfect, halved):
    perfect, halved = perfect.metrics, halved.metrics
    for ratio in ("r15", "r30", "r50", "r70", "r90"):
        assert perfect[f"r2/{ratio}"] == perfect[f"r2_within/{ratio}"] == pytest.approx(1.0)
        assert perfect[f"pearson/{ratio}"] == halved[f"pearson/{ratio}"] == pytest.approx(1.0)
        assert perfect[f"mse/{ratio}"] == pytest.approx(0.0, abs=1e-9)
        # all features have variance 1 and a mean square of 1 + (0 + 9 + 9) / 3 = 7: a quarter of it
        # is the error
        assert halved[f"mse/{ratio}"] == pytest.approx(7 / 4, rel=0.1)
        assert halved[f"r2/{ratio}"] == pytest.approx(1 - 1 / 4, abs=0.02)
        assert halved[f"r2_within/{ratio}"] == pytest.approx(1 - 7 / 4, abs=0.2)


def test_baselines_stand_beside_the_model(perfect):
    metrics = perfect.metrics
    assert metrics["baseline/motif_mean/r2_within/r50"] == pytest.approx(0.0, abs=0.01)
    # between features lie 6 of 7 parts of the variance
    assert metrics["baseline/motif_mean/r2/r50"] == pytest.approx(6 / 7, abs=0.02)
    assert metrics["baseline/ridge/r2_within/r15"] > metrics["baseline/nearest/r2_within/r15"] > 0.3
    assert metrics["baseline/ridge/r2_within/r90"] < metrics["baseline/ridge/r2_within/r15"]


def test_shares_of_the_optimum(train, held_out):
    """A share is of R^2 within features; a reference that explains nothing has none."""

    def shrunk(x, mask, present):
        mean = np.array([0.0, 3.0, -3.0])
        return np.where(mask[..., None], mean + 0.5 * (x - mean), x)

    found = evaluate(scaled(), train, held_out, {"optimal": shrunk})
    metrics = found.metrics
    assert metrics["reference/optimal/r2_within/r50"] == pytest.approx(0.75, abs=0.01)
    assert metrics["optimal_share"] == pytest.approx(1 / metrics["reference/optimal/r2_within/r50"])
    table = found.tables["r2_within"]
    shares = dict(zip(table["predictor"], table["share of optimal at 50%"], strict=True))
    assert shares["optimal"] == 1.0 and shares["model"] == pytest.approx(4 / 3, abs=0.02)
    useless = evaluate(scaled(), train, held_out, {"optimal": lambda x, mask, present: 0 * x + 50})
    assert "optimal_share" not in useless.metrics and set(useless.tables["r2"]) == set(
        useless.tables["r2_within"]
    )


def test_all_predictors_see_the_same_masks(train, held_out):
    """A network and a reference with the same output have the same metrics."""
    seen = []

    def reference(x, mask, present):
        assert not mask[~present].any() and mask.dtype == bool
        seen.append(mask.mean())
        return 0.5 * x + 1.0

    metrics = evaluate(scaled(0.5, 1.0), train, held_out, {"optimal": reference}).metrics
    for name, value in metrics.items():
        if name.startswith("reference/optimal/"):
            assert value == pytest.approx(
                metrics[name.removeprefix("reference/optimal/")], rel=1e-6
            )
    assert len(seen) == 2 * 5 and sorted(seen[:5]) == seen[:5]


def test_neither_batches_nor_memory_limits_change_figures(monkeypatch):
    torch.manual_seed(0)
    network = FAMILY.build_network(MODEL)
    x, present = gaussian_chain(60, REGIONS, FEATURES) * padded(60)[..., None], padded(60)
    train = as_row_set(x[30:], present[30:])
    held_out = as_row_set(x[:30], present[:30], ["chr1"] * 10 + ["chr2"] * 20)
    one = evaluate(network, train, held_out).metrics
    assert evaluate(network, train, held_out, batch=7).metrics == pytest.approx(
        one, rel=1e-5, abs=1e-7
    )
    monkeypatch.setattr("ditlab_models.region.evaluation.MAX_BATCH_VALUES", 5 * REGIONS * FEATURES)
    assert evaluate(network, train, held_out).metrics == pytest.approx(one, rel=1e-5, abs=1e-7)


def test_tables_hold_every_predictor_motif_and_chromosome(halved):
    found = halved
    predictors = ["model", "motif_mean", "nearest", "ridge", "optimal"]
    by_ratio, by_motif, by_chromosome = (
        found.tables[name] for name in ("by_ratio", "by_motif", "by_chromosome")
    )
    assert found.tables["r2"]["predictor"].tolist() == predictors
    assert list(found.tables["r2"])[1:] == [f"masked {share}%" for share in (15, 30, 50, 70, 90)]
    assert by_ratio["predictor"].tolist() == [name for name in predictors for _ in range(5)]
    assert by_motif["motif"].tolist() == [*NAMES] * 5
    assert by_chromosome["chromosome"].tolist() == ["chr1", "chr2"] * 5
    for table in found.tables.values():
        assert len({len(values) for values in table.values()}) == 1
    (entries,) = column(by_ratio, "entries", predictor="model", mask_ratio=0.5)
    assert entries == column(by_motif, "entries", predictor="model").sum()
    assert entries == column(by_chromosome, "entries", predictor="ridge").sum()
    (r2,) = column(by_ratio, "r2", predictor="model", mask_ratio=0.5)
    assert r2 == found.metrics["r2/r50"] == found.tables["r2"]["masked 50%"][0]
    # of a feature of mean 0 and variance 1, half of it is off by a quarter of the variance
    assert column(by_motif, "r2", predictor="model", motif="GATA/1")[0] == pytest.approx(
        0.75, abs=0.01
    )


def noisy(x, *_, **named):
    """A prediction that is off by noise, of its own for each value: no correlation is 1."""
    return x.exp() + (40 * x).sin()


def test_correlations_by_cell_type_are_scipys_and_intervals_hold_the_figures(train):
    """Intervals over windows; the correlation's is wider than Fisher's of independent pairs."""
    torch.manual_seed(3)
    x, cells = gaussian_chain(80, REGIONS, FEATURES), ["T"] * 30 + ["B"] * 50
    rows = as_row_set(
        x, torch.ones(80, REGIONS, dtype=torch.bool), ["chr1"] * 80, NAMES, cell_type=cells
    )
    found, num = evaluate(Answering(noisy), train, rows), 0
    by_cell, metrics = found.tables["by_cell_type"], found.metrics
    assert by_cell["cell_type"].tolist()[:2] == ["B", "T"]
    masks = next(draw_masks(part.batch, part.noise, (0.5,))[0] for part in rows.batches(80))
    for place, cell in enumerate(["B", "T"]):
        target = x[np.array(cells) == cell][masks[np.array(cells) == cell]]
        num += len(target)
        assert by_cell["entries"][place] == target.numel()
        flat = target.flatten().numpy(), noisy(target).flatten().numpy()
        assert by_cell["pearson"][place] == pytest.approx(pearsonr(*flat).statistic, rel=1e-5)
    ends = [math.atanh(metrics[f"pearson/r50_{end}"]) for end in ("low", "high")]
    half = 1.959964 / math.sqrt(num * FEATURES - 3)  # of independent pairs
    assert ends[0] < math.atanh(metrics["pearson/r50"]) < ends[1]
    assert half < (ends[1] - ends[0]) / 2 < 4 * math.sqrt(FEATURES) * half
    assert metrics["pearson/r50_df"] < 20, "one window holds most of the squared errors"
    assert metrics["r2/r50_low"] < metrics["r2/r50"] < metrics["r2/r50_high"] < 1


def test_metric_names_are_those_that_mlflow_takes(perfect):
    assert all(re.fullmatch(r"[\w\-. /]+", name) for name in perfect.metrics)


def test_figures_compare_all_predictors(halved):
    figures = halved.figures
    assert set(figures) == {"r2_by_mask_ratio", "r2_by_motif"}
    for panel in (*figures["r2_by_mask_ratio"].panels, figures["r2_by_motif"].panels[0]):
        assert [curve.label for curve in panel.curves] == [
            "model",
            "motif mean",
            "nearest",
            "ridge",
            "optimal",
        ]
    model = figures["r2_by_motif"].panels[0].curves[0]
    assert sorted(model.y, reverse=True) == model.y.tolist()
    assert "GATA/1" in figures["r2_by_motif"].panels[1].passages[0]


@pytest.mark.parametrize("present", [0, 1])
def test_nothing_to_mask_gives_no_nan(present, train):
    """Windows of padding alone; windows of one region each, of which most masks hit none."""
    x = torch.zeros(4, REGIONS, FEATURES)
    rows = as_row_set(x, torch.arange(REGIONS).expand(4, REGIONS) < present)
    found = evaluate(scaled(), train, rows, {"optimal": true_features})
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert found.tables["by_chromosome"]["chromosome"].tolist() == ["all"] * 5
    for table in found.tables.values():
        known = {name: values for name, values in table.items() if values.dtype.kind == "f"}
        assert all(np.isfinite(values).all() for values in known.values())


def test_the_title_says_where_a_window_has_one_prediction(perfect, train, held_out):
    placed = MODEL.model_copy(update={"positions": "sinusoidal"})
    found = RegionEvaluator(RegionObjectiveSpec(), placed).evaluate(
        scaled(), train, held_out, {}, 256
    )
    assert found.figures["r2_by_mask_ratio"].title == "R² of masked regions"
    assert perfect.figures["r2_by_mask_ratio"].title == (
        "R² of masked regions. model.positions=none: one prediction for all masked regions "
        "of a window"
    )


def test_samples_are_measured_where_they_were_imputed_alone(train, held_out):
    evaluator = RegionEvaluator(RegionObjectiveSpec(), MODEL)
    measured = torch.randn(50, REGIONS, FEATURES, generator=seeded()).double()
    mask = torch.arange(REGIONS).expand(50, -1) % 2 == 0
    imputed = torch.where(mask[..., None], measured + 0.5, 100.0)
    found = evaluator.measure_samples(train, held_out, 64)(
        Samples(imputed, {"regions": measured, "mask": mask})
    )
    assert tuple(found) == evaluator.sample_metrics
    assert found["mse"] == pytest.approx(0.25) and found["pearson"] == pytest.approx(1.0)
    variance = measured[mask].var(correction=0).item()
    assert found["r2"] == pytest.approx(1 - 0.25 / variance)
