"""Experiments that come with DiTLab, and a commented spec made of one: what `ditlab new` writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, takewhile
from pathlib import Path
from textwrap import indent, wrap
from typing import Any

import click

import ditlab
from ditlab.cli import output
from ditlab.cli.options import as_json as json_option
from ditlab.errors import UserError, cannot_write, nearest
from ditlab.reports.formatting import terminal_table
from ditlab.spec.experiment import check_name, class_for
from ditlab.spec.files import build_experiment, find_file_kind, is_sweep, read_with_parents
from ditlab.spec.overrides import chosen, merge, nested, options, values_of
from ditlab.spec.sweep import sweep_class
from ditlab.spec.values import value_at
from ditlab.spec.yaml_text import dump_yaml
from ditlab_models.contract import Spec

FIRST = (
    "seed",
    "batch.size",
    "checkpoint.every",
    "evaluation.every",
    "resources.workers",
    "resources.gpus_per_worker",
)
"""Fields that one would change first, written out where a spec leaves them at their defaults,
too.
"""


@click.command()
@click.argument("name", required=False)
@click.option(
    "--like", metavar="EXPERIMENT", help="Experiment or sweep to begin with, such as digits/dit."
)
@click.option(
    "--list", "is_list", is_flag=True, help="List the experiments and sweeps that come with DiTLab."
)
@json_option
def new(name: str | None, like: str | None, is_list: bool, as_json: bool) -> None:
    """Write NAME.yaml, a spec whose comments explain its fields; without NAME, list what it can
    begin with.

    A file that exists is never overwritten.
    """
    if name is None or is_list:
        if like:
            raise click.UsageError(
                f"--like {like} is what NAME begins with; give NAME, without --list."
            )
        found = {each: describe(path) for each, path in shipped().items()}
        output.console(as_json).print(
            terminal_table({"experiment": "id", "what it is": "text"}, found.items())
        )
        output.emit({"experiments": found}, as_json)
        output.hint(as_json, "new", "NAME", "--like", "digits/dit")
        return
    if like is None:
        raise click.UsageError(
            f"NAME={name} has nothing to begin with; give --like digits/dit, or another of --list."
        )
    path = write_commented(name, like)
    output.emit({"files": [str(path)]}, as_json, [path])
    output.hint(as_json, "tune" if is_sweep(path) else "train", path, "--quick")


def shipped() -> dict[str, Path]:
    """YAML files of experiments and sweeps by name, such as `digits/dit`: the wheel's, or else the
    checkout's.
    """
    package = Path(ditlab.__file__).resolve().parent
    folders = [
        folder for folder in (package, package.parents[1]) if (folder / "experiments").is_dir()
    ]
    root = folders[0] / "experiments"
    return {
        str(path.relative_to(root).with_suffix("")): path
        for path in sorted(root.glob("*/*.yaml"))
        if not find_file_kind(path)
    }


def describe(path: Path) -> str:
    """Return the first sentence of the comment that a shipped file begins with."""
    lines = takewhile(
        lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines()
    )
    return re.split(r"(?<=\.)\s|:\s\s", " ".join(line[2:] for line in lines))[0]


def write_commented(target: str, like: str) -> Path:
    """Write `target`.yaml, a spec with the content of the shipped one named `like`, and return its
    path.

    Raises UserError for an unknown `like`, a name that no run can have, and a file that exists or
    cannot be written.
    """
    known = shipped()
    path = Path(re.sub(r"\.ya?ml$", "", target) + ".yaml")
    if like not in known:
        raise UserError(
            f"--like {like} is none of the experiments that come with DiTLab; "
            f"{nearest(like, list(known))}"
        )
    try:
        mapping = {**read_with_parents(known[like]), "name": check_name(path.stem)}
        text = "".join(
            f"{line}\n" for line in _commented(mapping, path, f"{like}: {describe(known[like])}")
        )
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(
            f"{path} exists, and is left as it is; give another NAME, or move it away."
        ) from None
    except OSError as error:
        raise cannot_write(path, error, "give another NAME") from None
    except ValueError as error:
        raise UserError(str(error)) from None
    return path


def _commented(mapping: dict[str, Any], path: Path, about: str) -> Iterator[str]:
    """Lines of a spec, each field below its meaning."""
    cls: type[Spec] = sweep_class()
    base = mapping.get("base")
    if isinstance(base, str):
        mapping["base"] = read_with_parents(Path(base))
    if not is_sweep(mapping):
        cls = class_for(mapping)
        whole = build_experiment(mapping, str(path)).to_dict()
        for field in FIRST:
            mapping = merge(nested(field.split("."), value_at(whole, field.split("."))), mapping)
    yield from _comment(f"Made by `ditlab new` from {about}")
    yield from _comment(
        f"`ditlab show {path}` prints every field; those that are left out have defaults."
    )
    yield from _fields(mapping, cls, is_top=True)


def _fields(mapping: Mapping[str, Any], cls: type[Spec], is_top: bool = False) -> Iterator[str]:
    for key, field in cls.model_fields.items():
        if key not in mapping:
            continue
        value = mapping[key]
        if is_top:
            yield ""
        yield from _comment(field.description or "")
        below = chosen(field.annotation, value, field.default)
        if key == "base":
            below = class_for(value)
        kind = values_of(field.annotation)
        if value and isinstance(value, Mapping) and below:
            yield from _nested(key, _fields(value, below))
        elif options(kind) and isinstance(value, Mapping):
            parts = (
                _nested(name, _fields(part, chosen(kind, part) or Spec))
                for name, part in value.items()
            )
            yield from _nested(key, chain.from_iterable(parts))
        else:
            yield from dump_yaml({key: value}).splitlines()


def _nested(key: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"{key}:"
    yield from (indent(line, "  ") for line in lines)


def _comment(text: str) -> list[str]:
    return wrap(
        " ".join(text.split()),
        100,
        initial_indent="# ",
        subsequent_indent="# ",
        break_on_hyphens=False,
    )
