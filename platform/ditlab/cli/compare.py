"""`ditlab compare`."""

from pathlib import Path

import click

from ditlab.cli.common import emit, json_option, say, writing

FEWEST_SAMPLES = 100
"""Fewer than the features that quality is measured on give figures of chance."""


@click.command()
@click.argument("runs", metavar="RUN RUN ...", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path), help="Folder; default: comparisons/ below DITLAB_HOME.")
@click.option(
    "--samples", metavar="NUM", default=500, show_default=True, type=click.IntRange(0, 50_000),
    help="Samples a run for quality metrics (at least 100), where its data give any; 0 leaves them out.",
)  # fmt: skip
@click.option("--grid", default=25, show_default=True, type=click.IntRange(min=0), help="Samples a run to look at.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of every run's samples.")
@click.option("--batch", default=64, show_default=True, type=click.IntRange(min=1), help="Samples drawn at once.")
@click.option("--log/--no-log", default=True, show_default=True, help="Add the page to every run, as an artifact.")
@json_option
def compare(
    runs: tuple[str, ...], out: Path | None, samples: int, grid: int, seed: int, batch: int, log: bool, as_json: bool
) -> None:
    """Runs side by side: what differs, parameters, curves over steps and time, speed, samples and their quality.

    RUN is an id, a prefix of one, or a name. Writes comparison.html (one file), comparison.md and the pictures.
    """
    from ditlab.analysis.comparison import open_runs, summarise
    from ditlab.errors import UserError

    if 0 < samples < FEWEST_SAMPLES:
        raise UserError(f"--samples {samples} are too few for quality metrics; give {FEWEST_SAMPLES} or more, or 0.")
    opened = open_runs(runs)
    from ditlab.analysis.compared_samples import Wish, draw_all
    from ditlab.analysis.saved_run import default_device, output_folder
    from ditlab.quality.names import QUALITY_NOTE
    from ditlab.reports.comparison.page import write_comparison
    from ditlab.reports.comparison.records import Comparison
    from ditlab.reports.comparison.summary import lead

    name = "-".join(run.folder.run_id for run in opened)
    folder = output_folder(out or opened[0].home.root / "comparisons" / name)
    wish = Wish(samples, grid, seed, batch, default_device())
    compared = draw_all(opened, [summarise(run) for run in opened], wish)
    with writing(folder):
        comparison = Comparison(compared, seed, batch, wish.device.type, QUALITY_NOTE)
        files = write_comparison(comparison, folder)
    if log:
        for run in opened:
            with run.tracker() as tracker:
                tracker.log_artifact(files[0], f"comparisons/{name}")
    for file in files:
        click.echo(file, err=as_json)
    say(lead(comparison))
    emit({"files": [str(file) for file in files], "runs": [run.as_dict() for run in compared]}, as_json)
