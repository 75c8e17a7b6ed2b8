"""`ditlab data`: real data into Arrow stores, what a store holds, and stores to where a cluster fetches them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli.common import emit, json_option, say, writing
from ditlab.cli.importing import import_
from ditlab.cli.uploading import upload

if TYPE_CHECKING:
    from ditlab.data.stores.bucketed_store import AnyStore


@click.group()
def data() -> None:
    """Import data into Arrow stores, look into stores, upload them."""


data.add_command(import_)
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

    PATH: a store's folder, the name of one under DITLAB_HOME/stores, or a URI, of which the manifest alone is read.
    """
    from rich.console import Console

    from ditlab.analysis.store_tables import store_tables, text_table
    from ditlab.data.preview import sample_grid, sample_text
    from ditlab.data.remote.manifests import describe_place
    from ditlab.data.splits import open_place
    from ditlab.errors import UserError
    from ditlab.home import Home
    from ditlab.spec.uris import is_uri

    home, remote = Home.from_environment(), is_uri(path)
    if remote and (out or num):
        raise UserError(f"PATH={path}: --out and --num need the store's rows; leave them out, or name a local store.")
    store = describe_place("PATH", path) if remote else open_place("PATH", path, home)
    place = path if remote else str(store.path)
    console = Console(stderr=as_json)
    for table in store_tables(store, place):
        console.print(table)
    if remote:
        emit({**_summary(store, place, None), "texts": {}}, as_json)
        return
    texts = sample_text(store, num or 4)
    if texts:
        console.print(text_table(texts))
    figure = sample_grid(store, num or 32)
    picture = None
    if figure is None:
        if not texts:
            say(f"{store.name} holds no column of images: no picture.")
    else:
        from ditlab.reports.rendering.render import save

        out = out or home.caches / "inspect" / f"{store.name}.png"
        with writing(out):
            picture = save(figure, out)
        say(f"picture: {picture}")
    emit({**_summary(store, place, picture), "texts": texts}, as_json)


def _summary(store: "AnyStore", place: str, picture: Path | None) -> dict[str, Any]:
    shown = {"name", "description", "source", "buckets", "facts", "notes", "files"}
    facts = store.manifest.model_dump(mode="json", include=shown)
    facts |= {
        "rows": len(store),
        "columns": {name: column.model_dump(mode="json") for name, column in store.columns.items()},
        "text": store.manifest.text and store.manifest.text.model_dump(mode="json"),
        "attachments": dict(store.manifest.attachments),
        "fingerprint": store.fingerprint,
        "shards": sum(len(part.manifest.shards) for part in store.parts),
    }
    return {"path": place, **facts, "picture": None if picture is None else str(picture)}
