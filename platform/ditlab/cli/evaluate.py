"""`ditlab evaluate`."""

from pathlib import Path
from typing import Any

import click

from ditlab.cli.common import building, emit, json_option, run_argument, say


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
    "images on features of DiTLab's own classifier of this data set, so never to be compared with published FID.",
)
@click.option(
    "--rows",
    metavar="N",
    type=click.IntRange(min=1),
    help="Only the first N held-out samples, for a quick look: nothing is added to the run. Baselines are still fitted "
    "on all training samples.",
)
@json_option
def evaluate(run: str, batch: int, quality: int | None, rows: int | None, as_json: bool) -> None:
    """Held-out metrics of RUN's averaged weights over all held-out samples, added to the run as `held_out/...`.

    A family with an assessment of its own (imputation, or text, beside simple baselines) adds `assessed/...`, and
    figures and tables under `assessment/`.
    """
    import torch
    from rich.console import Console
    from rich.table import Table

    from ditlab.cli import assessing
    from ditlab.cli.saved import default_device, open_run
    from ditlab.engine.distributed import ControlChannel, Rank
    from ditlab.errors import UserError
    from ditlab.training.evaluation import held_out_metrics
    from ditlab.training.quality.applies import quality_applies
    from ditlab.training.quality.meter import QualityMeter
    from ditlab.training.quality.names import QUALITY_NOTE

    saved = open_run(run)
    experiment, data = saved.experiment(), saved.data()
    held_out = data.held_out
    if not len(held_out):
        raise UserError(f"{data.note or 'nothing is held out'}; set data.hold_out in the next run.")
    if quality and (reason := quality_applies(experiment, data)):
        raise UserError(f"--quality {quality} cannot be measured, as {reason}; leave it out.")
    if data.note:
        say(data.note)
    device = default_device()
    with building():
        objective: Any = experiment.objective.build(experiment.model, data.text)
    network = saved.network(device)
    rank, fields, num = (
        Rank(0, 1, 0, device),
        experiment.batch_fields(),
        min(rows or len(held_out), len(held_out)),
    )
    with torch.no_grad():
        values = held_out_metrics(network, objective, held_out, fields, batch, num, rank, ControlChannel(rank))
    metrics = {f"held_out/{name}": value for name, value in values.items()}
    if quality:
        meter = QualityMeter(experiment, data, saved.home, device, say)
        metrics |= meter.measure(meter.draw(network, quality, batch))
    assessment = assessing.assess(experiment, network, data, rows, batch, device)
    result: dict[str, Any] = {"run_id": saved.folder.run_id, "step": saved.step, "metrics": metrics}
    files: list[Path] = []
    if assessment:
        files = [] if rows else assessing.keep(assessment, saved)
        assessed = {f"assessed/{name}": value for name, value in assessment.metrics.items()}
        result |= {
            "metrics": metrics | assessed,
            "tables": assessing.table_lists(assessment),
            "files": [str(file) for file in files],
        }
    if not rows:
        with saved.tracker() as tracker:
            tracker.log_metrics(saved.step, result["metrics"])
            for file in files:
                tracker.log_artifact(file, assessing.FOLDER)
    table = Table(
        "metric", "value", title=f"run {saved.folder.run_id}, step {saved.step}, {num} samples",
        caption=f"quality, of {quality} drawn samples: {QUALITY_NOTE}" if quality else None,
    )  # fmt: skip
    for name, value in metrics.items():
        table.add_row(name, f"{value:.5f}")
    tables = assessing.printed_tables(assessment) if assessment else ()
    Console(stderr=as_json).print(table, *tables)
    for file in files:
        click.echo(file, err=as_json)
    emit(result, as_json)
