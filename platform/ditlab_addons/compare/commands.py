"""`ditlab compare`: runs side by side, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NotRequired

import click
from typing_extensions import TypedDict

from ditlab.cli import options, output
from ditlab.cli.analysis.results import MeasurementOutput
from ditlab.cli.output_types import FilesOutput, IntervalOutput, Numbers


class ComparedOutput(TypedDict):
    run_id: str
    name: str
    family: str
    status: str
    step: int
    samples: int
    seconds: float | None
    samples_per_second: float | None
    parameters: int
    forked_from: str | None
    metrics: Numbers
    measurements: dict[str, MeasurementOutput]
    runs: NotRequired[list[str]]
    intervals: NotRequired[dict[str, IntervalOutput]]


class CompareOutput(FilesOutput):
    """`ditlab compare`."""

    runs: list[ComparedOutput]


RESULTS = {"compare": CompareOutput}


@click.command()
@click.argument("runs", metavar="RUN RUN ...", nargs=-1)
@click.option(
    "--out",
    type=options.NewPath(path_type=Path),
    help="Folder; default: comparisons/ below DITLAB_HOME.",
)
@click.option(
    "--grid",
    default=25,
    show_default=True,
    type=click.IntRange(min=0),
    help="Samples of each run that are shown.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Seed of every run's samples.",
)
@options.batch(64)
@click.option(
    "--log/--no-log",
    default=True,
    show_default=True,
    help="Add the page to every run, as an artifact.",
)
@options.as_json
def compare(runs: tuple[str, ...], as_json: bool, **settings: Any) -> None:
    """Compare runs: spec differences, parameters, curves over steps and time, speed, measured
    metrics and samples.

    RUN is an id, a prefix of one, or a name; of a group of seeds (`ditlab train --seeds`), or
    SWEEP.NUMBER of a sweep with `seeds`, its runs are one line, compared by pairs of one seed.
    Writes comparison.html (one file), comparison.md and the pictures.
    """
    from ditlab.cli.progress import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab_addons.compare.functions import compare as compare_runs

        progress.stage("opening the runs")
        found = compare_runs(*runs, **settings, warn=progress.say, on_progress=progress)
    output.say(found.summary)
    for run_id, num_unsent in found.unsent.items():
        if num_unsent:
            output.say_delivery("the page is", run_id, num_unsent)
    facts = {
        "files": [str(file) for file in found.files],
        "runs": [run.as_dict() for run in found.runs],
    }
    output.emit(facts, as_json, found.files)
    output.hint(as_json, "ui")
