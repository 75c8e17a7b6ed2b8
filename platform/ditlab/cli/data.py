"""`ditlab data`: real data into Arrow stores, and what a store holds."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli.common import emit, json_option, say, writing

if TYPE_CHECKING:
    from ditlab.data.store import Store


@click.group()
def data() -> None:
    """Import data into Arrow stores, and look into stores."""


@data.command("import")
@click.argument("kind")
@click.option(
    "--source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with the original files; without it they are downloaded where the kind can be.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for the stores [DITLAB_HOME/stores]."
)
@click.option("--checksum/--no-checksum", default=True, help="Refuse files whose MD5 is not the published one.")
@json_option
def import_(kind: str, source: Path | None, out: Path | None, checksum: bool, as_json: bool) -> None:
    """Write the Arrow stores of a KIND of data: digits, mnist.

    mnist: from the four idx files (.gz or not) in --source, either split alone too, or by download. Data sets that
    share MNIST's format, such as Fashion-MNIST, need --no-checksum.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from ditlab.data.importing import ImportRequest, run_import
    from ditlab.home import Home

    home = Home.from_environment().ensure()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, Any] = {}

    def progress(what: str, done: int, total: int | None) -> None:
        if not tasks:
            bars.start()  # here, so that an import without downloads draws nothing
        if what not in tasks:
            tasks[what] = bars.add_task(what)
        bars.update(tasks[what], completed=done, total=total)

    try:
        imported = run_import(kind, ImportRequest(out or home.stores, home.caches, source, checksum, progress))
    finally:
        bars.stop()
    stores = []
    for one in imported:
        store = one.store
        again = "already there, unchanged" if one.outcome == "unchanged" else one.outcome
        say(f"{store.name}: {len(store):,} rows in {store.path} ({again}; fingerprint {store.fingerprint[:12]})")
        if store.manifest.source.note:
            say(f"  note: {store.manifest.source.note}")
        facts = {"name": store.name, "path": str(store.path), "rows": len(store), "fingerprint": store.fingerprint}
        stores.append({**facts, "outcome": one.outcome, "note": store.manifest.source.note})
    emit({"kind": kind, "stores": stores}, as_json)


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
