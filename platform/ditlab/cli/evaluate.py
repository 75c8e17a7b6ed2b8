"""`ditlab evaluate`."""

from pathlib import Path
from typing import Any

import click

from ditlab.cli.common import emit, json_option, run_argument, say, set_option


@click.command()
@run_argument
@click.option(
    "--batch",
    default=256,
    show_default=True,
    type=click.IntRange(min=1),
    help="Samples at once; lower it where memory is short.",
)
@click.option(
    "--quality",
    metavar="NUM",
    type=click.IntRange(100, 50_000),
    help="Draw NUM samples (100 to 50000) and measure their quality, added as `quality/...`: distances to the real "
    "images on features of DiTLab's own classifier of this data set, so never to be compared with published FID; and, "
    "where captions are drawn, the share of samples that show what theirs says.",
)
@click.option(
    "--rows",
    metavar="N",
    type=click.IntRange(min=1),
    help="Only the first N held-out samples, for a quick look: nothing is added to the run. Baselines are still fitted "
    "on all training samples.",
)
@set_option
@json_option
def evaluate(
    run: str, batch: int, quality: int | None, rows: int | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Held-out metrics of RUN's averaged weights over all held-out samples, added to the run as `held_out/...`.

    A family with an assessment of its own (imputation, or text, beside simple baselines) adds `assessed/...`, and
    figures and tables under `assessment/`. With `--set sampling.KEY=VALUE` the quality of samples under these settings
    is measured alone, to be compared with that under others; `--set encoders.KEY=PLACE` says where the run's encoders
    are now. With either nothing is added to the run.
    """
    from rich.console import Console
    from rich.table import Table

    from ditlab.analysis.evaluation import joined, of_held_out_rows, of_samples
    from ditlab.analysis.sampling_overrides import sampling_changes
    from ditlab.analysis.saved_run import default_device, open_run
    from ditlab.cli import assessing
    from ditlab.errors import UserError
    from ditlab.quality.eligibility import quality_applies, size_remedy
    from ditlab.quality.evaluator import QualityMeter
    from ditlab.quality.names import QUALITY_NOTE

    saved = open_run(run)
    changes = sampling_changes({}, overrides)
    resampled = [change for change in changes if change.keys[0] == "sampling"]
    if resampled and not quality:
        raise UserError(f"{resampled[0].source} changes samples alone, and none are drawn; add --quality NUM.")
    experiment, data = saved.experiment(changes), saved.data()
    if not len(data.held_out):
        raise UserError(f"{data.note or 'nothing is held out'}; set data.hold_out in the next run.")
    if quality and (reason := quality_applies(experiment, data)):
        remedy = " or ".join(filter(None, ["leave it out", size_remedy(experiment)]))
        raise UserError(f"--quality {quality} cannot be measured, as {reason}; {remedy}.")
    if data.note:
        say(data.note)
    num, is_kept = min(rows or len(data.held_out), len(data.held_out)), not (rows or changes)
    device = default_device()
    network, inputs = saved.network(device), saved.inputs(data, device, changes)
    parts = [] if resampled else [of_held_out_rows(saved, network, data, inputs, num, batch)]
    if quality:
        meter = QualityMeter(experiment, data, saved.home, device, say, inputs=inputs)
        parts.append(of_samples(meter, network, quality, batch))
    found = joined(parts)
    files: list[Path] = assessing.keep(found, saved) if is_kept and (found.figures or found.tables) else []
    result: dict[str, Any] = {"run_id": saved.folder.run_id, "step": saved.step, "metrics": found.metrics}
    if found.figures or found.tables:
        result |= {"tables": assessing.table_lists(found), "files": [str(file) for file in files]}
    if is_kept:
        with saved.tracker() as tracker:
            tracker.log_metrics(saved.step, found.metrics)
            for file in files:
                tracker.log_artifact(file, assessing.FOLDER)
    of = f"{num} samples"
    if changes:
        of = f"{', '.join(change.source for change in changes)}, not added to the run"
    table = Table(
        "metric", "value", title=f"run {saved.folder.run_id}, step {saved.step}, {of}",
        caption=f"quality, of {quality} drawn samples: {QUALITY_NOTE}" if quality else None,
    )  # fmt: skip
    for name, value in found.metrics.items():
        if not name.startswith("assessed/"):  # these are in tables of their own
            table.add_row(name, f"{value:.5f}")
    Console(stderr=as_json).print(table, *assessing.printed_tables(found))
    for file in files:
        click.echo(file, err=as_json)
    emit(result, as_json)
