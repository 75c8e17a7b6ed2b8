"""Names and values made to fit MLflow's rules, and a spec as flat parameters. Imports nothing
heavy.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

KEY_LENGTH = 250
"""Characters of a metric's, parameter's or tag's name."""
PARAM_LENGTH = 6000
TAG_LENGTH = 8000

_NOT_ALLOWED = re.compile(r"[^/\w.\- :]")
_NOT_ALLOWED_IN_FOLDERS = re.compile(r"[^\w.\- ]")
_NOT_ALLOWED_IN_IMAGES = re.compile(r"[^a-zA-Z0-9_\-./ ]")
VIEW = "ditlab"
"""Key of the saved view of an experiment in MLflow's UI."""
_SHOWN_TAGS = frozenset(
    f"ditlab.{name}"
    for name in (
        "run",
        "family",
        "status",
        "changed",
        "data",
        "baseline",
        "forked_from",
        "trial",
        "group",
        "seed",
        "failure",
    )
)
FACTS_NAME = "facts.json"
"""Artifact with all tags of a run; MLflow shows few as tags."""
SPEC_HASH = "spec_hash"
"""Parameter with the hash over the fields that decide the trained weights."""
MODEL_TRAINING = "workflowType=machine_learning"
"""Parameter of addresses without which MLflow 3.17 shows its pages for language-model
applications.
"""


def safe_key(name: str) -> str:
    """A name for metrics, parameters and tags that MLflow accepts: odd characters become `_`, empty
    path parts go.
    """
    parts = [part for part in _NOT_ALLOWED.sub("_", name).split("/") if part not in ("", ".", "..")]
    return "/".join(parts)[:KEY_LENGTH] or "_"


def is_shown(tag: str) -> bool:
    """Return True for a tag that MLflow shows as one: few of ours, so that they are read, and all
    of others.
    """
    return not tag.startswith("ditlab.") or tag in _SHOWN_TAGS or tag.startswith("ditlab.resume.")


def safe_image_key(name: str) -> str:
    """A name for images, which may hold fewer characters than other names."""
    return _NOT_ALLOWED_IN_IMAGES.sub("_", safe_key(name))


def safe_folder(name: str) -> str:
    """One folder's name, another for each name. No percent signs: MLflow decodes them, and
    `..%2F..` would lead out.
    """
    plain = _NOT_ALLOWED_IN_FOLDERS.sub("_", name)[:100]
    if plain == name and name.strip(". "):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain.strip('. ') or '_'}-{digest}"


def shorten(text: str, limit: int) -> str:
    """Cut a text to at most `limit` characters; an ellipsis gives the number of missing ones."""
    if len(text) <= limit:
        return text
    tail = f"… ({len(text) - limit + 40} more characters)"
    return text[: limit - 40] + tail


def artifact_image(key: str, step: int | None) -> str:
    """Path among MLflow's artifacts of an image of a step, by which files sort; None: the newest
    one's.
    """
    name = safe_image_key(key).replace(" ", "-")
    leaf = name.rpartition("/")[2]
    if step is not None:
        return f"{name}/{leaf}-{step:08d}.png"
    return f"{name}/latest.png"


def experiment_page(experiment_id: str, charts: bool = False) -> str:
    """Address, within MLflow's UI, of an experiment's runs in the saved view: as a list, or as
    charts.
    """
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"#/experiments/{experiment_id}/runs?{MODEL_TRAINING}&viewStateShareKey={VIEW}{mode}"


def flatten(spec: Mapping[str, Any]) -> dict[str, str]:
    """Flatten a spec to texts by dotted name: `{"model": {"depth": 9}}` gives `{"model.depth":
    "9"}`.

    Lists of plain values stay one parameter (`[0.9, 0.999]`), lists that hold mappings are
    numbered. Strings stand as they are, everything else as JSON writes it (`null`, `true`,
    `1e-05`), so a parameter reads as in the YAML.
    """
    flat: dict[str, str] = {}

    def walk(value: Any, path: str) -> None:
        items: Iterable[tuple[Any, Any]] | None = None
        if isinstance(value, Mapping) and (value or not path):
            items = value.items()
        elif isinstance(value, list | tuple) and any(isinstance(inner, Mapping) for inner in value):
            items = enumerate(value)
        if items is not None:
            for key, inner in items:
                walk(inner, f"{path}.{key}" if path else str(key))
        elif isinstance(value, str):
            flat[path] = value
        else:
            flat[path] = json.dumps(value, default=str)

    walk(spec, "")
    return flat


def differing(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Old and new text of each field in which two flat specs differ; empty where one has no such
    field.
    """
    pairs = {path: (old.get(path, ""), new.get(path, "")) for path in dict.fromkeys([*old, *new])}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


def change_texts(changes: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return `field: old -> new` of each field that a resume changes."""
    return [
        f"{path}: {old or 'none'} -> {new or 'none'}"
        for path, (old, new) in changes.items()
        if path != SPEC_HASH
    ]


def as_count(text: str) -> int | None:
    """Return the whole number that a parameter or tag is; None for any other text."""
    if text.isascii() and text.isdecimal() and len(text) < 20:
        return int(text)
    return None
