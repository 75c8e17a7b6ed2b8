"""From YAML to an experiment: strict parsing, `extends`, `--set`, errors that name the knob."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.messages import SELECTORS, check_path, explain, shown, spec_at

MAX_NODES = 10_000  # a spec has a few hundred; nested aliases reach billions
MAX_DEPTH = 100
YAML_TAGS = "tag:yaml.org,2002:"
PLAIN_TAGS = tuple(f"{YAML_TAGS}{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null"))


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment that a YAML file and its parents describe, with `--set` overrides (`a.b=value`) on top.

    Raises UserError, naming file and knob, for anything wrong in them.
    """
    return build_experiment(apply_overrides(read_with_parents(path), overrides), str(path))


def build_experiment(mapping: Mapping[str, Any], source: str) -> Experiment:
    """Validates a resolved mapping. Raises UserError with one line per mistake, each beginning with `source`."""
    if "base" in mapping:
        raise UserError(
            f"{source}: a file with `base` is a sweep, and sweeps are not available yet; name an experiment."
        )
    try:
        cls = class_for(mapping)
        return cls.model_validate(dict(mapping))
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except ValidationError as error:
        raise UserError("\n".join(f"{source}: {line}" for line in explain(error, cls, mapping))) from None


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
    return f"YAML tag {shown(tag)} is refused; write a plain value."


def read_with_parents(path: Path) -> dict[str, Any]:
    """The file's mapping, merged over that of the file that its `extends` names, and so on up."""
    chain: list[Path] = []
    mappings: list[dict[str, Any]] = []
    current: Path | None = path
    while current is not None:
        resolved = current.resolve()
        if resolved in chain:
            loop = " -> ".join(str(entry.name) for entry in [*chain[chain.index(resolved) :], resolved])
            raise UserError(
                f"{chain[-1]}: extends={current.name} closes a circle ({loop}); remove one of these `extends`."
            )
        chain.append(resolved)
        mapping = _read(current)
        parent = mapping.pop("extends", None)
        if parent is not None and not isinstance(parent, str):
            raise UserError(f"{current}: extends={shown(parent)} must be one file name.")
        mappings.append(mapping)
        if parent is not None and not (current.parent / parent).is_file():
            raise UserError(
                f"{current}: extends={parent} names no file ({current.parent / parent}); "
                "give a path relative to this file."
            )
        current = None if parent is None else current.parent / parent
    merged: dict[str, Any] = {}
    for mapping in reversed(mappings):
        merged = merge(merged, mapping)
    return merged


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give the path of an experiment's YAML.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "reason", error)
        raise UserError(f"{path}: cannot be read as text ({reason}); give the path of an experiment's YAML.") from None
    mapping = parse_yaml(text, str(path))
    if not isinstance(mapping, dict) or not all(isinstance(key, str) for key in mapping):
        raise UserError(f"{path}: must be a mapping with names as keys, such as `name: my-run`.")
    return mapping


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`: mappings merge, lists replace; another `family` or `kind` replaces the whole mapping."""
    if any(key in above and key in below and above[key] != below[key] for key in SELECTORS):
        return dict(above)
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def apply_overrides(mapping: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`model.depth=9` and the like, in turn. The value is YAML: `null`, `[0.9, 0.99]`, `{kind: norm}` all work.

    Raises UserError for a path that leads nowhere, and for a change of kind that undoes an earlier override.
    """
    done: list[tuple[list[str], str]] = []
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = path.strip().split(".")
        source = f"--set {override if len(override) <= 80 else override[:60] + '...'}"
        if not equals or not all(keys):
            raise UserError(f"{source}: write a dotted path and a value, such as --set optimizer.lr=1e-4.")
        value = parse_yaml(text, source)
        mapping = _with_default_kinds(mapping, keys, source)
        if keys[-1] in SELECTORS and _get(mapping, keys) != value:
            for earlier, said in done:
                if earlier[:-1] == keys[:-1] and earlier[-1] not in SELECTORS:
                    raise UserError(f"{source} would undo {said}, given before it; give {path} first.")
        for key in reversed(keys):
            value = {key: value}
        mapping = merge(mapping, value)
        done.append((keys, source))
    return mapping


def _with_default_kinds(mapping: dict[str, Any], keys: Sequence[str], source: str) -> dict[str, Any]:
    """What an override goes into, where a file leaves it to its default: that default's kind, or the override's other
    fields would belong to no kind. Checks the path on the way."""
    try:
        cls = class_for(mapping)
    except UserError:
        return mapping  # said later, of the whole experiment
    check_path(cls, mapping, keys, source)
    for depth in range(1, len(keys)):
        spec = spec_at(cls, mapping, keys[:depth])
        if _get(mapping, keys[:depth]) is None and spec and "kind" in spec.model_fields:
            kind: dict[str, Any] = {"kind": spec.model_fields["kind"].default}
            for key in reversed(keys[:depth]):
                kind = {key: kind}
            mapping = merge(mapping, kind)
    return mapping


def _get(mapping: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        mapping = mapping.get(key) if isinstance(mapping, Mapping) else None
    return mapping


def dump_yaml(mapping: Mapping[str, Any]) -> str:
    """The written form of a mapping; `load` of it gives the same mapping."""
    yaml = _yaml()
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    out = io.StringIO()
    yaml.dump(dict(mapping), out)
    return out.getvalue()
