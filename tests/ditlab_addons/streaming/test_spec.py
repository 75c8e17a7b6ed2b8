"""Order of samples in a spec: its default changes no old run, and streams fit batch and workers."""

import re

import pytest

from ditlab.spec.data import FullOrderSpec, order_of
from ditlab.spec.files import build_experiment
from support.damage import refused

STREAMS = {"kind": "interleaved", "streams": 8}


def build(order=None, hold_out=0.1, **changes):
    data = {"kind": "arrow", "path": "store", "hold_out": hold_out}
    if order:
        data["order"] = order
    spec = {"model": {"family": "dit"}, "training": {"steps": 9}, "batch": {"size": 32}}
    return build_experiment({"name": "a", "data": data, **spec, **changes}, "spec")


def test_the_default_order_is_the_old_one_and_leaves_the_hash_alone():
    assert isinstance(order_of(build().data), FullOrderSpec)
    assert build().content_hash() == build({"kind": "full"}).content_hash() == "8605745a7fb347d4"
    assert isinstance(order_of(build(data={"kind": "digits"}).data), FullOrderSpec)
    hashes = {
        build(order).content_hash()
        for order in (None, STREAMS, STREAMS | {"window": 4}, STREAMS | {"streams": 4})
    }
    assert len(hashes) == 4, "another order is another run"


def test_a_written_order_is_read_back():
    spec = build(STREAMS)
    assert spec.to_dict()["data"]["order"] == {"kind": "interleaved", "streams": 8, "window": 16}
    assert build_experiment(spec.to_dict(), "spec") == spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"order": STREAMS, "resources": {"workers": 16}},
            (
                "data.order.streams=8 is fewer than the 16 workers that resources.workers "
                "allows; set data.order.streams to 16 or more, or lower resources.workers."
            ),
        ),
        (
            {"order": STREAMS | {"streams": 12}},
            (
                "data.order.streams=12 does not divide batch.size=32, of which each stream fills "
                "an equal slice; set data.order.streams to a divisor, or change batch.size."
            ),
        ),
        (
            {"order": STREAMS, "hold_out": {"column": "label", "values": [1]}},
            (
                "data.hold_out.column=label would read every sample of the store, which "
                "data.order.kind=interleaved never does; give data.hold_out a share, or set "
                "data.order.kind to full."
            ),
        ),
        ({"order": {"kind": "stream"}}, "data.order.kind='stream'"),
    ],
)
def test_mistakes_are_said_in_a_sentence(changes, message):
    with refused(re.escape(message)):
        build(**changes)
