"""Mixtures in the spec: parts, weights, their paths, and what is refused in one sentence."""

from typing import Literal

import pytest

from ditlab.spec.experiment import class_for, experiment_class, validate_experiment
from ditlab.spec.mixture import MixtureData, source_kinds
from ditlab.spec.overrides import assign, parse_overrides
from ditlab.spec.plugins import AddedParts, DataSource
from ditlab.spec.sweep_space import check_sweep, enumerate_trials, experiment_for
from support import specs
from support.specs import choice

DIGITS = {"kind": "digits"}
TWO = {
    "kind": "mixture",
    "parts": {"b": DIGITS, "a": {**DIGITS, "hold_out": 0.2}},
    "weights": {"a": 3, "b": 1},
}
INTERLEAVED = {"kind": "interleaved", "streams": 4}
MOTIFS = {"kind": "motifs", "hold_out": {"column": "chromosome", "values": []}}


def refusal(load, *arguments):
    message = specs.refusal(load, *arguments)
    assert message.count(". ") == 0
    return message


def test_shares_are_the_weights_by_their_sum_and_parts_are_sorted(small):
    data = validate_experiment({**small, "data": TWO}).data
    assert data.names == ("a", "b") and data.shares == {"a": 0.75, "b": 0.25}
    assert list(data.shares) == ["a", "b"]


def test_the_order_in_a_file_is_no_part_of_the_content(small):
    turned = {**TWO, "parts": dict(reversed(TWO["parts"].items())), "weights": {"b": 1, "a": 3}}
    one, other = (validate_experiment({**small, "data": data}) for data in (TWO, turned))
    assert one.content_hash() == other.content_hash()
    assert one.replace("data.weights.a", 4.0).content_hash() != one.content_hash()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"weights": {"a": 1}},
            "data.weights gives part 'b' no weight; set data.weights.b above 0.",
        ),
        (
            {"weights": {"a": 1, "b": 1, "c": 2}},
            "data.weights.c=2 is the weight of no part (data.parts has b, a)",
        ),
        ({"weights": {"a": 1, "b": 0}}, "data.weights.b=0 must be above 0."),
        ({"parts": {}, "weights": {}}, "data.parts={} names no source; give at least one"),
        (
            {"parts": {"a": TWO}},
            "data.parts.a.kind=mixture is a mixture in a mixture; write its parts here.",
        ),
        ({"parts": {"a/b": DIGITS}}, "data.parts holds the name 'a/b'"),
        ({"parts": {"kind": DIGITS}}, "data.parts holds the name 'kind', which cannot be"),
        (
            {"parts": {"a": {"kind": "arrow", "path": "x", "order": INTERLEAVED}}},
            "data.parts.a.order.kind=interleaved is of a single source",
        ),
        (
            {"parts": {"a": MOTIFS}},
            "data.parts.a.hold_out.values=[]: names no class; name one or more, or give da",
        ),
        (
            {
                "parts": {
                    "a": {"kind": "motifs", "peaks": 100_000, "motifs": 1000, "chromosomes": 100}
                }
            },
            "data.parts.a.chromosomes=100, data.parts.a.peaks=100000, data.parts.a.motifs=1000 give",
        ),
    ],
)
def test_mistakes(small, changes, message):
    parts = changes.get("parts")
    weights = {"weights": dict.fromkeys(parts, 1)} if isinstance(parts, dict) else {}
    data = {**TWO, **weights, **changes}
    assert refusal(validate_experiment, {**small, "data": data}).startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"epochs": 2}}, "training.epochs=2 is no length for data.kind=mixture"),
        (
            {"schedule": {"kind": "constant", "warmup_epochs": 0.5}},
            "schedule.warmup_epochs=0.5 is no length for data.",
        ),
        (
            {"schedule": {"kind": "stepped_cosine_restart"}},
            "schedule.cycle=null, one epoch, is no length for data.",
        ),
    ],
)
def test_a_length_in_epochs(small, changes, message):
    assert refusal(validate_experiment, {**small, "data": TWO, **changes}).startswith(message)
    validate_experiment({**small, "data": DIGITS, **changes})


def test_paths_of_parts_and_weights(small):
    def data(*overrides):
        return validate_experiment(
            assign({**small, "data": TWO}, parse_overrides(overrides), class_for)
        ).data

    assert data("data.weights.a=9").weights == {"a": 9, "b": 1}
    assert data("data.parts.b.hold_out=0.4").parts["b"].hold_out == 0.4
    assert data("data.parts.b.kind=arrow", "data.parts.b.path=x").parts["b"].path == "x"
    more = data("data.parts={copy: {kind: text}}", "data.weights={copy: 1}", "data.weights.copy=2")
    assert more.parts["copy"].kind == "text" and more.weights["copy"] == 2
    assert "data.weights.c is no known field" in refusal(data, "data.weights.c=1")
    assert "data.parts.b.kind=digits has no field 'hold_uot'; did you mean" in refusal(
        data, "data.parts.b.hold_uot=0"
    )
    assert "data.weights.a is a plain value" in refusal(data, "data.weights.a.b=1")


def test_weights_are_axes_of_a_sweep(small, sweep_of):
    small["data"] = TWO
    sweep = sweep_of({"data.weights.a": {"kind": "loguniform", "low": 0.1, "high": 10}})
    check_sweep(sweep, "sweep.yaml")
    shares = [experiment_for(sweep, values).data.shares["a"] for values in enumerate_trials(sweep)]
    assert len(set(shares)) == 8 and all(0.09 < share < 0.92 for share in shares)


@pytest.mark.parametrize(
    ("axes", "changes", "message"),
    [
        ({"data.weights.c": [1, 2]}, {}, ": data.weights.c is no known field; known: a, b"),
        (
            {"data.weights.a": [1, 2]},
            {"metric": "train/loss"},
            "is the loss that space.data.weights",
        ),
        (
            {"data.parts.a.hold_out": [0.1]},
            {"metric": "train/loss"},
            "is the loss that space.data.parts",
        ),
        (
            {"data.weights.a": [1, 2]},
            {"fixed": {"data.kind": "digits"}},
            "data.kind=digits has no field 'weights'; set data.kind to mixture first.",
        ),
    ],
)
def test_mistakes_in_axes(small, sweep_of, axes, changes, message):
    small["data"] = TWO
    space = {path: choice(*values) for path, values in axes.items()}
    assert message in refusal(check_sweep, sweep_of(space, **changes), "sweep.yaml")


def test_sources_of_other_packages_are_parts(small):
    class StripesData(DataSource):
        kind: Literal["stripes"] = "stripes"
        width: int = 3

    own = validate_experiment({**small, "data": {"kind": "digits"}})
    stripes = {**TWO, "parts": {"a": {"kind": "stripes", "width": 5}, "b": DIGITS}}
    added = AddedParts(sources=(StripesData,))
    cls = experiment_class(own.family, type(own.objective), added)
    data = cls.model_validate({**small, "data": stripes}).data
    assert isinstance(data, MixtureData) and data.parts["a"] == StripesData(width=5)
    assert source_kinds(stripes) == ["digits", "stripes"]
    assert source_kinds({"kind": "mixture", "parts": 7}) == source_kinds(None) == []
