"""`ditlab data`: import of data into Arrow stores, features for them, inspection of stores, upload of stores.

There is a command for each importer, its flags made from the fields of its options.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import click

from ditlab.cli.examples import with_examples
from ditlab.cli.options import console, emit, hint, hint_text, json_option, relative, say
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.spec.values import format_bytes

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from denoisers.contract import Spec
    from ditlab.data.stores.writing import WrittenStore


class Importers(click.Group):
    """A group with a command for each importer of `ditlab.data.importing`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the kinds of data."""
        from ditlab.data.importing import IMPORTERS

        return list(IMPORTERS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Make the command of a kind. Raises UserError for an unknown one."""
        from ditlab.data.importing import find_importer

        importer = find_importer(cmd_name)
        command = _command(cmd_name, importer.options, importer.by_blocks)
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
    address = click.Option(
        ["--address"],
        help="Ray cluster whose cores share the work; --out must be a folder that its nodes share "
        "[default: RAY_ADDRESS, else this machine].",
    )
    shared = [out, address] if by_blocks else [out]
    command.params = [*(_option(name, field) for name, field in options.model_fields.items()), *shared, *command.params]
    return command


def check_out(out: Path | None) -> None:
    """Raise UserError for a URI, of which a path has lost a slash."""
    if out is not None and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(out)):
        raise UserError(
            f"--out={out} is a URI, and shards are written to a folder (with --address one that all nodes share); name "
            "a folder, and send the store there with `ditlab data upload`."
        )


def _checked(options: type[Spec], given: dict[str, Any]) -> Spec:
    """Validate a command's values. Raises UserError for values that click takes and the options do not."""
    from pydantic import ValidationError

    from ditlab.spec.overrides import explain

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
    from ditlab.api.imports import import_data
    from ditlab.cli.progress import ProgressBars

    check_out(out)
    with ProgressBars(f"importing {kind}") as progress:
        imported = import_data(kind, options, out, address, progress, say)
    show_stores(imported, {"kind": kind}, as_json)
    if imported:
        hint(as_json, "data inspect", imported[0].store.name if out is None else relative(imported[0].store.path))


def show_stores(written: Sequence[WrittenStore], facts: Mapping[str, Any], as_json: bool) -> None:
    """Print what was written, what was skipped and why; and for `--json` the facts and the stores."""
    from ditlab.analysis.store_tables import left_out_records, left_out_table, text_line

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
        described |= {"outcome": one.outcome, "note": store.manifest.source.note}
        described["text"] = store.manifest.text and store.manifest.text.model_dump(mode="json")
        stores.append({**described, "left_out": {each.reason: each.number for each in left_out}})
    emit({**facts, "stores": stores}, as_json)


