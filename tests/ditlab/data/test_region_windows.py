from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ditlab.data.region_windows import make_peaks, plan_windows, region_columns, window_batches
from support.datasets.writing import written


def peaks_of(*counts, gap=1000):
    """Return peaks of as many chromosomes as there are counts."""
    starts = [np.arange(count, dtype=np.int64) * gap + 10 for count in counts]
    return np.concatenate(
        [make_peaks(number, start, start + 400) for number, start in enumerate(starts)]
    )


def windows_of(plan, peaks):
    """Return chromosome, first peak along it, and size of each window."""
    chromosome = peaks["chromosome"][plan.first]
    first = plan.first - np.searchsorted(peaks["chromosome"], chromosome)
    return list(zip(chromosome.tolist(), first.tolist(), plan.size.tolist(), strict=True))


@settings(deadline=None, max_examples=60)
@given(
    peaks=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    regions=st.integers(1, 12),
    stride=st.none() | st.integers(1, 15),
)
def test_no_window_comes_twice_and_no_peak_is_left_out(peaks, regions, stride):
    table = peaks_of(*peaks)
    plan = plan_windows(table, regions, stride)
    assert plan.dropped == 0
    held = [
        {*range(first, first + size)} for first, size in zip(plan.first, plan.size, strict=True)
    ]
    for earlier, later in pairwise(held):
        assert not later <= earlier, "a window within the one before holds nothing new"
    windows = windows_of(plan, table)
    assert windows == sorted(set(windows))
    if (stride or regions) <= regions:
        assert set().union(*held) == {*range(len(table))}
    for number, first, size in windows:
        is_last = first + size == peaks[number]
        assert size == regions or is_last, "only a chromosome's last window is shorter"


def test_windows_begin_a_stride_apart():
    peaks = peaks_of(10, 3)
    windows = windows_of(plan_windows(peaks, 4, stride=3), peaks)
    assert windows == [(0, 0, 4), (0, 3, 4), (0, 6, 4), (1, 0, 3)]


def test_windows_that_span_too_much_are_dropped_and_counted():
    start = np.array([0, 100, 200, 9000])
    far = make_peaks(0, start, start + 50)
    near = np.arange(4) * 100 + 10
    peaks = np.concatenate([far, make_peaks(1, near, near + 400)])
    plan = plan_windows(peaks, 2, max_span=700)
    assert windows_of(plan, peaks) == [(0, 0, 2), (1, 0, 2), (1, 2, 2)]
    assert plan.dropped == 1
    exact = plan_windows(far, 2, max_span=8850)
    assert exact.dropped == 0, "a span of max_span itself is allowed"


def test_rows_hold_their_peaks_and_padding_is_zero_and_absent(tmp_path):
    peaks = peaks_of(5, 2)
    values = np.random.default_rng(0).random((7, 3), np.float32)
    plan = plan_windows(peaks, 3)
    columns = region_columns(3, ("A", "B", "accessibility"), (2.0, 0.5, 1.0), ("chr1", "chrX"))
    batches = window_batches(peaks, plan, 3, 3, lambda first, stop: values[first:stop])
    store = written(tmp_path / "s", columns, *batches)
    rows = {name: store.tensor(name).numpy() for name in store.columns}
    assert rows["chromosome"].tolist() == [0, 0, 1]
    assert rows["present"].tolist() == [[True] * 3, [True, True, False], [True, True, False]]
    assert rows["start"].tolist() == [[10, 1010, 2010], [3010, 4010, 0], [10, 1010, 0]]
    ends = np.where(rows["present"], rows["start"] + 400, 0)
    assert np.array_equal(rows["end"], ends)
    assert np.array_equal(rows["regions"][:2].reshape(6, 3)[:5], values[:5])
    assert np.array_equal(rows["regions"][2, :2], values[5:])
    assert not rows["regions"][1:, 2].any()
