from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ditlab.data.genome.region_windows import ChromosomePeaks, plan_windows, region_columns, window_batches
from ditlab.data.stores.manifest import Source
from ditlab.data.stores.store import Store
from ditlab.data.stores.writer import StoreWriter


def chromosome(name: str, peaks: int, gap: int = 1000) -> ChromosomePeaks:
    start = np.arange(peaks, dtype=np.int64) * gap + 10
    return ChromosomePeaks(name, start, start + 400)


def windows_of(plan) -> list[tuple[int, int, int]]:
    return list(zip(plan.chromosome.tolist(), plan.first.tolist(), plan.size.tolist(), strict=True))


@settings(deadline=None, max_examples=60)
@given(
    peaks=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    regions=st.integers(1, 12),
    stride=st.none() | st.integers(1, 15),
)
def test_no_window_comes_twice_and_no_peak_is_left_out(peaks, regions, stride):
    plan = plan_windows([chromosome(f"chr{i}", n) for i, n in enumerate(peaks)], regions, stride)
    windows = windows_of(plan)
    assert plan.dropped == 0
    held = [{(number, peak) for peak in range(first, first + size)} for number, first, size in windows]
    for earlier, later in pairwise(held):
        assert not later <= earlier, "a window within the one before holds nothing new"
    assert windows == sorted(set(windows))
    if (stride or regions) <= regions:
        assert set().union(*held) == {(number, peak) for number, n in enumerate(peaks) for peak in range(n)}
    for number, first, size in windows:
        assert size == regions or first + size == peaks[number], "only a chromosome's last window is shorter"


def test_windows_begin_a_stride_apart():
    plan = plan_windows([chromosome("chr1", 10), chromosome("chr2", 3)], 4, stride=3)
    assert windows_of(plan) == [(0, 0, 4), (0, 3, 4), (0, 6, 4), (1, 0, 3)]


def test_windows_that_span_too_much_are_dropped_and_counted():
    far = ChromosomePeaks("chr1", np.array([0, 100, 200, 9000]), np.array([50, 150, 250, 9050]))
    plan = plan_windows([far, chromosome("chr2", 4, gap=100)], 2, max_span=700)
    assert windows_of(plan) == [(0, 0, 2), (1, 0, 2), (1, 2, 2)]
    assert plan.dropped == 1
    exact = plan_windows([far], 2, max_span=8850)
    assert exact.dropped == 0, "a span of max_span itself is allowed"


def test_rows_hold_their_peaks_and_padding_is_zero_and_absent(tmp_path):
    peaks = [chromosome("chr1", 5), chromosome("chrX", 2)]
    values = [np.random.default_rng(n).random((len(p), 3), np.float32) for n, p in enumerate(peaks)]
    plan = plan_windows(peaks, 3)
    columns = region_columns(3, ("A", "B", "accessibility"), (2.0, 0.5, 1.0), ("chr1", "chrX"))
    with StoreWriter(tmp_path / "s", columns, name="s", source=Source(kind="t")) as writer:
        for batch in window_batches(plan, 3, lambda number, first, stop: values[number][first:stop]):
            writer.append(batch)
    store = Store.open(tmp_path / "s")
    rows = {name: store.tensor(name).numpy() for name in store.columns}
    assert rows["chromosome"].tolist() == [0, 0, 1]
    assert rows["present"].tolist() == [[True] * 3, [True, True, False], [True, True, False]]
    assert rows["start"].tolist() == [[10, 1010, 2010], [3010, 4010, 0], [10, 1010, 0]]
    assert rows["end"].tolist() == [[410, 1410, 2410], [3410, 4410, 0], [410, 1410, 0]]
    assert np.array_equal(rows["regions"][:2].reshape(6, 3)[:5], values[0])
    assert np.array_equal(rows["regions"][2, :2], values[1])
    assert not rows["regions"][1:, 2].any()
    assert store.columns["regions"].names == ("A", "B", "accessibility")
    assert store.columns["regions"].divisors == (2.0, 0.5, 1.0)
    assert store.columns["chromosome"].names == ("chr1", "chrX")


def test_a_batch_of_windows_is_in_memory_at_a_time(monkeypatch):
    monkeypatch.setattr("ditlab.data.genome.region_windows.BATCH_BYTES", 4 * 3 * 2 * 5)
    asked = []

    def features(number: int, first: int, stop: int) -> np.ndarray:
        asked.append((number, first, stop))
        return np.ones((stop - first, 2), np.float32)

    batches = window_batches(plan_windows([chromosome("chr1", 36)], 3), 2, features)
    assert len(next(batches)["present"]) == 5 and len(asked) == 5
    assert [len(batch["present"]) for batch in batches] == [5, 2]
    assert asked == [(0, n, n + 3) for n in range(0, 36, 3)]


@pytest.mark.parametrize("peaks", [[], [chromosome("chr1", 0)]])
def test_nothing_to_cut_gives_no_window(peaks):
    plan = plan_windows(peaks, 4)
    assert len(plan) == 0 and list(window_batches(plan, 2, lambda *_: np.zeros((0, 2)))) == []
