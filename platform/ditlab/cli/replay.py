"""`ditlab replay`."""

from pathlib import Path

import click

from ditlab.cli.common import console, emit, json_option, print_line, run_argument, set_option


@click.command()
@run_argument
@click.option("--step", metavar="N", type=int, help="Step to replay, from 1.")
@click.option("--to", metavar="M", type=int, help="Last step, for several; default: N alone.")
@click.option(
    "--check", is_flag=True,
    help="Compare loss, gradient norm, learning rate and samples with the run's journal and receipts, instead of "
    "showing each sample. Exit code 1 where something is off.",
)  # fmt: skip
@click.option(
    "--worst", metavar="K", type=click.IntRange(1, 1000),
    help="Find the K steps whose loss or gradient norm stands out most against the 16 steps on each side, replay each "
    "and say what is behind it.",
)  # fmt: skip
@set_option
@click.option("--anyway", is_flag=True, help="Go on with other code, data or device than the run's, and say so.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for a picture of each step; default: none.")
@json_option
def replay(
    run: str,
    step: int | None,
    to: int | None,
    check: bool,
    worst: int | None,
    overrides: tuple[str, ...],
    anyway: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Do a step of RUN again, and show what it was made of. Nothing is written into the run.

    Shows the step's samples with their losses, times and noise, gradient norms by layer, clipping and update. Begins at
    the newest checkpoint before the step, else at the run's first step, with the workers that did each step. `--set
    training.clip.max_norm=0.5` does the step once more under another spec, from the same state.
    """
    from ditlab.analysis.user_errors import output_folder
    from ditlab.cli.progress_bars import ProgressBars

    if out:
        output_folder(out)
    with ProgressBars("loading PyTorch") as progress:
        from ditlab.interface.replaying import replay as replay_steps

        progress.stage("opening the run")
        found = replay_steps(
            run, step, to, check=check, worst=worst, overrides=overrides, anyway=anyway, warn=progress.say,
            on_progress=progress,
        )  # fmt: skip
    console(as_json).print("\n".join(found.lines), soft_wrap=True)
    files = found.save(out) if out else []
    for file in files:
        print_line(file, as_json)
    emit({**found.record, "files": [str(file) for file in files]}, as_json)
    if not found.holds:
        raise click.exceptions.Exit(1)
