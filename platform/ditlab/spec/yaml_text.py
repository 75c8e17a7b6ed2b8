"""YAML as text: a strict reader for what strangers write, and a writer whose text it reads back."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from ditlab.errors import UserError, first_line
from ditlab.spec.values import format_value, printable_sentence
from ditlab.storage.plain_files import MIB, read_plain

MAX_BYTES = MIB // 4  # a spec has a few thousand
MAX_NODES = 10_000  # a spec has a few hundred; nested aliases reach billions
MAX_DEPTH = 100
PLAIN = {"!!str", "!!int", "!!float", "!!bool", "!!null", "!!seq", "!!map"}
"""Tags of the values that a spec may hold."""
_OLD_VERSION = re.compile(r"^(%YAML[ \t]+)1\.1\b", re.MULTILINE)
"""Head of a file in YAML 1.1, where 0123 is 83, 1:30 is 90 and yes is true."""


def parse_yaml(text: str, source: str) -> Any:
    """YAML 1.2 without tags, duplicate keys, NaN, infinities or alias bombs. Raises UserError with
    source and line.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise UserError(
            f"{source}: has {size:,} bytes, and at most {MAX_BYTES:,} are read; write less."
        )
    current = _OLD_VERSION.sub(r"\g<1>1.2", text, count=1)
    found = _parsed(current, source)
    if current != text:
        with warnings.catch_warnings(action="ignore"):  # ruamel's, of what 1.1 has otherwise
            _check_meaning(_parsed(text, source), found, source)
    return found


def _check_meaning(old: Any, new: Any, source: str, path: str = "") -> None:
    """Raise UserError for the first value that YAML 1.1, as a file's head says, and YAML 1.2 read
    differently.
    """
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key, value in old.items():
            _check_meaning(value, new[key], source, f"{path}.{key}" if path else str(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, value in enumerate(old):
            _check_meaning(value, new[number], source, f"{path}.{number}")
    elif type(old) is not type(new) or old != new:
        raise UserError(
            f"{source}: {path or 'its content'} is {format_value(old)} in YAML 1.1, as its head "
            f"`%YAML 1.1` says, and {format_value(new)} in YAML 1.2, which is read here; remove "
            "the head and write the value that you mean."
        )


def _parsed(text: str, source: str) -> Any:
    yaml = YAML(typ="safe", pure=True)
    # unbounded, 5,000 open brackets take 4 s, and Python's recursion ends
    yaml.max_depth = MAX_DEPTH
    try:
        node = yaml.compose(text)
        if node is None:
            return None
        _check(node, yaml, source)
        return yaml.constructor.construct_document(node)
    except UserError:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = str(error.problem or error.context or error).strip().splitlines()[0]
        if problem.startswith("but "):  # the second half of a sentence
            problem = f"{error.context}, {problem}"
        if "duplicate key" in problem:
            remedy = "keep one of the two"
        else:
            remedy = "correct the YAML there"
        where = f"line {mark.line + 1}: " if mark else ""
        raise UserError(f"{source}: {where}{printable_sentence(problem)}; {remedy}.") from None
    # besides YAMLError the parser lets others through, such as KeyError and AttributeError
    except Exception as error:
        raise UserError(
            f"{source}: {printable_sentence(first_line(error))}; correct the YAML there."
        ) from None


def _check(root: Any, yaml: YAML, source: str) -> None:
    """Walk the composed nodes. Aliases are walked as often as they are used, so a bomb meets the
    limit.
    """
    count = 0
    nodes = [root]
    while nodes:
        node = nodes.pop()
        count += 1
        problem = ""
        place = node
        tag = str(node.tag).replace("tag:yaml.org,2002:", "!!")
        if count > MAX_NODES:
            problem = (
                f"more than {MAX_NODES:,} values, aliases expanded; write less, and no nested "
                "aliases."
            )
        elif tag not in PLAIN:
            problem = (
                f"YAML tag {format_value(tag)} is refused; write a plain value, and a text, "
                "such as a date, in quotes."
            )
        elif isinstance(node, ScalarNode):
            value = yaml.constructor.construct_object(node)
            # raises for half a character, and for a number of thousands of digits
            str(value).encode()
            if isinstance(value, float) and not math.isfinite(value):
                problem = f"{format_value(node.value)} is refused; write a finite number."
        elif isinstance(node, MappingNode):
            for key, value in node.value:
                if not isinstance(key, ScalarNode) or not key.value.isprintable():
                    problem = "keys are names that can be printed; write one before each colon."
                    place = key
                nodes += [key, value]
        elif isinstance(node, SequenceNode):
            nodes += node.value
        if problem:
            raise UserError(f"{source}: line {place.start_mark.line + 1}: {problem}")


def read_recorded(path: Path) -> dict[str, Any]:
    """The mapping of a spec in a run's folder, of which nothing is validated; empty where the file
    holds another value. Raises OSError where it cannot be read, ValueError and UserError for what
    is no YAML."""
    mapping = parse_yaml(read_plain(path, MAX_BYTES).decode(), str(path))
    return mapping if isinstance(mapping, dict) else {}


def dump_yaml(mapping: Mapping[str, Any], ascii_only: bool = False) -> str:
    """The written form of a mapping; `parse_yaml` of it gives the same mapping. Under `ascii_only`
    other characters are escaped.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.allow_unicode = not ascii_only
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.representer.add_representer(float, _written_float)
    out = io.StringIO()
    yaml.dump(dict(mapping), out)
    return out.getvalue()


def _written_float(representer: Any, value: float) -> Any:
    """Write a number with a point, as 1.0e-05: readers of YAML 1.1, such as PyYAML, take 1e-05 for
    a text.
    """
    node = type(representer).represent_float(representer, value)
    if "e" in node.value and "." not in node.value:
        node.value = node.value.replace("e", ".0e")
    return node
