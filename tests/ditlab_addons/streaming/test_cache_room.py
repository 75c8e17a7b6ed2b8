"""A cache that holds less than a worker's windows is refused, with the size that it takes."""

import re

import pytest

from ditlab.data.orders import training_order
from ditlab.data.splits import open_data
from ditlab.home import Home
from support.damage import refused
from support.orders import arrow_data

ROW_BYTES = 3 * 4 + 8
STREAMS = {"kind": "interleaved", "streams": 4, "window": 5}


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


def check(spec, home, workers):
    data = open_data(spec, home, notify=lambda _: None)
    training_order(spec, data, 8, 0).check_room(spec, data.train.store, workers)


@pytest.mark.parametrize(
    ("workers", "need"), [(1, 4 * 2 * 5 * 2 * ROW_BYTES), (2, 2 * 2 * 5 * 2 * ROW_BYTES)]
)
def test_a_cache_smaller_than_the_windows_of_a_workers_streams(make_store, home, workers, need):
    path = make_store(rows=200, rows_per_block=2).path.as_uri()
    fields = {"path": path, "access": "stream", "order": STREAMS}
    check(arrow_data(**fields, cache=f"{need} B"), home, workers)
    sentence = (
        f"data.cache={need - 1} B is smaller than the current and the next window of the streams "
        f"of one worker of {workers}, which take 1 MiB; set data.cache to 1MiB or more, or "
        "lower data.order.window."
    )
    with refused(f"^{re.escape(sentence)}$"):
        check(arrow_data(**fields, cache=f"{need - 1} B"), home, workers)


def test_a_copy_needs_no_cache(make_store, home):
    path = make_store(rows=200, rows_per_block=2).path.as_uri()
    check(arrow_data(path=path, access="copy", order=STREAMS, cache="10 B"), home, 1)
