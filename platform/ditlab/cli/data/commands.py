"""`ditlab data`: imports, with a command for each importer; the list and upload of stores."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import click

from ditlab.cli import options, output
from ditlab.cli.main import OpenGroup, with_examples
from ditlab.errors import UserError, shortened
from ditlab.home import Home
from ditlab.parts import importers, load_part
from ditlab.spec.uris import has_one_slash
from ditlab.spec.values import format_bytes

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from ditlab.data.stores.bucketed_store import AnyStore
    from ditlab.data.stores.writing import WrittenStore
    from ditlab_models.contract import Spec


class Importers(click.Group):
    """A group with a command for each importer of `ditlab.parts`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the kinds of data."""
        return list(importers())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Make the command of a kind. Raises UserError for an unknown one."""
        from ditlab.data.importing import find_importer

        importer = find_importer(cmd_name)
        fields = load_part("importer", cmd_name, importer.options)

        def callback(
            out: Path | None,
            replace: bool,
            as_json: bool,
            address: str | None = None,
            dry_run: bool = False,
            **given: Any,
        ) -> None:
            run_import(cmd_name, fields, given, out, replace, address, as_json, dry_run)

        command = click.command(cmd_name, help=fields.__doc__)(options.as_json(callback))
        flags = [field_option(name, field) for name, field in fields.model_fields.items()]
        text = "Folder for the stores [default: DITLAB_HOME/stores]."
        flags.append(
            click.Option(
                ["--out"], type=options.NewPath(path_type=Path, file_okay=False), help=text
            )
        )
        text = (
            "Let the name mean the new store although runs trained on another of that name, "
            "which stays for them."
        )
        flags.append(click.Option(["--replace"], is_flag=True, help=text))
        if importer.has_dry_run:
            text = (
                "Say what about the first 1,000 images, members, rows or documents give, and "
                "keep nothing."
            )
            flags.append(click.Option(["--dry-run"], is_flag=True, help=text))
        if importer.by_blocks:
            text = (
                "Ray cluster whose cores share the work; --out must be a folder that its nodes "
                "share [default: RAY_ADDRESS, else this machine]."
            )
            flags.append(click.Option(["--address"], help=text))
        command.params = [*flags, *command.params]
        return with_examples(command, f"data import {cmd_name}")


@click.group("import", cls=Importers)
def import_() -> None:
    """Write the Arrow stores of a kind of data."""


def field_option(name: str, field: FieldInfo) -> click.Option:
    """Make the flag of a field: `--max-span`, or `--checksum/--no-checksum` for a bool. Its
    docstring is the help.
    """
    plain: Any = field.annotation
    if get_origin(plain) in (Union, types.UnionType):
        plain = next(each for each in get_args(plain) if each is not type(None))
    bounds = [*field.metadata]
    for part in get_args(plain)[1:]:
        bounds += getattr(part, "metadata", ())
    if hasattr(plain, "__metadata__"):  # Annotated below a union
        plain = get_args(plain)[0]
    kind: click.ParamType[Any] | None
    if get_origin(plain) is Literal:
        kind = click.Choice(get_args(plain))
    elif plain is int:
        kind = click.IntRange(next((bound.ge for bound in bounds if hasattr(bound, "ge")), None))
    else:
        folder = click.Path(path_type=Path, exists=True, file_okay=False)
        kind = {bool: None, float: click.FLOAT, str: click.STRING, Path: folder}[plain]
    flag = name.replace("_", "-")
    if field.is_required():
        default = {}
    else:
        default = {"default": field.default, "show_default": field.default is not None}
    if plain is bool:
        flag = f"{flag}/--no-{flag}"
    names = [f"--{flag}", name]
    return click.Option(
        names, type=kind, required=field.is_required(), help=field.description, **default
    )


def run_import(
    kind: str,
    fields: type[Spec],
    given: dict[str, Any],
    out: Path | None,
    replace: bool,
    address: str | None,
    as_json: bool,
    dry_run: bool = False,
) -> None:
    """Import data of a kind, or its beginning. Raises UserError for values that click takes and its
    fields do not.
    """
    from pydantic import ValidationError

    from ditlab.api.imports import import_beginning, import_data
    from ditlab.cli.progress import ProgressBars
    from ditlab.spec.overrides import explain

    given = {name: value for name, value in given.items() if output.is_typed(name)}
    try:
        chosen = fields(**given)
    except ValidationError as error:
        flags = {name: f"--{name.replace('_', '-')}" for name in given}
        lines = (line.partition("=") for line in explain(error, fields, given))
        raise UserError(
            "\n".join(f"{flags.get(name, name)}{equals}{rest}" for name, equals, rest in lines)
        ) from error
    check_out(out)
    if dry_run:
        with TemporaryDirectory(prefix="ditlab-") as folder:
            with ProgressBars(f"importing {kind}") as progress:
                imported = import_beginning(kind, chosen, Path(folder), progress)
            show_stores(imported, {"kind": kind, "dry_run": True}, as_json)
        output.hint(
            as_json, f"data import {kind}", *output.repeated_arguments("dry_run", "as_json")
        )
        return
    with ProgressBars(f"importing {kind}") as progress:
        imported = import_data(kind, chosen, out, address, progress, output.say, replace)
    show_stores(imported, {"kind": kind}, as_json)
    if imported:
        store = imported[0].store
        place = store.name if out is None else output.relative(store.path)
        output.hint(as_json, "data inspect", place)


