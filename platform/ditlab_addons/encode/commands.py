"""`ditlab data encode`: features of frozen encoders beside a store's columns."""

from __future__ import annotations

from pathlib import Path

import click
from typing_extensions import TypedDict

from ditlab.cli import options, output
from ditlab.cli.data.commands import check_out, show_stores
from ditlab.cli.data.results import WrittenStoreOutput


class EncodeOutput(TypedDict):
    """`ditlab data encode`."""

    stores: list[WrittenStoreOutput]


RESULTS = {"data encode": EncodeOutput}
"""Type of the object of each command."""


@click.command()
@click.argument("store")
@click.option(
    "--encode-text",
    help="Frozen encoder of captions, a folder or a name on the Hugging Face hub (Qwen3).",
)
@click.option("--encode-images", help="Frozen encoder of images (DINOv3).")
@click.option(
    "--autoencoder",
    help=(
        "AutoencoderKL as diffusers saves it, a folder or hf://OWNER/NAME@REVISION: latents of "
        "images, as a column."
    ),
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    help="Tokens of every row's text; longer captions are cut [default: the longest].",
)
@click.option(
    "--patch",
    type=click.IntRange(1),
    help="Side of the image encoder's patches [default: the encoder's].",
)
@click.option("--name", help="Name of the new store and its folder [default: STORE-encoded].")
@click.option(
    "--out",
    type=options.NewPath(path_type=Path, file_okay=False),
    help="Folder for it [default: DITLAB_HOME/stores].",
)
@click.option(
    "--address",
    help=(
        "Ray cluster whose GPUs, or else cores, share the work; STORE and --out must be "
        "folders that its nodes share [default: RAY_ADDRESS, else this machine]."
    ),
)
@click.option(
    "--replace",
    is_flag=True,
    help="Let the name mean the new store although runs trained on another.",
)
@options.as_json
def encode(
    store: str,
    encode_text: str | None,
    encode_images: str | None,
    autoencoder: str | None,
    tokens: int | None,
    patch: int | None,
    name: str | None,
    out: Path | None,
    address: str | None,
    replace: bool,
    as_json: bool,
) -> None:
    """Add frozen encoders' features to a store, so that training needs no encoder.

    STORE: a store's folder, or the name of one under DITLAB_HOME/stores. A new store is written
    beside it, with all columns of its rows and those of the encoders; the old one stays. It is
    computed on a GPU where there is one. A command that was killed goes on from its whole blocks
    when it is given again.
    """
    from ditlab.cli.progress import ProgressBars
    from ditlab_addons.encode.encoding import encode_store

    check_out(out)
    with ProgressBars("opening the store") as progress:
        written = encode_store(
            store,
            encode_text,
            encode_images,
            autoencoder=autoencoder,
            tokens=tokens,
            patch=patch,
            name=name,
            out=out,
            address=address,
            progress=progress,
            warn=output.say,
            replace=replace,
        )
    show_stores([written], {}, as_json)
    output.hint(
        as_json,
        "data inspect",
        written.store.name if out is None else output.relative(written.store.path),
    )
