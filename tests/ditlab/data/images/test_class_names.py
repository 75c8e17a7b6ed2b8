"""Names of classes that are numbers keep their values and their order."""

import math

import pytest

from ditlab.data.images.annotations import class_name, class_table


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (10, "10"),
        (10.0, "10"),  # of a column of pandas in which another label is missing
        (-1.0, "-1"),
        (2.0**53, "9007199254740992"),
        (True, "true"),
        ("8.0", "8.0"),
        ("010", "010"),
        (math.nan, None),
        (None, None),
    ],
)
def test_a_class_by_its_value(value, name):
    assert class_name(value) == name


@pytest.mark.parametrize("value", [0.5, math.inf, [1], b"1"])
def test_what_is_no_class(value):
    with pytest.raises(TypeError):
        class_name(value)


@pytest.mark.parametrize(
    "names",
    [
        [str(number) for number in range(12)],
        [f"{number}.0" for number in range(12)],  # as text, class 10 would be 8.0
        ["-2.0", "-1.0", "0", "0.0", "2.5", "10"],
        ["008", "009", "010"],
        ["10", "8", "cat"],
    ],
)
def test_numbers_are_in_the_order_of_their_values(names):
    assert list(class_table(reversed(names))) == names
    assert class_table([*names, None, ""]) == tuple(names)
