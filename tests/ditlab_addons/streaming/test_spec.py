"""Order of samples in a spec: its default changes no old run, and lanes fit batch and workers."""

import pytest

from ditlab.errors import UserError
from ditlab.spec.data import FullOrderSpec, order_of
from ditlab.spec.files import build_experiment

LANES = {"kind": "lanes", "lanes": 8}


def build(order=None, hold_out=0.1, **changes):
    data = {"kind": "arrow", "path": "store", "hold_out": hold_out} | (
        {"order": order} if order else {}
    )
    spec = {
        "name": "a",
        "model": {"family": "dit"},
        "training": {"steps": 9},
        "batch": {"size": 32},
        "data": data,
    }
    return build_experiment(spec | changes, "spec")


def test_the_default_order_is_the_old_one_and_leaves_the_hash_alone():
    assert isinstance(order_of(build().data), FullOrderSpec)
    assert build().content_hash() == build({"kind": "full"}).content_hash() == "8605745a7fb347d4"
    assert isinstance(order_of(build(data={"kind": "digits"}).data), FullOrderSpec)
    hashes = {
        build(order).content_hash()
        for order in (None, LANES, LANES | {"window": 4}, LANES | {"lanes": 4})
    }
    assert len(hashes) == 4, "another order is another run"


def test_a_written_order_is_read_back():
    spec = build(LANES)
    assert spec.to_dict()["data"]["order"] == {"kind": "lanes", "lanes": 8, "window": 16}
    assert build_experiment(spec.to_dict(), "spec") == spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"order": LANES, "resources": {"workers": 16}},
            (
                "data.order.lanes=8 is fewer than the 16 workers that resources.workers "
                "allows; set data.order.lanes to 16 or more, or lower resources.workers."
            ),
        ),
        (
            {
                "order": LANES,
                "resources": {"workers": {"min": 1, "max": 16}},
                "batch": {"size": 32, "micro": 2},
            },
            (
                "data.order.lanes=8 is fewer than the 16 workers that resources.workers "
                "allows; set data.order.lanes to 16 or more, or lower resources.workers."
            ),
        ),
        (
            {"order": LANES | {"lanes": 12}},
            (
                "data.order.lanes=12 does not divide batch.size=32, of which each lane fills "
                "an equal slice; set data.order.lanes to a divisor, or change batch.size."
            ),
        ),
        (
            {"order": LANES, "hold_out": {"column": "label", "values": [1]}},
            (
                "data.hold_out.column=label would read every sample of the store, which "
                "data.order.kind=lanes never does; give data.hold_out a share, or set "
                "data.order.kind to full."
            ),
        ),
        ({"order": {"kind": "lanes"}}, "data.order.lanes is missing"),
        ({"order": LANES | {"lanes": 0}}, "data.order.lanes=0 must be at least 1"),
        ({"order": LANES | {"window": 0}}, "data.order.window=0 must be at least 1"),
        ({"order": {"kind": "lane"}}, "data.order.kind='lane'"),
    ],
)
def test_mistakes_are_said_in_a_sentence(changes, message):
    with pytest.raises(UserError) as caught:
        build(**changes)
    assert message in str(caught.value)
    assert str(caught.value).count("\n") == 0
