"""`ditlab data encode`: features of frozen encoders for a store."""

from pathlib import Path

import click

from ditlab.cli.common import json_option
from ditlab.cli.hints import hint, relative


@click.command()
@click.argument("store")
@click.option("--encode-text", help="Frozen encoder of captions, a folder or a name on the Hugging Face hub (Qwen3).")
@click.option("--encode-images", help="Frozen encoder of images (DINOv3).")
@click.option(
    "--tokens",
    type=click.IntRange(1),
    help="Tokens of every row's text; longer captions are cut [default: the longest].",
)
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
    store: str,
    encode_text: str | None,
    encode_images: str | None,
    tokens: int | None,
    patch: int | None,
    name: str | None,
    out: Path | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Add frozen encoders' features to a store, so that training needs no encoder.

    STORE: a store's folder, or the name of one under DITLAB_HOME/stores. A new store is written beside it, with all
    columns of its rows and those of the encoders; the old one stays. It is computed on a GPU where there is one. A
    command that was killed goes on from its whole blocks when it is given again.
    """
    from ditlab.cli.common import say
    from ditlab.cli.importing import check_out, show_stores
    from ditlab.cli.progress_bars import ProgressBars
    from ditlab.interface.imports import encode_store

    check_out(out)
    with ProgressBars("opening the store") as progress:
        written = encode_store(
            store, encode_text, encode_images, tokens=tokens, patch=patch, name=name, out=out, address=address,
            progress=progress, warn=say,
        )  # fmt: skip
    show_stores([written], {}, as_json)
    hint(as_json, "data inspect", written.store.name if out is None else relative(written.store.path))
