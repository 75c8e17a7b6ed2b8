"""The JSON schema: valid, complete, and as strict as an editor can be."""

import copy

import pytest

from ditlab.spec.experiment import class_for
from ditlab.spec.files import build_experiment
from ditlab.spec.schema import experiment_schema

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture(scope="module")
def schema():
    return experiment_schema()


@pytest.fixture(scope="module")
def validator(schema):
    return jsonschema.Draft202012Validator(schema)


def properties(schema):
    for name, definition in schema["$defs"].items():
        for field, content in definition.get("properties", {}).items():
            yield f"{name}.{field}", content


def test_is_a_valid_schema_of_2020_12(schema):
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)


def test_every_field_says_what_it_means(schema):
    named = dict(properties(schema))
    assert named.keys() >= {"AdamW.lr", "DiTSpec.depth", "UNetSpec.image_size", "Zero.stage"}
    silent = [name for name, content in named.items() if len(content.get("description", "")) < 3]
    assert not silent
    assert all(definition["description"] for definition in schema["$defs"].values())


def test_every_field_of_the_classes_is_in_it(schema, small):
    cls = class_for(small)
    assert set(cls.model_fields) < set(schema["$defs"][cls.__name__]["properties"])


def test_unknown_keys_are_refused_everywhere(schema):
    assert all(
        definition["additionalProperties"] is False for definition in schema["$defs"].values()
    )


def test_takes_what_the_spec_takes(validator, small):
    validator.validate(small)
    validator.validate(build_experiment(small, "spec").to_dict())


def test_a_child_may_leave_out_what_its_parent_gives(validator):
    validator.validate({"extends": "base.yaml"})
    validator.validate(
        {"extends": "base.yaml", "schedule": {"warmup": 3}, "model": {"num_classes": 10}}
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["model", "depth"], 0),
        (["model", "dpeth"], 3),
        (["optimizer", "betas"], [0.9]),
        (["data"], {"kind": "minst"}),
        (["trainign"], {}),
    ],
    ids=str,
)
def test_refuses_mistakes(validator, small, path, value):
    wrong = copy.deepcopy(small)
    below = wrong
    for key in path[:-1]:
        below = below.setdefault(key, {})
    below[path[-1]] = value
    assert not validator.is_valid(wrong)


def test_without_a_parent_nothing_may_be_missing(validator, small):
    for key in small:
        assert not validator.is_valid({name: value for name, value in small.items() if name != key})
