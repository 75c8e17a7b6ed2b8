"""YAML as text: a strict reader for what strangers write, and a writer whose text it reads back.

The last line of YAML that DiTLab wrote is the hash of those above, so that a change is noticed, and said.
"""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ditlab.errors import UserError
from ditlab.spec.values import format_value, printable_sentence, shorten
from ditlab.storage.files import is_edited
from ditlab.storage.plain_files import MIB

MAX_BYTES = MIB  # a spec has a few thousand
MAX_NODES = 10_000  # a spec has a few hundred; nested aliases reach billions
MAX_DEPTH = 100
MAX_DIGITS = 1_000  # Python writes no whole number of more than 4,300
_TOO_MUCH = (
    f"more than {MAX_NODES:,} values or {MAX_DEPTH} levels, aliases expanded; write less, and no nested aliases."
)
YAML_TAGS = "tag:yaml.org,2002:"
SCALARS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "null": "null"}
_log = logging.getLogger("ditlab.spec")
_said: set[Path] = set()


def parse_yaml(text: str, source: str) -> Any:
    """YAML 1.2 without tags, duplicate keys, NaN, infinities or alias bombs. Raises UserError with source and line."""
    size = len(text) if len(text) > MAX_BYTES else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise UserError(f"{source}: has {size:,} bytes, and at most {MAX_BYTES:,} are read; write less.")
    try:
        yaml = _yaml()
        node = yaml.compose(text)
        if node is None:
            return None
        _check(node, yaml, source)
        return yaml.constructor.construct_document(node)
    except UserError:
        raise
    except RecursionError:
        raise UserError(f"{source}: {_TOO_MUCH}") from None
    except Exception as error:  # besides YAMLError the parser lets others through, such as KeyError and AttributeError
        raise UserError(f"{source}: {_yaml_message(error)}") from None


def _yaml() -> YAML:
    return YAML(typ="safe", pure=True)


def _yaml_message(error: Exception) -> str:
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        problem = str(error.problem or error.context or error).strip().splitlines()[0]
        if problem.startswith("but "):  # the second half of a sentence
            problem = f"{error.context}, {problem}"
        problem = printable_sentence(problem)
        return (
            where + problem + ("; keep one of the two." if "duplicate key" in problem else "; correct the YAML there.")
        )
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{printable_sentence(lines[0])}; correct the YAML there."


def _check(root: Node, yaml: YAML, source: str) -> None:
    """Walks the composed nodes; aliases are walked as often as they are used, so a bomb meets the limit."""
    count = 0
    stack: list[tuple[Node, int]] = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        count += 1
        line = node.start_mark.line + 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            raise UserError(f"{source}: line {line}: {_TOO_MUCH}")
        if problem := _problem(node, yaml):
            raise UserError(f"{source}: line {line}: {problem}")
        if isinstance(node, SequenceNode):
            stack += [(child, depth + 1) for child in node.value]
        elif isinstance(node, MappingNode):
            for key, value in node.value:
                if not isinstance(key, ScalarNode) or not key.value.isprintable():
                    raise UserError(f"{source}: line {key.start_mark.line + 1}: {_key_message(key)}")
                stack += [(key, depth + 1), (value, depth + 1)]


def _problem(node: Node, yaml: YAML) -> str:
    """Describe what is wrong with a node by itself; empty for nothing."""
    tag = str(node.tag).removeprefix(YAML_TAGS)
    if isinstance(node, ScalarNode):
        return _scalar_problem(node, tag, yaml) if tag in SCALARS else _tag_message(node)
    return "" if tag == ("seq" if isinstance(node, SequenceNode) else "map") else _tag_message(node)


def _scalar_problem(node: ScalarNode, tag: str, yaml: YAML) -> str:
    written = format_value(node.value)
    if tag == "int" and len(node.value) > MAX_DIGITS:
        return f"a number has thousands of digits ({len(node.value):,} characters); write a shorter one."
    if re.search("[\ud800-\udfff]", node.value):
        return f"{written} holds half a character (a surrogate); write the whole one."
    try:
        value = yaml.constructor.construct_object(node)
    except Exception:  # ValueError of `!!int x`, KeyError of `!!bool 7`
        return f"{written} is not {SCALARS[tag]}; write a plain value, and a text in quotes."
    if isinstance(value, float) and not math.isfinite(value):
        return f"{shorten(node.value)} is refused; write a finite number."
    return ""


def _key_message(key: Node) -> str:
    if isinstance(key, ScalarNode):
        return f"{format_value(key.value)} is no name, as it holds a character that cannot be printed; rename it."
    return "a list or a mapping is no key; write a name before each colon, and quotes around a text with braces."


def _tag_message(node: Node) -> str:
    tag = str(node.tag).replace(YAML_TAGS, "!!")
    if tag == "!!merge":
        return "the merge key << is refused; write the fields out, or use `extends`."
    if tag == "!!timestamp":
        return f"{shorten(node.value)} reads as a date; put it in quotes."
    return f"YAML tag {format_value(tag)} is refused; write a plain value."


def dump_yaml(mapping: Mapping[str, Any]) -> str:
    """The written form of a mapping; `parse_yaml` of it gives the same mapping."""
    yaml = _yaml()
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    out = io.StringIO()
    yaml.dump(dict(mapping), out)
    return out.getvalue()


def warn_of_edit(path: Path, content: bytes) -> None:
    """Log a warning, once a process, where a file's content was changed since DiTLab wrote it."""
    if path not in _said and is_edited(content):
        _said.add(path)
        _log.warning("%s was changed since DiTLab wrote it, by hand or by damage; it counts as it is now", path)
