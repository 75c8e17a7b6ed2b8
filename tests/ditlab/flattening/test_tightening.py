"""A printed program is shorter and computes the same."""

import pytest

from ditlab.flattening.merging import merge_bases
from ditlab.flattening.tightening import tighten

LONG = '''
def scaled(
    value,
    factor,
):
    """Scale a value. `factor` multiplies it. `offset` is added.

    `limit` bounds the result.
    """
    return value * factor


LIMIT = 3.0
"""Largest value."""
PAIR = (
    scaled(1, 2),
)
NAMES = [
    "a",  # the first
    "b",
]
'''
SHORT = '''
def scaled(value, factor):
    """Scale a value. `factor` multiplies it."""
    return value * factor


LIMIT = 3.0  # Largest value
PAIR = (scaled(1, 2),)
NAMES = [
    "a",  # the first
    "b",
]
'''
CLASSES = '''
class Base:
    """A base."""

    limit: float
    """Largest value."""

    def __init__(self, scale, offset=0):
        """`scale`: a factor."""
        self.scale = scale
        self.offset = offset

    def value(self, x):
        return self.scale * self._inner(x) + self.offset

    def _inner(self, x):
        raise NotImplementedError


class Below(Base):
    """The class that is made."""

    def __init__(self, spec):
        super().__init__(spec.real, offset=1)
        self.limit = 2.0

    def _inner(self, x):
        return min(x, self.limit)


made = Below(3).value(5)
'''


def test_brackets_docstrings_and_sentences():
    assert tighten(LONG) == SHORT


def test_a_base_of_one_class_becomes_part_of_it():
    text = merge_bases(CLASSES)
    found = {}
    exec(text, found)
    assert found["made"] == 7
    assert "class Below:" in text
    for gone in ("class Base", "super()", "NotImplementedError"):
        assert gone not in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("made = Below(3)", "made = isinstance(Below(3), Base) and Below(3)"),
        ("super().__init__(spec.real, offset=1)", "super().__init__(int(spec), offset=1)"),
        ("return min(x, self.limit)", "return super()._inner(x)"),
        ("class Base:", "@final\nclass Base:"),
    ],
)
def test_a_base_that_is_more_stays(old, new):
    text = CLASSES.replace(old, new)
    assert text != CLASSES
    assert merge_bases(text) == text
