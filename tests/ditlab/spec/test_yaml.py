"""Input that the strict YAML reader takes, and input that it refuses."""

import re
import time

import pytest

from ditlab.spec.yaml_text import MAX_BYTES, dump_yaml, parse_yaml
from support import specs

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{own}: &{own} [{', '.join([f'*{above}'] * 10)}]\n"
    for above, own in zip("abcdefgh", "bcdefghi", strict=True)
)


def refusal(text):
    message = specs.refusal(parse_yaml, text, "spec.yaml")
    assert message.startswith("spec.yaml: ")
    return message


def test_yaml_1_2_values():
    text = "a: 1e-4\nb: no\nc: ~\nd: 0o17\ne: [1, true]\nf: '12'\ng: 12\nh: .5\n"
    expected = {
        "a": 1e-4,
        "b": "no",
        "c": None,
        "d": 15,
        "e": [1, True],
        "f": "12",
        "g": 12,
        "h": 0.5,
    }
    assert parse_yaml(text, "spec.yaml") == expected
    assert parse_yaml("", "spec.yaml") is None


def test_plain_aliases_are_fine():
    assert parse_yaml("a: &x {b: 1}\nc: *x\n", "spec.yaml") == {"a": {"b": 1}, "c": {"b": 1}}


def test_duplicate_key_is_named_with_its_line():
    assert "line 2" in refusal("name: a\nname: b\n")
    assert 'duplicate key "depth"' in refusal("model:\n  depth: 1\n  width: 2\n  depth: 3\n")


@pytest.mark.parametrize("number", [".nan", "-.inf"])
def test_numbers_that_are_none(number):
    assert f"'{number}' is refused" in refusal(f"lr: {number}\n")


@pytest.mark.parametrize(
    "text",
    [
        "name: !!python/object/apply:os.system ['echo hi']\n",
        "name: !mine x\n",
        "model: !mine {a: 1}\n",
        "name: !!binary aGVsbG8=\n",
    ],
)
def test_tags_are_refused(text):
    message = refusal(text)
    assert "YAML tag" in message and "write a plain value" in message


def test_dates_and_merge_keys_say_what_to_write_instead():
    assert (
        "'!!timestamp' is refused; write a plain value, and a text, such as a date, in"
        in refusal("name: 2020-01-01\n")
    )
    assert "'!!merge' is refused" in refusal("a: &a {b: 1}\nmodel: {<<: *a}\n")


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "a: &a [*a]\n",
        "a: " + "[" * 5_000 + "]" * 5_000,
        "".join("  " * level + "a:\n" for level in range(150)),
        "model: {" + ",".join(f"k{index}: {index}" for index in range(20_000)) + "}",
    ],
    ids=["bomb", "itself", "brackets", "indents", "wide"],
)
def test_bombs_are_refused_at_once(text):
    start = time.process_time()
    assert re.search("10,000 values|[Dd]epth", refusal(text))
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "text", ["#" * (MAX_BYTES + 1), "#" + "é" * (MAX_BYTES // 2)], ids=["bytes", "letters"]
)
def test_the_length_is_bounded_before_parsing(text):
    start = time.process_time()
    message = "has 262,145 bytes, and at most 262,144 are read; write less."
    assert refusal(text) == f"spec.yaml: {message}"
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!bool 7", "correct the YAML there."),
        ("a: !!str [b]", "correct the YAML there."),
        ("a: 1e400", "line 2: '1e400' is refused; write a finite number."),
        ('"\\e[31m": 1', "line 2: keys are names that can be printed"),
        ("? [[a], {b: c}]\n: d", "line 2: keys are names"),
    ],
)
def test_what_is_no_value_is_named(text, message):
    said = refusal("name: x\n" + text)
    assert message in said and len(said) < 200


def test_sentences_hold_no_control_characters():
    for text in (
        'a: !"\x1b[31m" b',
        "a: !\\x1b b",
        'a: b\n"\\e[31m": 1\n"\\e[31m": 2',
        "a: !!int '\\e[31m\n7'",
    ):
        assert refusal(text).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "name: [a\n",
        "name: a\n\tb: c\n",
        "name: *x\n",
        "a: b\n---\nc: d\n",
        "a: \x01\n",
        "seed: " + "9" * 5_000,
    ],
)
def test_what_is_no_yaml_is_one_short_sentence(text):
    assert len(refusal(text)) < 200


def test_dump_loads_back():
    mapping = {
        "a": "no",
        "b": "1e3",
        "c": None,
        "d": [0.9, 1e-8],
        "e": {"f": True, "g": ""},
        "h": "a: #b\n",
        "i": "12",
    }
    assert parse_yaml(dump_yaml(mapping), "dump") == mapping
    assert list(parse_yaml(dump_yaml({"z": 1, "a": 2}), "dump")) == ["z", "a"]
