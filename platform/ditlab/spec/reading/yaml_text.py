"""YAML as text: a strict reader for what strangers write, and a writer whose text it reads back."""

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ditlab.errors import UserError
from ditlab.spec.format_value import format_value

MAX_NODES = 10_000  # a spec has a few hundred; nested aliases reach billions
MAX_DEPTH = 100
YAML_TAGS = "tag:yaml.org,2002:"
PLAIN_TAGS = tuple(f"{YAML_TAGS}{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null"))


def parse_yaml(text: str, source: str) -> Any:
    """YAML 1.2 without tags, duplicate keys, NaN, infinities or alias bombs. Raises UserError with source and line."""
    try:
        _check_size(text, source)
        yaml = _yaml()
        node = yaml.compose(text)
        if node is None:
            return None
        _check(node, source)
        return yaml.constructor.construct_document(node)
    except (YAMLError, ValueError, RecursionError) as error:
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
        return where + problem + ("; keep one of the two." if "duplicate key" in problem else "; mend the YAML there.")
    message = str(error).strip().splitlines()[0]
    if "integer string conversion" in message:
        return "a number has thousands of digits; write a shorter one."
    return f"{message}; mend the YAML there."


def _check_size(text: str, source: str) -> None:
    """Counts what is written, before anything recursive or slow sees it."""
    depth = 0
    for count, event in enumerate(_yaml().parse(text)):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        _check_limits(count, depth, event.start_mark.line + 1, source)


def _check_limits(count: int, depth: int, line: int, source: str) -> None:
    if count > MAX_NODES or depth > MAX_DEPTH:
        raise UserError(
            f"{source}: line {line}: more than {MAX_NODES:,} values or {MAX_DEPTH} levels, aliases expanded; "
            "write less, and no nested aliases."
        )


def _check(root: Node, source: str) -> None:
    """Walks the composed nodes; aliases are walked as often as they are used, so a bomb meets the limit."""
    count = 0
    stack: list[tuple[Node, int]] = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        count += 1
        line = node.start_mark.line + 1
        _check_limits(count, depth, line, source)
        if str(node.tag) not in PLAIN_TAGS:
            raise UserError(f"{source}: line {line}: {_tag_message(node)}")
        if isinstance(node, ScalarNode):
            if str(node.tag).endswith(":float") and node.value.lower().lstrip("+-") in (".nan", ".inf"):
                raise UserError(f"{source}: line {line}: {node.value} is refused; write a finite number.")
        elif isinstance(node, SequenceNode):
            stack += [(child, depth + 1) for child in node.value]
        elif isinstance(node, MappingNode):
            stack += [(child, depth + 1) for pair in node.value for child in pair]


def _tag_message(node: Node) -> str:
    tag = str(node.tag).replace(YAML_TAGS, "!!")
    if tag == "!!merge":
        return "the merge key << is refused; write the fields out, or use `extends`."
    if tag == "!!timestamp":
        return f"{node.value} reads as a date; put it in quotes."
    return f"YAML tag {format_value(tag)} is refused; write a plain value."


def dump_yaml(mapping: Mapping[str, Any]) -> str:
    """The written form of a mapping; `parse_yaml` of it gives the same mapping."""
    yaml = _yaml()
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    out = io.StringIO()
    yaml.dump(dict(mapping), out)
    return out.getvalue()
