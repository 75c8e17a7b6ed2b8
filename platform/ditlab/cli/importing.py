"""`ditlab data import`: a command for each importer, its flags made from the fields of its options."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import click

from ditlab.cli.common import console, emit, json_option, say
from ditlab.cli.examples import with_examples
from ditlab.cli.hints import hint, relative

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from denoisers.contract import Spec
    from ditlab.data.stores.writer import WrittenStore


class Importers(click.Group):
    """A group with a command for each module of `ditlab.data.importers`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the kinds of data."""
        from ditlab.data.importing import importer_names

        return importer_names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Make the command of a kind. Raises UserError for an unknown one."""
        from ditlab.data.importing import options_class, runs_by_blocks

        command = _command(cmd_name, options_class(cmd_name), runs_by_blocks(cmd_name))
        return with_examples(command, f"data import {cmd_name}")


@click.group("import", cls=Importers)
def import_() -> None:
    """Write the Arrow stores of a kind of data."""


def _command(kind: str, options: type[Spec], by_blocks: bool) -> click.Command:
    def callback(out: Path | None, as_json: bool, address: str | None = None, **given: Any) -> None:
        _run(kind, _checked(options, given), out, address, as_json)

    command = click.command(kind, help=options.__doc__)(json_option(callback))
    out = click.Option(
        ["--out"],
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder for the stores [default: DITLAB_HOME/stores].",
    )
    shared = [out, _address()] if by_blocks else [out]
    command.params = [*(_option(name, field) for name, field in options.model_fields.items()), *shared, *command.params]
    return command


def _address() -> click.Option:
    return click.Option(
        ["--address"],
        help="Ray cluster whose cores share the work; --out must be a folder that its nodes share "
        "[default: RAY_ADDRESS, else this machine].",
    )


def check_out(out: Path | None) -> None:
    """Raise UserError for a URI, of which a path has lost a slash."""
    from ditlab.errors import UserError

    if out is not None and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(out)):
        raise UserError(
            f"--out={out} is a URI, and shards are written to a folder (with --address one that all nodes share); name "
            "a folder, and send the store there with `ditlab data upload`."
        )


def _checked(options: type[Spec], given: dict[str, Any]) -> Spec:
    """Validate a command's values. Raises UserError for values that click takes and the options do not."""
    from pydantic import ValidationError

    from ditlab.errors import UserError
    from ditlab.spec.reading.messages import explain

    try:
        return options(**given)
    except ValidationError as error:
        flags = {name: f"--{name.replace('_', '-')}" for name in given}
        lines = (line.partition("=") for line in explain(error, options, given))
        raise UserError("\n".join(f"{flags.get(name, name)}{equals}{rest}" for name, equals, rest in lines)) from error


def _option(name: str, field: FieldInfo) -> click.Option:
    """Make the flag of a field: `--max-span`, or `--checksum/--no-checksum` for a bool. Its docstring is the help."""
    alternatives = get_args(field.annotation) if get_origin(field.annotation) in (Union, types.UnionType) else ()
    (plain, *_) = [each for each in alternatives if each is not type(None)] or [field.annotation]
    bounds = [*field.metadata, *(each for part in get_args(plain)[1:] for each in getattr(part, "metadata", ()))]
    if hasattr(plain, "__metadata__"):  # Annotated below a union
        plain = get_args(plain)[0]
    flag = name.replace("_", "-")
    default = {} if field.is_required() else {"default": field.default}
    return click.Option(
        [f"--{flag}/--no-{flag}" if plain is bool else f"--{flag}", name],
        type=_type(plain, next((bound.ge for bound in bounds if hasattr(bound, "ge")), None)),
        required=field.is_required(),
        show_default=default.get("default") is not None,
        help=field.description,
        **default,
    )


def _type(annotation: Any, at_least: int | None) -> click.ParamType[Any] | None:
    if get_origin(annotation) is Literal:
        return click.Choice(get_args(annotation))
    if annotation is int:
        return click.IntRange(at_least)
    if annotation is Path:
        return click.Path(path_type=Path, exists=True, file_okay=False)
    return {bool: None, float: click.FLOAT, str: click.STRING}[annotation]


def _run(kind: str, options: Spec, out: Path | None, address: str | None, as_json: bool) -> None:
    from ditlab.cli.progress_bars import ProgressBars
    from ditlab.interface.imports import import_data

    check_out(out)
    with ProgressBars(f"importing {kind}") as progress:
        imported = import_data(kind, options, out, address, progress, say)
    show_stores(imported, {"kind": kind}, as_json)
    if imported:
        hint(as_json, "data inspect", imported[0].store.name if out is None else relative(imported[0].store.path))


def show_stores(written: Sequence[WrittenStore], facts: Mapping[str, Any], as_json: bool) -> None:
    """Print what was written, what was left out and why; and for `--json` the facts and the stores."""
    from ditlab.analysis.left_out_table import left_out_records, left_out_table
    from ditlab.analysis.store_tables import text_line

    stores = []
    for one in written:
        store = one.store
        again = "already there, unchanged" if one.outcome == "unchanged" else one.outcome
        say(f"{store.name}: {len(store):,} rows in {store.path} ({again}; fingerprint {store.fingerprint[:12]})")
        if store.manifest.source.note:
            say(f"  note: {store.manifest.source.note}")
        if store.manifest.text:
            say(f"  text: {text_line(store)}")
        left_out = left_out_records(one)
        if left_out:
            console(True).print(left_out_table(left_out))
            for file in getattr(store.manifest, "files", {}).values():
                say(f"  listed in {store.path / file}")
        described = {"name": store.name, "path": str(store.path), "rows": len(store), "fingerprint": store.fingerprint}
        text = store.manifest.text and store.manifest.text.model_dump(mode="json")
        note = store.manifest.source.note
        stores.append(
            {
                **described,
                "outcome": one.outcome,
                "note": note,
                "text": text,
                "left_out": {each.reason: each.number for each in left_out},
            }
        )
    emit({**facts, "stores": stores}, as_json)
