"""`ditlab data`: real data into Arrow stores, and what a store holds."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli.common import emit, json_option, say, writing
from ditlab.cli.importing import import_

if TYPE_CHECKING:
    from ditlab.data.store import Store


@click.group()
def data() -> None:
    """Import data into Arrow stores, and look into stores."""


data.add_command(import_)


@data.command()
@click.argument("path")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="The picture [DITLAB_HOME/caches/inspect/NAME.png]."
)
@click.option("--num", type=click.IntRange(1), default=32, show_default=True, help="Samples in the picture.")
@json_option
def inspect(path: str, out: Path | None, num: int, as_json: bool) -> None:
    """Show what a store holds, and draw a few of its samples.

    PATH: a store's folder, or the name of a store under DITLAB_HOME/stores.
    """
    from rich.console import Console

    from ditlab.cli.data_tables import store_tables
    from ditlab.data.manifest import MANIFEST_NAME
    from ditlab.data.preview import sample_grid
    from ditlab.data.store import Store
    from ditlab.home import Home

    home = Home.from_environment()
    named = home.stores / path
    store = Store.open(named if (named / MANIFEST_NAME).exists() else Path(path))
    console = Console(stderr=as_json)
    for table in store_tables(store):
        console.print(table)
    figure = sample_grid(store, num)
    picture = None
    if figure is None:
        say(f"{store.name} holds no column of images: no picture.")
    else:
        from ditlab.reports.render import save

        out = out or home.caches / "inspect" / f"{store.name}.png"
        with writing(out):
            picture = save(figure, out)
        say(f"picture: {picture}")
    emit(_summary(store, picture), as_json)


def _summary(store: "Store", picture: Path | None) -> dict[str, Any]:
    facts = store.manifest.model_dump(mode="json", include={"name", "description", "rows", "columns", "source"})
    facts |= {"fingerprint": store.fingerprint, "shards": len(store.manifest.shards)}
    return {"path": str(store.path), **facts, "picture": None if picture is None else str(picture)}
