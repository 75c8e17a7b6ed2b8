"""The JSON schema: valid, complete, and as strict as an editor can be."""

import copy

import pytest

from ditlab.spec.schema import experiment_schema, sweep_schema

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture(scope="module")
def schema():
    return experiment_schema()


@pytest.fixture(scope="module")
def validator(schema):
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(
    ("make", "some"),
    [
        (experiment_schema, {"AdamW.lr", "DiTSpec.depth", "UNetSpec.image_size", "Zero.stage"}),
        (sweep_schema, {"Sweep.fixed", "Uniform.low", "Grid.when", "Asha.grace"}),
    ],
)
def test_every_field_says_what_it_means(make, some):
    """In valid schemas of 2020-12."""
    schema = make()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    named = {}
    for name, definition in {"Sweep": schema, **schema["$defs"]}.items():
        for field, content in definition.get("properties", {}).items():
            named[f"{name}.{field}"] = content
    assert named.keys() >= some
    assert not [name for name, field in named.items() if len(field.get("description", "")) < 3]
    assert all(definition["description"] for definition in schema["$defs"].values())


def test_unknown_keys_are_refused_everywhere(schema):
    assert all(
        definition["additionalProperties"] is False for definition in schema["$defs"].values()
    )


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
)
def test_refuses_mistakes(validator, small, path, value):
    wrong = copy.deepcopy(small)
    below = wrong
    for key in path[:-1]:
        below = below.setdefault(key, {})
    below[path[-1]] = value
    assert not validator.is_valid(wrong)


def test_mistakes_in_a_sweep_are_refused():
    validator = jsonschema.Draft202012Validator(sweep_schema())
    seeds = {"seed": {"kind": "int", "low": 0, "high": 1}}
    sweep = {"name": "x", "base": "x.yaml", "metric": ["a", "b"], "space": seeds, "trials": 2}
    assert validator.is_valid(sweep)
    for change in ({"triasl": 3}, {"space": {"x": {"kind": "unifrom"}}}):
        assert not validator.is_valid({**sweep, **change})


def test_without_a_parent_nothing_may_be_missing(validator, small):
    for key in small:
        assert not validator.is_valid({name: value for name, value in small.items() if name != key})
