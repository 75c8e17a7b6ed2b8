"""`extends`: what a file takes from its parent, and which parents are none."""

import pytest

from ditlab.errors import UserError
from ditlab.spec.files import load_experiment, read_with_parents
from ditlab.spec.overrides import merge
from support.damage import refused


def test_mappings_merge_lists_replace_later_wins():
    below = {"a": {"x": 1, "y": {"p": 1}}, "list": [1, 2, 3], "keep": 0}
    above = {"a": {"x": 2, "y": {"q": 2}}, "list": [9]}
    assert merge(below, above) == {"a": {"x": 2, "y": {"p": 1, "q": 2}}, "list": [9], "keep": 0}
    assert below == {"a": {"x": 1, "y": {"p": 1}}, "list": [1, 2, 3], "keep": 0}


@pytest.mark.parametrize("selector", ["kind", "family", "process"])
def test_another_kind_replaces_the_whole_mapping(selector):
    below = {"m": {selector: "one", "x": 1}}
    assert merge(below, {"m": {selector: "two", "y": 2}}) == {"m": {selector: "two", "y": 2}}
    both = {"m": {selector: "one", "x": 1, "y": 2}}
    assert merge(below, {"m": {selector: "one", "y": 2}}) == both
    assert merge(below, {"m": {"y": 2}}) == both


def test_null_and_scalars_replace_mappings():
    assert merge({"m": {"x": 1}}, {"m": None}) == {"m": None}
    assert merge({"m": None}, {"m": {"x": 1}}) == {"m": {"x": 1}}


def test_three_generations_over_folders(small, write):
    write("base.yaml", {**small, "optimizer": {"lr": 1e-3, "betas": [0.9, 0.99]}})
    write(
        "middle/dit.yaml", {"extends": "../base.yaml", "name": "middle", "optimizer": {"lr": 1e-4}}
    )
    child = write(
        "middle/deep/dit.yaml",
        {"extends": "../dit.yaml", "seed": 7, "optimizer": {"betas": [0.8, 0.9]}},
    )
    experiment = load_experiment(child)
    assert (experiment.name, experiment.seed) == ("middle", 7)
    assert (experiment.optimizer.lr, experiment.optimizer.betas) == (1e-4, (0.8, 0.9))
    assert "extends" not in read_with_parents(child)


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
def test_cycles_are_named(write, names):
    for name, parent in zip(names, [*names[1:], names[0]], strict=True):
        path = write(f"{name}.yaml", f"extends: {parent}.yaml\nname: x\n")
    with pytest.raises(UserError, match="closes a circle") as error:
        load_experiment(path.with_name("a.yaml"))
    assert " -> ".join(f"{name}.yaml" for name in [*names, "a"]) in str(error.value)


def test_parent_must_be_one_name(write):
    child = write("child.yaml", "extends: [a.yaml, b.yaml]\n")
    with refused("must be one file name"):
        load_experiment(child)


def test_what_is_wrong_in_a_parent_names_the_parent(small, write):
    write("base.yaml", "name: a\nname: b\n")
    child = write("child.yaml", {**small, "extends": "base.yaml"})
    with refused(r"base\.yaml: line 2"):
        load_experiment(child)
