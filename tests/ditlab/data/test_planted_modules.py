"""Generated regions: their law, and that nothing predicts them better than their optimum."""

import hashlib
import itertools
import pickle

import numpy as np
import pytest
from pydantic import ValidationError

from ditlab.data import planted_modules
from ditlab.data.planted_modules import PlantedModules, feature_names
from ditlab.data.splits import open_data
from ditlab.spec.data import HoldOutClasses, MotifsData

SMALL = MotifsData(motifs=5, chromosomes=4, peaks=100, regions=16, domains=3, programs=4)
FIRST_CHROMOSOME = "88eac0b2d648f9fd"


def hidden(shape, seed=0, ratio=0.5):
    return np.random.default_rng(seed).random(shape) < ratio


@pytest.fixture(scope="module")
def law():
    """Default law."""
    return PlantedModules(MotifsData())


@pytest.fixture(scope="module")
def draw(law):
    """372 windows of it (R = 64), with half of their regions masked."""
    features = [law.features(index) for index in range(6)]
    x = np.concatenate([along[: len(along) // 64 * 64].reshape(-1, 64, 32) for along in features])
    return x, hidden(x.shape[:2])


def by_enumeration(law, x, mask, present):
    """E[x | seen regions] of one window (R, C), summed over every sequence of pairs."""
    on, regions = law.on_probability, len(x)
    total, expected = 0.0, np.zeros(x.shape)
    for pairs in itertools.product(range(len(on)), repeat=regions):
        weight = 1 / len(on)
        for region, pair in enumerate(pairs):
            if region:
                weight *= law.transition[pairs[region - 1], pair]
            if present[region] and not mask[region]:
                weight *= np.prod(np.where(x[region] > 0, on[pair], 1 - on[pair]))
        total += weight
        expected += weight * law.mean[list(pairs)]
    return expected / total


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_the_optimum_is_the_sum_over_all_hidden_sequences(ratio):
    law = PlantedModules(MotifsData(motifs=2, regions=5, domains=2, programs=2, peaks=20))
    x = law.features(0).reshape(4, 5, 3)
    mask, present = hidden((4, 5), ratio=ratio), np.arange(5) < np.array([5, 4, 2, 5])[:, None]
    x[~present] = 0
    predicted = law.predict(x, mask, present)
    for window in range(4):
        expected = by_enumeration(law, x[window], mask[window], present[window])
        asked = mask[window] & present[window]
        np.testing.assert_allclose(predicted[window][asked], expected[asked], rtol=1e-10)
    seen = ~mask & present
    assert np.array_equal(predicted[seen], x[seen]), "what is seen is its own expectation"
    assert not predicted[~present].any()


def test_long_windows_of_many_features_stay_exact():
    """Products of 283 probabilities over 900 regions are far below the smallest float64."""
    law = PlantedModules(MotifsData(motifs=282, chromosomes=3, peaks=900, regions=900))
    x = law.features(0)[None]
    predicted = law.predict(x, hidden((1, 900)))
    assert np.isfinite(predicted).all() and (predicted >= 0).all() and (predicted <= 1).all()


def test_the_optimum_is_calibrated(law, draw):
    x, mask = draw
    predicted = law.predict(x, mask)[mask].ravel()
    true = x[mask].ravel()
    for part in np.array_split(np.argsort(predicted), 20):
        assert abs(predicted[part].mean() - true[part].mean()) < 0.012


def test_the_optimum_uses_more_than_the_neighbouring_regions(law, draw):
    """R^2 within features, at half of the regions masked: what the shipped experiment's target is a
    share of.
    """
    x, mask = draw
    spread = np.square(x[mask] - x[mask].mean(axis=0)).sum()

    def explained(prediction):
        return float(1 - np.square((prediction - x)[mask]).sum() / spread)

    assert explained(law.predict(x, mask)) > 0.2
    assert explained(np.roll(x, 1, axis=1)) < 0


def test_features_are_sparse_and_in_range(law, draw):
    x, _ = draw
    assert x.dtype == np.float32 and x.min() == 0 and x.max() <= 1
    assert (x > 0).mean() < 0.3 and x[x > 0].min() >= np.float32(planted_modules.MAGNITUDE[0])
    np.testing.assert_allclose(x.mean(axis=(0, 1)), law.mean.mean(axis=0), atol=0.03)


def test_modules_belong_to_pairs_and_a_program_alone_is_uninformative():
    law = PlantedModules(MotifsData(domains=5, programs=7))
    by_program = law.on_probability.reshape(5, 7, 32).mean(axis=0)
    np.testing.assert_allclose(by_program, np.broadcast_to(by_program[0], by_program.shape))
    modules = np.unique(law.on_probability > 0.1, axis=0)
    assert len(modules) == 35, "each pair has a module of its own"


def test_runs_have_the_stated_average_length():
    stay = PlantedModules(SMALL).transition.reshape(3, 4, 3, 4)
    np.testing.assert_allclose(stay.sum(axis=(2, 3)), 1)
    np.testing.assert_allclose(1 / (1 - stay[1, 2, 1, :].sum()), planted_modules.DOMAIN_PEAKS)
    np.testing.assert_allclose(1 / (1 - stay[1, 2, :, 2].sum()), planted_modules.PROGRAM_PEAKS)


def test_peaks_are_apart_and_about_400_wide(law):
    peaks = law.peaks(3)
    assert len(peaks) == len(law.features(3)) == 4000
    widths, gaps = peaks["end"] - peaks["start"], peaks["start"][1:] - peaks["end"][:-1]
    assert widths.min() >= 300 and widths.max() <= 500 and gaps.min() >= 0
    assert abs(gaps.mean() - 3000) < 200 and abs(gaps.std() - 3000) < 300


def test_a_chromosome_is_a_function_of_the_law_alone():
    def changed(**options):
        return PlantedModules(SMALL.model_copy(update=options))

    small = changed()
    fewer = changed(chromosomes=3, hold_out=0.1, regions=8)
    assert np.array_equal(small.features(2), fewer.features(2))
    assert not np.array_equal(small.features(2), small.features(1))
    assert not np.array_equal(small.on_probability, changed(seed=1).on_probability)


def test_numbers_of_old_runs_are_unchanged():
    """Whoever changes them raises planted_modules.VERSION, or new runs would read old stores."""
    features = PlantedModules(SMALL).features(0)
    assert hashlib.sha256(features.tobytes()).hexdigest()[:16] == FIRST_CHROMOSOME


def test_the_store_holds_the_chromosomes_and_the_last_two_are_held_out(home):
    splits = open_data(SMALL, home)
    store = splits.train.store
    law = PlantedModules(SMALL)
    written = (store.path / "store.json").stat().st_mtime_ns
    assert store.path == home.stores / splits.name and splits.name.startswith("motifs-")
    assert (len(splits.train), len(splits.held_out)) == (14, 14)
    assert set(store.tensor("chromosome").numpy()[splits.train.rows]) == {0, 1}
    assert store.columns["chromosome"].names == ("chr1", "chr2", "chr3", "chr4")
    assert store.columns["regions"].names == feature_names(5)
    assert feature_names(5)[-2:] == ("motif-005", "accessibility")
    present = store.tensor("present") & (store.tensor("chromosome") == 1)[:, None]
    assert np.array_equal(store.tensor("regions")[present].numpy(), law.features(1))
    assert np.array_equal(store.tensor("start")[present].numpy(), law.peaks(1)["start"])
    open_data(SMALL, home)
    assert (store.path / "store.json").stat().st_mtime_ns == written, "it is written once"


def test_the_optimum_comes_with_the_data_and_survives_pickling(home):
    splits = open_data(SMALL, home)
    x, present = (
        splits.held_out.gather(name, np.arange(14)).numpy() for name in ("regions", "present")
    )
    mask = hidden(present.shape) & present
    optimal = splits.references["optimal"]
    again = pickle.loads(pickle.dumps(optimal))
    assert np.array_equal(optimal(x, mask, present), again(x, mask, present))


def test_other_rows_can_be_held_out_of_the_same_store(home):
    for hold_out in (HoldOutClasses(column="chromosome", values=("chr2",)), 0.25):
        spec = SMALL.model_copy(update={"hold_out": hold_out})
        assert len(open_data(spec, home).held_out) == 7
    assert len(list(home.stores.iterdir())) == 1


def test_more_than_a_disk_holds_is_refused():
    with pytest.raises(ValidationError, match=r"data\.peaks=100000, .* lower one of them"):
        MotifsData(motifs=1000, peaks=100_000, chromosomes=100)