@click.command()
@click.argument("store")
@click.option("--encode-text", help="Frozen encoder of captions, a folder or a name on the Hugging Face hub (Qwen3).")
@click.option("--encode-images", help="Frozen encoder of images (DINOv3).")
@click.option(
    "--tokens", type=click.IntRange(1),
    help="Tokens of every row's text; longer captions are cut [default: the longest].",
)  # fmt: skip
@click.option("--patch", type=click.IntRange(1), help="Side of the image encoder's patches [default: the encoder's].")
@click.option("--name", help="Name of the new store and its folder [default: STORE-encoded].")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for it [default: DITLAB_HOME/stores]."
)
@click.option(
    "--address",
    help="Ray cluster whose GPUs, or else cores, share the work; STORE and --out must be folders that its nodes share "
    "[default: RAY_ADDRESS, else this machine].",
)
@json_option
def encode(
    store: str, encode_text: str | None, encode_images: str | None, tokens: int | None, patch: int | None,
    name: str | None, out: Path | None, address: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Add frozen encoders' features to a store, so that training needs no encoder.

    STORE: a store's folder, or the name of one under DITLAB_HOME/stores. A new store is written beside it, with all
    columns of its rows and those of the encoders; the old one stays. It is computed on a GPU where there is one. A
    command that was killed goes on from its whole blocks when it is given again.
    """
    from ditlab.api.imports import encode_store
    from ditlab.cli.progress import ProgressBars

    check_out(out)
    with ProgressBars("opening the store") as progress:
        written = encode_store(
            store, encode_text, encode_images, tokens=tokens, patch=patch, name=name, out=out, address=address,
            progress=progress, warn=say,
        )  # fmt: skip
    show_stores([written], {}, as_json)
    hint(as_json, "data inspect", written.store.name if out is None else relative(written.store.path))


@click.command()
@click.argument("store")
@click.argument("uri")
@json_option
def upload(store: str, uri: str, as_json: bool) -> None:
    """Upload a store to a URI, for data: {kind: arrow, path: URI}.

    STORE: a store's folder, or the name of one under DITLAB_HOME/stores. URI: the store's folder there, such as
    s3://bucket/stores/NAME, in the form that checkpoint.storage takes. Another store is never overwritten.
    """
    from ditlab.cli.progress import ProgressBars
    from ditlab.data.named_stores import open_named_store
    from ditlab.data.remote.uploading import upload_store

    opened = open_named_store("STORE", store, Home.from_environment())
    with ProgressBars(f"uploading {opened.name}"):
        opened.verify()
        done = upload_store(opened, uri)
    what = f"{opened.name}: {len(opened):,} rows, {format_bytes(done.size)} (fingerprint {opened.fingerprint[:12]})"
    say(f"{what} {'is there already, unchanged' if done.outcome == 'unchanged' else 'uploaded'}: {uri}")
    facts = {"name": opened.name, "rows": len(opened), "fingerprint": opened.fingerprint}
    emit({**facts, "uri": uri, "outcome": done.outcome, "files_sent": done.sent, "bytes": done.size}, as_json)
    hint_text(as_json, f"in a spec, data: {{kind: arrow, path: {uri}}}")


@click.group()
def data() -> None:
    """Import data into Arrow stores, add encoders' features, inspect stores, upload them."""


data.add_command(import_)
data.add_command(encode)
data.add_command(upload)


@data.command()
@click.argument("path")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="The picture [DITLAB_HOME/caches/inspect/NAME.png]."
)
@click.option("--num", type=click.IntRange(1), help="Samples shown [default: 32 in a picture, 4 as text].")
@json_option
def inspect(path: str, out: Path | None, num: int | None, as_json: bool) -> None:
    """Show what a store holds, and draw a few of its samples or read them as text.

    PATH: a store's folder, the name of one under DITLAB_HOME/stores, or a URI, of which the manifest alone is read. Or
    an experiment's YAML, whose data are shown: the parts of a mixture with their shares, samples and columns.
    """
    if path.endswith((".yaml", ".yml")):
        _inspect_experiment(Path(path), as_json)
        return
    from ditlab.analysis.store_tables import store_facts, store_tables, text_table
    from ditlab.data.named_stores import open_named_store
    from ditlab.data.preview import sample_grid, sample_text
    from ditlab.data.remote.copies import describe_store
    from ditlab.spec.uris import is_uri

    home, remote = Home.from_environment(), is_uri(path)
    if remote and (out or num):
        raise UserError(f"PATH={path}: --out and --num need the store's rows; leave them out, or name a local store.")
    store = describe_store("PATH", path) if remote else open_named_store("PATH", path, home)
    if not remote:
        store.verify()
    place = path if remote else str(store.path)
    terminal = console(as_json)
    for table in store_tables(store, place):
        terminal.print(table)
    if remote:
        emit({**store_facts(store, place, None), "texts": {}}, as_json)
        hint_text(as_json, f"in a spec, data: {{kind: arrow, path: {place}}}")
        return
    texts = sample_text(store, num or 4)
    if texts:
        terminal.print(text_table(texts))
    figure = sample_grid(store, num or 32)
    picture = None
    if figure is None:
        if not texts:
            say(f"{store.name} holds no column of images: no picture.")
    else:
        from ditlab.analysis.plot import Plot

        out = out or home.caches / "inspect" / f"{store.name}.png"
        picture = Plot(figure).save(out)
        say(f"picture: {picture}")
    emit({**store_facts(store, place, picture), "texts": texts}, as_json)
    hint_text(as_json, f"in a spec, data: {{kind: arrow, path: {place}}}")


def _inspect_experiment(path: Path, as_json: bool) -> None:
    from ditlab.analysis.store_tables import data_facts, data_tables
    from ditlab.data.splits import open_data
    from ditlab.spec.files import load_experiment

    experiment = load_experiment(path)
    data = open_data(experiment.data, Home.from_environment())
    terminal = console(as_json)
    for table in data_tables(experiment, data):
        terminal.print(table)
    if data.note:
        say(data.note)
    emit(data_facts(experiment, data), as_json)
    hint(as_json, "train", path, "--dry-run")
