"""Damaged files: single bits flipped, and JSON whose keys or values are no longer what was
written; and the one sentence that refuses such input.
"""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ditlab.errors import UserError

Place = tuple[Any, Any]
"""A mapping or list, and a key or index in it."""

VALUES: tuple[Any, ...] = (
    None,
    True,
    "",
    "12",
    "a text",
    -1,
    0,
    1.5,
    10**30,
    -(10**30),
    1e308,
    [],
    {},
    [[]],
    "\ud800",
    "../x",
    "\x1b[31m",
)
"""Values put in the place of others."""
TEXTS = ("NaN", "Infinity", "1e999", "9" * 5000, "[" * 100_000, '{"a":' * 2000)
"""Texts that are no values of JSON, or too large ones."""
MARK = "a place for a text"


@contextmanager
def refused(words: str, kind: type[Exception] = UserError) -> Iterator[None]:
    """Check that the body is refused in one line, which matches a regular expression."""
    with pytest.raises(kind, match=words) as caught:
        yield
    assert "\n" not in str(caught.value)


def bit_flips(content: bytes, num: int, seed: int = 0) -> Iterator[bytes]:
    """Copies of a file with one bit flipped each, at places of their own."""
    places = random.Random(seed)
    for place in places.sample(range(8 * len(content)), min(num, 8 * len(content))):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        yield bytes(damaged)


def mutations(content: bytes, num: int, seed: int = 0) -> Iterator[bytes]:
    """Copies of a JSON file with a key misspelt, doubled or left out, or a value of another type,
    size or length.
    """
    draws = random.Random(seed)
    for _ in range(num):
        keys = json.loads(content)
        parent, key = draws.choice(list(_places(keys)))
        yield draws.choice(_CHANGES)(keys, parent, key, draws)


def _places(value: Any) -> Iterator[Place]:
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in inside:
        yield value, key
        yield from _places(each)


def _another_value(keys: Any, parent: Any, key: Any, draws: random.Random) -> bytes:
    parent[key] = draws.choice(VALUES)
    return json.dumps(keys).encode()


def _another_number(keys: Any, parent: Any, key: Any, draws: random.Random) -> bytes:
    value = parent[key]
    is_number = isinstance(value, int | float)
    parent[key] = (
        draws.choice((value + 1, -value, value * 2, float(value), str(value)))
        if is_number
        else [value]
    )
    return json.dumps(keys).encode()


def _another_text(keys: Any, parent: Any, key: Any, draws: random.Random) -> bytes:
    parent[key] = MARK
    return json.dumps(keys).replace(json.dumps(MARK), draws.choice(TEXTS)).encode()


def _another_length(keys: Any, parent: Any, key: Any, draws: random.Random) -> bytes:
    value = parent[key]
    if isinstance(value, list | str):
        parent[key] = draws.choice((value[:-1], value + value, value + value[:1]))
    else:
        del parent[key]
    return json.dumps(keys).encode()


def _misspelt(keys: Any, parent: Any, key: Any, draws: random.Random) -> bytes:
    if isinstance(parent, dict):
        parent[draws.choice((f"{key}s", key[:-1], key.upper(), ""))] = parent.pop(key)
    else:
        parent.insert(key, parent[key])
    return json.dumps(keys).encode()


def _twice(keys: Any, parent: Any, key: Any, draws: random.Random) -> bytes:
    if not isinstance(parent, dict):
        return _another_length(keys, parent, key, draws)
    first, second = draws.sample((json.dumps(parent[key]), json.dumps(draws.choice(VALUES))), 2)
    parent[key] = MARK
    return (
        json.dumps(keys).replace(json.dumps(MARK), f"{first}, {json.dumps(key)}: {second}").encode()
    )


_CHANGES: tuple[Callable[[Any, Any, Any, random.Random], bytes], ...] = (
    _another_value,
    _another_number,
    _another_text,
    _another_length,
    _misspelt,
    _twice,
)
