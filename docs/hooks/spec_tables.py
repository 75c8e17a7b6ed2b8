"""The spec's reference, from the JSON schemas that `ditlab schema` prints."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ditlab.spec.schema import experiment_schema, sweep_schema
from ditlab_addons.race.samples.spec import sampling_sweep_schema

OF_A_FAMILY = ("model", "objective", "sampling")
"""Sections of an experiment whose fields depend on `model.family`."""
FAMILIES = {
    "dit": "Transformers over patches of an image.",
    "unet": "Convolutional networks of three resolutions.",
    "region": "Transformers over genomic regions.",
    "dlm": "Discrete diffusion language models.",
    "pixelhdm": "Text to image in two paths.",
}


def spec_pages() -> dict[str, str]:
    """Return Markdown by name of page: the experiment, each family, the sweep."""
    schema = experiment_schema()
    known = {
        name.removesuffix("-experiment") for name in schema["$defs"] if name.endswith("-experiment")
    }
    families = [name for name in FAMILIES if name in known]
    pages = {"experiment": _experiment_page(schema)}
    for family in families:
        properties = schema["$defs"][f"{family}-experiment"]["properties"]
        text = (
            f"# Fields of {family}\n\n{FAMILIES[family]} [The family's "
            f"guide](../families/{family}.md); "
        )
        text += "[all other fields](experiment.md).\n"
        pages[f"family-{family}"] = text + _sections(
            schema, {name: properties[name] for name in OF_A_FAMILY}
        )
    sweep, samples = sweep_schema(), sampling_sweep_schema()
    pages["sweep"] = (
        (
            "# The fields of a sweep\n\nMade from `ditlab schema --sweep`. [What they are "
            "for](../sweeps.md).\n\n"
        )
        + _table([Field(name, node, sweep) for name, node in sweep["properties"].items()])
        + _sections(sweep, sweep["properties"])
        + "\n## A sweep over samples\n\nMade from `ditlab schema --samples`; axes are as above. "
        "[What it is for](../addons/race.md#sweeps-over-the-samples-of-a-trained-run).\n\n"
        + _table([Field(name, node, samples) for name, node in samples["properties"].items()])
    )
    return pages


def _experiment_page(schema: dict[str, Any]) -> str:
    properties = schema["$defs"]["dit-experiment"]["properties"]
    shared = {name: node for name, node in properties.items() if name not in OF_A_FAMILY}
    links = ", ".join(f"[{name}](family-{name}.md)" for name in FAMILIES)
    return (
        (
            "# The fields of an experiment\n\nMade from `ditlab schema`, the JSON schema that "
            "editors complete and check by. A field that a file leaves out\nhas its default; "
            "one without a default has to be given, in the file or in its `extends` parent. "
            f"`model`, `objective`\nand `sampling` depend on the family: {links}.\n\n"
        )
        + _table([Field(name, node, schema) for name, node in properties.items()])
        + _sections(schema, shared)
    )


@dataclass(frozen=True)
class Field:
    """A row of a table: a field as its schema describes it."""

    name: str
    node: dict[str, Any]
    schema: dict[str, Any]

    def row(self) -> str:
        """Return the row, as Markdown."""
        default = self.node.get("default", _NOTHING)
        is_whole = (
            isinstance(default, dict) and self.node.get("anyOf") is None and "$ref" in self.node
        )
        shown = "below" if is_whole else "" if default is _NOTHING else f"`{_written(default)}`"
        kind = " or ".join(dict.fromkeys(_types(self.node, self.schema)))
        return f"| `{self.name}` | {kind} | {shown} | {_cell(self.node.get('description', ''))} |"


_NOTHING = object()


def _table(fields: list[Field]) -> str:
    return (
        "\n".join(
            [
                "| field | values | default | |",
                "|---|---|---|---|",
                *(field.row() for field in fields),
            ]
        )
        + "\n"
    )


def _sections(
    schema: dict[str, Any], properties: dict[str, Any], path: str = "", level: int = 2
) -> str:
    """Write a section for each field that holds fields of its own, and for those below it."""
    text = ""
    for name, node in properties.items():
        below = f"{path}{name}"
        found = list(_definitions(node, schema))
        for definition in found:
            kind = _kind(definition)
            heading = (
                below
                if len(found) == 1 and kind is None
                else f"{below}: {kind or definition['title']}"
            )
            if "additionalProperties" in node and path == "" and name == "space":
                heading = f"an axis: {kind}"
            text += (
                f"\n{'#' * min(level, 4)} {heading}\n\n"
                f"{_paragraph(definition.get('description', ''))}\n\n"
            )
            fields = definition.get("properties", {})
            text += (
                _table([Field(each, inner, schema) for each, inner in fields.items()])
                if fields
                else ""
            )
            text += _sections(schema, fields, f"{below}.", level + 1)
    return text


def _definitions(node: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Find the mappings that a field may hold."""
    if "$ref" in node:
        yield schema["$defs"][node["$ref"].rpartition("/")[2]]
    elif node.get("type") == "object" and isinstance(node.get("additionalProperties"), dict):
        yield from _definitions(node["additionalProperties"], schema)
    for each in node.get("anyOf", ()):
        yield from _definitions(each, schema)


def _kind(definition: dict[str, Any]) -> str | None:
    """Value of `kind` (or `family`) by which a definition is chosen."""
    kind = definition.get("properties", {}).get("kind", {}).get("const")
    return f"kind {kind}" if kind else None


def _types(node: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    """Say which values a field takes."""
    if "const" in node:
        yield f"`{_written(node['const'])}`"
    elif "enum" in node:
        yield ", ".join(f"`{_written(value)}`" for value in node["enum"])
    elif "$ref" in node:
        kind = _kind(schema["$defs"][node["$ref"].rpartition("/")[2]])
        yield f"{{{kind.replace(' ', ': ')}}}" if kind else "mapping"
    elif "anyOf" in node:
        for each in node["anyOf"]:
            yield from _types(each, schema)
    elif node.get("type") == "array":
        items = node.get("items") or (node.get("prefixItems") or [{}])[0]
        yield f"list of {' or '.join(_types(items, schema)) or 'any values'}"
    else:
        yield {"null": "null", "object": "mapping", "boolean": "true, false", "string": "text"}.get(
            node.get("type", ""), node.get("type", "any value")
        ) + _bounds(node)


def _bounds(node: dict[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    given = [
        f"{sign} {_number(node[key])}"
        for key, sign in signs.items()
        if key in node and abs(node[key]) < 1e9
    ]
    return f" {', '.join(given)}" if given else ""


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _paragraph(text: str) -> str:
    return text.replace("<", "&lt;")
