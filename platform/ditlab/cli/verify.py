"""`ditlab verify`."""

import click

from ditlab.cli.common import console, emit, json_option, run_argument
from ditlab.errors import UserError
from ditlab.spec.sizes import num_bytes


@click.command()
@run_argument
@click.option(
    "--steps", metavar="K", type=click.IntRange(0, 1000), default=3, show_default=True,
    help="Steps, chosen at random, that are done again.",
)  # fmt: skip
@click.option(
    "--seed", metavar="S", type=click.IntRange(0, (1 << 63) - 1), default=0, show_default=True,
    help="Seed of the choice of steps.",
)  # fmt: skip
@click.option(
    "--time", "seconds", metavar="SECONDS", type=click.FloatRange(min=1), default=300, show_default=True,
    help="Time after which no further step is done again.",
)  # fmt: skip
@click.option(
    "--data-limit", metavar="SIZE", default="16GiB", show_default=True,
    help="Data up to this size are hashed whole; of larger ones what is replayed.",
)  # fmt: skip
@click.option("--anyway", is_flag=True, help="Replay with other code or device than the run's, and say so.")
@json_option
def verify(run: str, steps: int, seed: int, seconds: float, data_limit: str, anyway: bool, as_json: bool) -> None:
    """Check that RUN is what it says: files, receipts, data, and some steps.

    Exit code 1 where something is off. Nothing is written into the run.
    """
    from ditlab.cli.progress_bars import ProgressBars

    try:
        limit = num_bytes(data_limit)
    except ValueError as error:
        raise UserError(f"--data-limit {data_limit}: {error}; give a size such as 16GiB.") from None
    with ProgressBars("loading PyTorch") as progress:
        from ditlab.interface.verifying import verify as verify_run

        progress.stage("opening the run")
        found = verify_run(
            run, steps=steps, seed=seed, seconds=seconds, data_limit=limit, anyway=anyway, warn=progress.say,
            on_progress=progress,
        )  # fmt: skip
    for line in found.terminal_lines():
        console(as_json).print(line)
    emit(found.to_dict(), as_json)
    if not found.holds:
        raise click.exceptions.Exit(1)
