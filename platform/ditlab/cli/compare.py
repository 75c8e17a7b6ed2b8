"""`ditlab compare`."""

from pathlib import Path
from typing import Any

import click

from ditlab.cli.common import delivery_text, emit, json_option, print_line, say
from ditlab.cli.completing import complete_run
from ditlab.cli.hints import hint


@click.command()
@click.argument("runs", metavar="RUN RUN ...", nargs=-1, shell_complete=complete_run)
@click.option("--out", type=click.Path(path_type=Path), help="Folder; default: comparisons/ below DITLAB_HOME.")
@click.option(
    "--samples", metavar="NUM", default=500, show_default=True, type=click.IntRange(0, 50_000),
    help="Samples of each run for quality metrics (at least 100), where its data give any; 0: no quality metrics.",
)  # fmt: skip
@click.option(
    "--grid", default=25, show_default=True, type=click.IntRange(min=0), help="Samples of each run that are shown."
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of every run's samples.")
@click.option("--batch", default=64, show_default=True, type=click.IntRange(min=1), help="Samples drawn at once.")
@click.option("--log/--no-log", default=True, show_default=True, help="Add the page to every run, as an artifact.")
@json_option
def compare(runs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Compare runs: spec differences, parameters, curves over steps and time, speed, samples and their quality.

    RUN is an id, a prefix of one, or a name. Writes comparison.html (one file), comparison.md and the pictures.
    """
    from ditlab.cli.progress_bars import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab.interface.analysis import compare as compare_runs

        progress.stage("opening the runs")
        found = compare_runs(*runs, **options, warn=progress.say, on_progress=progress)
    for file in found.files:
        print_line(file, as_json)
    say(found.summary)
    for run_id, num_unsent in found.unsent.items():
        if num_unsent:
            say(delivery_text("the page is", run_id, num_unsent))
    emit({"files": [str(file) for file in found.files], "runs": [run.as_dict() for run in found.runs]}, as_json)
    hint(as_json, "ui")
