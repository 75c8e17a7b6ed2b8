"""A file that says YAML 1.1 is read as YAML 1.2 where both agree, and else refused."""

import pytest

from ditlab.errors import UserError
from ditlab.spec.yaml_text import parse_yaml


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        ("0123", "83", "123"),
        ("1:30", "90", "'1:30'"),
        ("yes", "true", "'yes'"),
        ("off", "false", "'off'"),
        ("0o17", "'0o17'", "15"),
    ],
)
def test_values_that_two_versions_read_differently(value, old, new):
    for text, path in ((f"seed: {value}", "seed"), (f"a:\n  b: [1, {value}]", "a.b.1")):
        with pytest.raises(UserError, match=r"remove the head") as refused:
            parse_yaml(f"# notes\n%YAML 1.1\n---\n{text}\n", "spec.yaml")
        assert f"spec.yaml: {path} is {old} in YAML 1.1" in str(refused.value)
        assert f"and {new} in YAML 1.2" in str(refused.value)


def test_a_head_that_changes_nothing():
    text = "seed: 123\nlr: 1.0e-3\nname: plain\nsizes: [1, 2]\n"
    found = parse_yaml(text, "spec.yaml")
    for version in ("1.1", "1.2"):
        assert parse_yaml(f"%YAML {version}\n---\n{text}", "spec.yaml") == found
