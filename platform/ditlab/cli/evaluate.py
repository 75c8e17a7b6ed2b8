"""`ditlab evaluate`."""

import click

from ditlab.cli.common import console, delivery_text, emit, json_option, print_line, run_argument, say, set_option
from ditlab.cli.hints import hint


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
    "images on features of DiTLab's own classifier of this data set, which cannot be compared with published FID; and, "
    "for captions, the share of samples that a classifier assigns to the classes of their captions.",
)
@click.option(
    "--rows",
    metavar="N",
    type=click.IntRange(min=1),
    help="Only the first N held-out samples; nothing is added to the run. Baselines are still fitted on all training "
    "samples.",
)
@click.option(
    "--ema",
    "averages",
    metavar="LENGTHS",
    help="Relative lengths of averages, such as 0.05,0.1,0.2, rebuilt from those that `training.averages` has kept: a "
    "table and a figure of the metrics of each; nothing is added to the run. decay=0.999 is an exponential one, "
    "approximately.",
)
@set_option
@json_option
def evaluate(
    run: str,
    batch: int,
    quality: int | None,
    rows: int | None,
    averages: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure RUN's averaged weights over all held-out samples, and add the metrics to the run as `held_out/...`.

    A family with an evaluator of its own (imputation, or text, beside simple baselines) adds `assessed/...`, and
    figures and tables under `assessment/`. With `--set sampling.KEY=VALUE` the quality of samples under these settings
    is measured alone, to be compared with that under others; `--set encoders.KEY=PLACE` says where the run's encoders
    are now. With either nothing is added to the run.
    """
    from ditlab.cli.progress_bars import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab.interface.run import open_run

        progress.stage("opening the run")
        opened = open_run(run, warn=progress.say, on_progress=progress)
        if averages is not None:
            from ditlab.interface.analysis import evaluate_averages

            frontier = evaluate_averages(
                opened, *averages.split(","), quality=quality, rows=rows, batch=batch, overrides=overrides
            )
        else:
            found = opened.evaluate(quality=quality, rows=rows, batch=batch, overrides=overrides)
    if averages is not None:
        console(as_json).print(*frontier.terminal_tables())
        for file in frontier.files:
            print_line(file, as_json)
        emit(frontier.to_dict(), as_json)
        return
    console(as_json).print(*found.terminal_tables())
    for file in found.files:
        print_line(file, as_json)
    if found.num_unsent is not None:
        say(delivery_text("metrics", found.run_id, found.num_unsent))
    hint(as_json, "figures", found.run_id)
    emit(found.to_dict(), as_json)