def check_out(out: Path | None) -> None:
    """Raise UserError for a URI, of which a path has lost a slash."""
    if out is not None and has_one_slash(str(out)):
        raise UserError(
            f"--out={out} is a URI, and shards are written to a folder (with --address one "
            "that all nodes share); name a folder, and send the store there with `ditlab data "
            "upload`."
        )


def show_stores(written: Sequence[WrittenStore], facts: Mapping[str, Any], as_json: bool) -> None:
    """Print what was written, receipts and their warnings last; and for `--json` the facts and the
    stores.
    """
    stores: list[dict[str, Any]] = []
    warnings: list[str] = []
    for one in written:
        store = one.store
        described = {
            "name": store.name,
            "path": str(store.path),
            "rows": len(store),
            "fingerprint": store.fingerprint,
            "outcome": one.outcome,
            "note": store.manifest.source.note,
        }
        if "dry_run" in facts:
            described |= say_beginning(store)
        else:
            outcome = "already there, unchanged" if one.outcome == "unchanged" else one.outcome
            output.say(
                f"{store.name}: {len(store):,} rows in {store.path} ({outcome}; fingerprint "
                f"{store.fingerprint[:12]})"
            )
        if store.manifest.source.note:
            output.say(f"  note: {store.manifest.source.note}")
        if store.manifest.text:
            from ditlab.data.text.tokenizer import text_line  # imports torch

            output.say(f"  text: {text_line(store)}")
        receipt = store.manifest.receipt
        if receipt:
            for line in receipt.lines():
                output.say(f"  {line}")
            warnings += receipt.warnings
        described["text"] = store.manifest.text and store.manifest.text.model_dump(mode="json")
        described["receipt"] = receipt and receipt.model_dump(mode="json")
        stores.append({**described, "left_out": receipt.counts if receipt else {}})
    for warning in warnings:
        output.say(f"warning: {warning}")
    output.emit({**facts, "stores": stores}, as_json)


def say_beginning(store: AnyStore) -> dict[str, Any]:
    """Print the rows, sizes and classes of the beginning of a source; return them for `--json`: no
    store is kept.
    """
    from ditlab.data.stores.bucketed_store import BucketedStore

    output.say(
        f"{store.name}: {len(store):,} rows of the beginning of the source alone; nothing was "
        "written"
    )
    sizes: dict[str, int] = {}
    if isinstance(store, BucketedStore):
        sizes = {size: len(part) for size, part in store.by_size.items()}
        output.say(f"  sizes: {', '.join(f'{size} ({rows:,})' for size, rows in sizes.items())}")
    classes: list[str] = []
    if "label" in store.columns:
        classes = list(store.columns["label"].names)
        output.say(f"  {len(classes):,} classes: {shortened(classes, 10)}")
    return {"path": "", "outcome": "dry run", "sizes": sizes, "classes": classes}


@click.command()
@click.argument("store")
@click.argument("uri")
@options.as_json
def upload(store: str, uri: str, as_json: bool) -> None:
    """Upload a store to a URI, for data: {kind: arrow, path: URI}.

    STORE: a store's folder, or the name of one under DITLAB_HOME/stores. URI: the store's folder
    there, such as s3://bucket/stores/NAME, in the form that checkpoint.storage takes. Another store
    is never overwritten.
    """
    from ditlab.cli.progress import ProgressBars
    from ditlab.data.named_stores import open_named_store
    from ditlab.data.stores.uploading import upload_store

    opened = open_named_store("STORE", store, Home.from_environment())
    with ProgressBars(f"uploading {opened.name}"):
        opened.verify()
        done = upload_store(opened, uri)
    outcome = "is there already, unchanged" if done.outcome == "unchanged" else "uploaded"
    output.say(
        f"{opened.name}: {len(opened):,} rows, {format_bytes(done.size)} (fingerprint "
        f"{opened.fingerprint[:12]}) {outcome}: {uri}"
    )
    facts = {"name": opened.name, "rows": len(opened), "fingerprint": opened.fingerprint}
    output.emit(
        {**facts, "uri": uri, "outcome": done.outcome, "files_sent": done.sent, "bytes": done.size},
        as_json,
    )
    output.hint_text(as_json, f"in a spec, data: {{kind: arrow, path: {uri}}}")


@click.group(cls=OpenGroup)
def data() -> None:
    """Import data into Arrow stores, add encoders' features, inspect stores, upload them."""


data.add_command(import_)
data.add_command(upload)


@data.command("list")
@options.as_json
def list_(as_json: bool) -> None:
    """List the stores of DITLAB_HOME: rows, classes, size, and the runs that were trained on
    each.
    """
    from ditlab.api.imports import list_stores
    from ditlab.reports.formatting import terminal_table

    found = list_stores()
    heads = {
        "store": "text",
        "name": "text",
        "rows": "number",
        "classes": "number",
        "size": "number",
        "runs": "text",
    }
    rows = [
        (
            each.folder,
            each.name,
            f"{each.rows:,}",
            str(each.classes or ""),
            format_bytes(each.bytes),
            each.problem or ", ".join(each.runs),
        )
        for each in found
    ]
    output.console(as_json).print(
        terminal_table(heads, rows) if rows else "no stores; `ditlab data import` writes some"
    )
    output.emit({"stores": [each.to_dict() for each in found]}, as_json)
    whole = [each.folder for each in found if not each.problem]
    if whole:
        output.hint(as_json, "data inspect", whole[0])
    else:
        output.hint(as_json, "data import", "--help")
