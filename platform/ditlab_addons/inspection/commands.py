"""`ditlab data inspect`: tables, rows as text and a picture of a store."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired

import click
from typing_extensions import TypedDict

from ditlab.cli import options, output
from ditlab.errors import UserError
from ditlab.home import Home

if TYPE_CHECKING:
    from ditlab.data.stores.bucketed_store import AnyStore


class StoreOutput(TypedDict):
    path: str
    name: str
    description: str
    source: dict[str, Any]
    receipt: dict[str, Any] | None
    rows: int
    columns: dict[str, dict[str, Any]]
    text: dict[str, Any] | None
    attachments: dict[str, Any]
    fingerprint: str
    shards: int
    picture: str | None
    texts: dict[str, Any]
    buckets: NotRequired[Any]


RESULTS = {"data inspect": StoreOutput}
"""Type of the object of each command."""


@click.command()
@click.argument("path")
@click.option(
    "--out",
    type=options.NewPath(path_type=Path, dir_okay=False),
    help="The picture [DITLAB_HOME/caches/inspect/NAME.png].",
)
@click.option(
    "--num", type=click.IntRange(1), help="Samples shown [default: 32 in a picture, 4 as text]."
)
@options.as_json
def inspect(path: str, out: Path | None, num: int | None, as_json: bool) -> None:
    """Show what a store holds, and draw a few of its samples or read them as text.

    PATH: a store's folder, the name of one under DITLAB_HOME/stores, or a URI, of which the
    manifest alone is read.
    """
    from ditlab.data.named_stores import open_named_store
    from ditlab.data.stores.copies import describe_store
    from ditlab.spec.uris import is_uri
    from ditlab_addons.inspection.contents import store_facts, store_tables

    home = Home.from_environment()
    remote = is_uri(path)
    if remote and (out or num):
        raise UserError(
            f"PATH={path}: --out and --num need the store's rows; leave them out, or name a "
            "local store."
        )
    if remote:
        place = path
        store = describe_store("PATH", path)
    else:
        store = open_named_store("PATH", path, home)
        store.verify()
        place = str(store.path)
    for table in store_tables(store, place):
        output.console(as_json).print(table)
    texts: dict[int, str] = {}
    picture = None
    if not remote:
        texts, picture = _show_samples(store, num, out, home, as_json)
    output.emit({**store_facts(store, place, picture), "texts": texts}, as_json)
    output.hint_text(as_json, f"in a spec, data: {{kind: arrow, path: {place}}}")


def _show_samples(
    store: "AnyStore", num: int | None, out: Path | None, home: Home, as_json: bool
) -> tuple[dict[int, str], Path | None]:
    """Print rows of a store as text, and draw images, where it has some; return the texts and the
    picture.
    """
    from ditlab.analysis.plot import Plot
    from ditlab_addons.inspection.contents import sample_grid, sample_text, text_table

    picture = None
    texts = sample_text(store, num or 4)
    if texts:
        output.console(as_json).print(text_table(texts))
    figure = sample_grid(store, num or 32)
    if figure:
        picture = Plot(figure).save(out or home.caches / "inspect" / f"{store.name}.png")
        output.say(f"picture: {picture}")
    elif not texts:
        output.say(f"{store.name} holds no column of images: no picture.")
    return texts, picture
