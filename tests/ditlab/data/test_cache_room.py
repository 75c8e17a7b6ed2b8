"""A cache that holds less than a worker's windows is refused, with the size that it takes."""

import pytest

from ditlab.data.orders import check_cache_room, training_order
from ditlab.data.splits import open_data
from ditlab.errors import UserError
from ditlab.spec.data import ArrowData
from ditlab.spec.mixture import MixtureData

ROW_BYTES = 3 * 4 + 8
LANES = {"kind": "lanes", "lanes": 4, "window": 5}


def check(spec, home, workers):
    data = open_data(spec, home, notify=lambda _: None)
    check_cache_room(spec, data, training_order(spec, data, 8, 0), workers)


@pytest.mark.parametrize(("workers", "need"), [(1, 4 * 2 * 5 * 2 * ROW_BYTES), (2, 2 * 2 * 5 * 2 * ROW_BYTES)])
def test_a_cache_smaller_than_the_windows_of_a_workers_lanes(make_store, home, workers, need):
    path = make_store(rows=200, rows_per_block=2).path.as_uri()
    fields = {"path": path, "access": "stream", "order": LANES}
    check(ArrowData(**fields, cache=f"{need} B"), home, workers)
    with pytest.raises(UserError) as caught:
        check(ArrowData(**fields, cache=f"{need - 1} B"), home, workers)
    assert str(caught.value) == (
        f"data.cache={need - 1} B is smaller than the current and the next window of the lanes of one worker of "
        f"{workers}, which take 1 MiB; set data.cache to 1MiB or more, or lower data.order.window."
    )


def test_a_part_of_a_mixture_is_named_and_a_copy_needs_no_cache(make_store, home):
    store = make_store(rows=200, rows_per_block=2)
    streamed = {"kind": "arrow", "path": store.path.as_uri(), "access": "stream", "order": LANES, "cache": "10 B"}
    copied = {**streamed, "access": "copy"}
    check(ArrowData(**copied), home, 1)
    spec = MixtureData(parts={"a": copied, "b": {**streamed, "cache": "20 B"}}, weights={"a": 1, "b": 1})
    message = r"data\.parts\.b\.cache=20 B is smaller than .* or lower data\.parts\.b\.order\.window"
    with pytest.raises(UserError, match=message):
        check(spec, home, 1)
    check(spec.model_copy(update={"parts": {"a": spec.parts["a"]}, "weights": {"a": 1.0}}), home, 1)
