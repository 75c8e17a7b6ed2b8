"""From YAML to an experiment: strict parsing, `extends`, `--set`, errors that name the knob."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.messages import explain

MAX_NODES = 10_000  # a spec has a few hundred; nested aliases reach billions
MAX_DEPTH = 100
SELECTORS = ("family", "kind")
PLAIN_TAGS = tuple(f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null"))


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment that a YAML file and its parents describe, with `--set` overrides (`a.b=value`) on top.

    Raises UserError, naming file and knob, for anything wrong in them.
    """
    return build_experiment(apply_overrides(read_with_parents(path), overrides), str(path))


def build_experiment(mapping: Mapping[str, Any], source: str) -> Experiment:
    """Validates a resolved mapping. Raises UserError with one line per mistake, each beginning with `source`."""
    if "base" in mapping:
        raise UserError(f"{source}: a file with `base` is a sweep; sweeps are not available yet.")
    try:
        cls = class_for(mapping)
        return cls.model_validate(dict(mapping))
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except ValidationError as error:
        raise UserError("\n".join(f"{source}: {line}" for line in explain(error, cls, mapping))) from None


def parse_yaml(text: str, source: str) -> Any:
    """YAML 1.2 without tags, duplicate keys, NaN, infinities or alias bombs. Raises UserError with source and line."""
    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(text)
        if node is None:
            return None
        _check(node, source)
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{source}: {_yaml_message(error)}") from None


def _yaml_message(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply; flatten it."
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        problem = str(error.problem or error.context or error).strip().splitlines()[0]
        return f"{where}{problem}" + ("; keep one of the two." if "duplicate key" in problem else "")
    return str(error).strip().splitlines()[0]


def _check(root: Node, source: str) -> None:
    """Walks the composed nodes; aliases are walked as often as they are used, so a bomb meets the limit."""
    count = 0
    stack: list[tuple[Node, int]] = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        count += 1
        line = node.start_mark.line + 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            raise UserError(
                f"{source}: line {line}: more than {MAX_NODES} nodes or {MAX_DEPTH} levels once aliases are expanded; "
                "write it without nested aliases."
            )
        if str(node.tag) not in PLAIN_TAGS:
            raise UserError(f"{source}: line {line}: YAML tag {node.tag} is refused; write a plain value.")
        if isinstance(node, ScalarNode):
            if str(node.tag).endswith(":float") and node.value.lower().lstrip("+-") in (".nan", ".inf"):
                raise UserError(f"{source}: line {line}: {node.value} is refused; write a finite number.")
        elif isinstance(node, SequenceNode):
            stack += [(child, depth + 1) for child in node.value]
        elif isinstance(node, MappingNode):
            stack += [(child, depth + 1) for pair in node.value for child in pair]


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
            raise UserError(f"{current}: extends={parent!r} must be one file name.")
        mappings.append(mapping)
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
        raise UserError(f"{path}: cannot be read as text ({error}).") from None
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
    """`model.depth=9` and the like, in turn. The value is YAML: `null`, `[0.9, 0.99]`, `{kind: norm}` all work."""
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise UserError(f"--set {override}: write a dotted path and a value, such as --set optimizer.lr=1e-4.")
        value = parse_yaml(text, f"--set {path}")
        for key in reversed(keys):
            value = {key: value}
        below = mapping
        for key in keys[:-1]:
            below = below.get(key, {}) if isinstance(below, dict) else {}
        mapping = merge(mapping, value)
    return mapping


def dump_yaml(mapping: Mapping[str, Any]) -> str:
    """The written form of a mapping; `load` of it gives the same mapping."""
    import io

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    out = io.StringIO()
    yaml.dump(dict(mapping), out)
    return out.getvalue()
