"""`ditlab data`: import of data into Arrow stores, features for them, inspection of stores, upload of stores."""

from pathlib import Path

import click

from ditlab.cli.common import console, emit, json_option, say
from ditlab.cli.encoding import encode
from ditlab.cli.hints import hint, hint_text
from ditlab.cli.importing import import_
from ditlab.cli.uploading import upload


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
    from ditlab.errors import UserError
    from ditlab.home import Home
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
    from ditlab.analysis.data_tables import data_facts, data_tables
    from ditlab.data.splits import open_data
    from ditlab.home import Home
    from ditlab.spec.loading import load_experiment

    experiment = load_experiment(path)
    data = open_data(experiment.data, Home.from_environment())
    terminal = console(as_json)
    for table in data_tables(experiment, data):
        terminal.print(table)
    if data.note:
        say(data.note)
    emit(data_facts(experiment, data), as_json)
    hint(as_json, "train", path, "--dry-run")
