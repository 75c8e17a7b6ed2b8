"""Commands that check training: `ditlab prove`, `ditlab replay`, `ditlab verify`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from ditlab.cli import options, output
from ditlab.errors import UserError

if TYPE_CHECKING:
    from ditlab.cli.progress import ProgressBars


_yes = click.option(
    "--yes", is_flag=True, help="Do not ask whether to go on where the steps take longer than the training took."
)


def _ask_if_long(progress: ProgressBars, yes: bool) -> Callable[[str, bool], None]:
    """Say what a replay takes; where that is long, ask a person at a terminal first. Raises Exit on a no."""

    def tell(cost: str, is_long: bool) -> None:
        for line in wrap(cost, 80):
            progress.say(line)
        if is_long and not yes and not progress.confirms("Go on?"):
            progress.say("no step was done.")
            raise click.exceptions.Exit(1)

    return tell


@click.command()
@options.spec
@options.overrides
@options.as_json
def prove(spec: Path, overrides: tuple[str, ...], as_json: bool) -> int:
    """Compare the engine that SPEC configures with a reference implementation, step by step.

    Twenty steps are trained by the real loop, with a kill and a resume within, and with the spec's workers, ZeRO stage,
    precision, accumulation, checkpointing, offload, compilation and clipping; each is computed once more without an
    engine. Compared are samples, labels and draws, losses, gradients by module, norm, clipping, update, moments, master
    weights, averages, learning rates, the resume, evaluation and a sample. Bounds follow from rounding; what it would
    hide is printed. Exit code 1 where something is off; the first phase, module and steps are named. Nothing is kept.
    """
    from ditlab.cli.progress import ProgressBars
    from ditlab.spec.files import load_experiment

    experiment = load_experiment(spec, overrides)  # before torch is imported: a mistake shows at once
    with ProgressBars("loading PyTorch") as progress:
        from ditlab_addons.check.functions import prove as prove_spec
        from ditlab_addons.check.prove.findings import proof_lines

        progress.stage("reading the spec's data")
        proof = prove_spec(experiment, on_progress=progress)
    for line in proof_lines(proof):
        output.print_line(line, as_json)
    output.emit(proof.to_dict(), as_json)
    if proof.holds:
        output.hint(as_json, "train", spec, *output.repeated_arguments("spec", "as_json"))
    return 0 if proof.holds else 1


@click.command()
@options.run
@click.option("--step", metavar="N", type=int, help="Step to replay, from 1.")
@click.option("--to", metavar="M", type=int, help="Last step, for several; default: N alone.")
@click.option(
    "--check", is_flag=True,
    help="Compare loss, gradient norm, learning rate and samples with the run's journal and receipts, instead of "
    "showing each sample. Exit code 1 where something is off.",
)  # fmt: skip
@click.option(
    "--worst", metavar="K", type=click.IntRange(1, 1000),
    help="Find the K steps whose loss or gradient norm differs most from the 16 steps on each side, replay each "
    "and name the likely cause.",
)  # fmt: skip
@options.overrides
@click.option("--anyway", is_flag=True, help="Go on with other code, data or device than the run's, and say so.")
@_yes
@click.option("--out", type=options.NewPath(path_type=Path), help="Folder for a picture of each step; default: none.")
@options.as_json
def replay(
    run: str, step: int | None, to: int | None, check: bool, worst: int | None, overrides: tuple[str, ...],
    anyway: bool, yes: bool, out: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Do a step of RUN again, and show its samples, losses and gradients. Nothing is written into the run.

    Each sample has its loss, times and noise; layers have gradient norms, clipping and update. Begins at
    the newest checkpoint before the step, else at the run's first step, with the workers that did each step. `--set
    training.clip.max_norm=0.5` does the step once more under another spec, from the same state.
    """
    from ditlab.analysis.user_errors import output_folder
    from ditlab.cli.progress import ProgressBars

    if out:
        output_folder(out)
    with ProgressBars("loading PyTorch") as progress:
        from ditlab_addons.check.functions import replay as replay_steps

        progress.stage("opening the run")
        found = replay_steps(
            run, step, to, check=check, worst=worst, overrides=overrides, anyway=anyway, warn=progress.say,
            on_progress=progress, on_cost=_ask_if_long(progress, yes),
        )  # fmt: skip
    output.console(as_json).print("\n".join(found.lines), soft_wrap=True)
    files = found.save(out) if out else []
    output.emit({**found.record, "files": [str(file) for file in files]}, as_json, files)
    output.hint(as_json, "verify", found.record["run_id"])
    return 0 if found.holds else 1


@click.command()
@options.run
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
    help="Time after which no further step is begun.",
)  # fmt: skip
@click.option(
    "--data-limit", metavar="SIZE", default="16GiB", show_default=True,
    help="Hash data of up to this size as a whole; of larger data only what replayed steps read.",
)  # fmt: skip
@click.option("--anyway", is_flag=True, help="Replay with other code or device than the run's, and say so.")
@_yes
@options.as_json
def verify(
    run: str, steps: int, seed: int, seconds: float, data_limit: str, anyway: bool, yes: bool, as_json: bool
) -> int:
    """Check RUN against its record: files, receipts, data, and some steps done again.

    Exit code 1 where something is off. Nothing is written into the run.
    """
    from ditlab.cli.progress import ProgressBars

    try:
        from ditlab.spec.values import num_bytes

        limit = num_bytes(data_limit)
    except ValueError as error:
        raise UserError(f"--data-limit {data_limit}: {error}; give a size such as 16GiB.") from None
    with ProgressBars("loading PyTorch") as progress:
        from ditlab_addons.check.functions import verify as verify_run

        progress.stage("opening the run")
        found = verify_run(
            run, steps=steps, seed=seed, seconds=seconds, data_limit=limit, anyway=anyway, warn=progress.say,
            on_progress=progress, on_cost=_ask_if_long(progress, yes),
        )  # fmt: skip
    for line in found.terminal_lines():
        output.console(as_json).print(line)
    output.emit(found.to_dict(), as_json)
    output.hint(as_json, "report" if found.holds else "runs log", found.run_id)
    return 0 if found.holds else 1
