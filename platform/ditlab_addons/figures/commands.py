"""`ditlab data statistics`: figures of images outside of runs."""

from __future__ import annotations

from pathlib import Path

import click
from typing_extensions import TypedDict

from ditlab.cli import options, output
from ditlab.cli.output_types import FilesOutput
from ditlab.errors import cannot_write
from ditlab.home import Home


class EndsOutput(TypedDict):
    """Figure with its 95 % interval."""

    value: float | None
    low: float | None
    high: float | None


class StatisticsOutput(FilesOutput):
    """`ditlab data statistics`."""

    images: int
    figures: dict[str, EndsOutput]
    """Figures against the other set, by name; empty without one."""
    notes: list[str]
    """Lines on what of folders was measured, how their pictures were changed, and what the other
    set does not say of itself or has otherwise.
    """


RESULTS = {"data statistics": StatisticsOutput}
"""Type of the object of each command."""


@click.command()
@click.argument("place")
@click.option(
    "--kind",
    type=click.Choice(["inception", "dinov2", "clip"]),
    default="inception",
    show_default=True,
)
@click.option(
    "--weights",
    required=True,
    help="File or folder of the network's weights; nothing is downloaded.",
)
@click.option(
    "--sha256", required=True, help="SHA-256 of the file of weights, as `sha256sum FILE` prints it."
)
@click.option(
    "--against",
    metavar="PLACE",
    help="Images, or an .npz file of statistics (mu, sigma): figures of PLACE.",
)
@click.option(
    "--out",
    type=options.NewPath(path_type=Path, dir_okay=False),
    help="Write mu, sigma as an .npz file.",
)
@options.as_json
def statistics(
    place: str, against: str | None, out: Path | None, as_json: bool, **network: str
) -> None:
    """Measure images by a published network: FID and others against another PLACE, and statistics
    as ADM's .npz.

    PLACE: a store's folder or name, a folder or zip of pictures (with the folders below, as imports
    read them), or an .npz file of images (arr_0, uint8, NHWC).
    """
    from ditlab.analysis.opened_run import default_device
    from ditlab.cli.progress import ProgressBars
    from ditlab.storage.files import write_durably
    from ditlab_addons.figures.images.image_sets import measure_images
    from ditlab_addons.figures.images.published import features_named

    with ProgressBars(f"measuring {place}") as progress:
        spec = features_named(network)
        home = Home.from_environment()
        found = measure_images(place, spec, against, home, default_device(), progress)
    if out is not None:
        try:
            write_durably(out, found.statistics.to_npz())
        except OSError as error:
            raise cannot_write(f"--out {out}", error, "name another file") from error
    figures = {
        name: {"value": each.value, "low": each.low, "high": each.high}
        for name, each in found.figures.items()
    }
    for name, each in found.figures.items():
        output.say(f"{name} {each.value:.5g} ({each.low:.5g} to {each.high:.5g})")
    for note in found.notes:
        output.say(note)
    files = [str(out)] if out else []
    result = {"images": found.num, "figures": figures, "notes": found.notes, "files": files}
    output.emit(result, as_json)
    if out is not None:
        settings = output.repeated_arguments("place", "against", "out", "as_json")
        output.hint(as_json, "data statistics", "PLACE", *settings, "--against", out)
    elif against is None:
        output.hint(
            as_json, "data statistics", *output.repeated_arguments("as_json"), "--against", "PLACE"
        )
