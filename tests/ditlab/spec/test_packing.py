"""Attention among the documents of a row: where it is refused, and what it changes of a run's
identity.
"""

from ditlab.spec.experiment import validate_experiment
from support.damage import refused

DLM = {"family": "dlm", "length": 16, "vocabulary": 256, "depth": 1, "num_heads": 2, "width": 16}
TEXT = {"kind": "text", "length": 16}


def build(model=DLM, data=TEXT):
    return validate_experiment(
        {"name": "a", "model": model, "data": data, "training": {"steps": 2}}
    )


def test_joined_leaves_a_run_what_it_was_and_masked_does_not():
    assert build().data.packing == "joined"
    assert build(data={**TEXT, "packing": "joined"}).content_hash() == build().content_hash()
    assert build(data={**TEXT, "packing": "masked"}).content_hash() != build().content_hash()
    assert build().content_hash() == "0083213e4de3d2f8", (
        "the hash of runs from before there was a packing"
    )


def test_parts_of_a_mixture_share_one_packing():
    parts = {"a": {**TEXT, "packing": "masked"}, "b": TEXT}
    mixture = {"kind": "mixture", "parts": parts, "weights": {"a": 1.0, "b": 1.0}}
    with refused(r"data\.parts\.a\.packing=masked and data\.parts\.b\.packing=joined cannot"):
        build(data=mixture)
    mixture["parts"] = {"a": parts["a"], "b": parts["a"]}
    build(data=mixture)
