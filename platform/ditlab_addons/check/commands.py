"""Commands that check training: `ditlab prove`, `ditlab replay`, `ditlab verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ditlab.cli import options, output

if TYPE_CHECKING:
    from ditlab_addons.check.report import Report


def _print(found: Report, as_json: bool) -> int:
    """Print what a check found; return the exit code, 1 where something is off."""
    console = output.console(as_json)
    for each in found.shown():
        console.print(each)
    output.emit(found.to_dict(), as_json)
    return 0 if found.holds else 1


@click.command()
@options.spec
@options.overrides
@options.as_json
def prove(spec: Path, overrides: tuple[str, ...], as_json: bool) -> int:
    """Compare the engine that SPEC configures with a reference implementation, step by step.

    Twenty steps are trained by the real loop, with a kill and a resume within, and with the spec's
    workers, ZeRO stage, precision, accumulation, checkpointing, offload, compilation and clipping;
    each is computed once more without an engine. Compared are samples and draws, losses, gradients
    by module, norm, clipping, update, moments, master weights, averages, learning rates, the
    resume, evaluation and a sample. Bounds follow from rounding; what it would hide is printed.
    Exit code 1 where something is off; the first phase, module and steps are named. Nothing is
    kept.
    """
    from ditlab.cli.progress import ProgressBars
    from ditlab.spec.files import load_experiment

    # before torch is imported: a mistake shows at once
    experiment = load_experiment(spec, overrides)
    with ProgressBars("loading PyTorch") as progress:
        from ditlab_addons.check.functions import prove as prove_spec

        progress.stage("reading the spec's data")
        proof = prove_spec(experiment, on_progress=progress)
    code = _print(proof, as_json)
    if proof.holds:
        output.hint(as_json, "train", spec, *output.repeated_arguments("spec", "as_json"))
    return code


_anyway = click.option(
    "--anyway",
    is_flag=True,
    help="Do steps again with other code, data or device than the run's, and say so.",
)


@click.command()
@options.run
@click.option("--step", metavar="N", type=int, required=True, help="Step to replay, from 1.")
@click.option("--to", metavar="M", type=int, help="Last step, for several; default: N alone.")
@click.option(
    "--check",
    is_flag=True,
    help=(
        "Compare loss, gradient norm, learning rate and samples with the run's receipts, "
        "instead of showing each sample. Exit code 1 where something is off."
    ),
)
@_anyway
@options.as_json
def replay(run: str, step: int, to: int | None, check: bool, anyway: bool, as_json: bool) -> int:
    """Do a step of RUN again, and show its samples, losses and gradients. Nothing is written into
    the run.

    Each sample has its loss and time; layers have gradient norms, clipping and update. Begins at
    the newest checkpoint before the step, else at the run's first step, with the workers that did
    each step.
    """
    from ditlab.cli.progress import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab_addons.check.functions import replay as replay_steps

        progress.stage("opening the run")
        found = replay_steps(
            run, step, to, check=check, anyway=anyway, warn=progress.say, on_progress=progress
        )
    code = _print(found, as_json)
    output.hint(as_json, "verify", found.source.run.folder.run_id)
    return code


@click.command()
@options.run
@click.option(
    "--steps",
    metavar="K",
    type=click.IntRange(0, 1000),
    default=3,
    show_default=True,
    help="Steps, chosen at random, that are done again.",
)
@click.option(
    "--seed",
    metavar="S",
    type=click.IntRange(0, (1 << 63) - 1),
    default=0,
    show_default=True,
    help="Seed of the choice of steps.",
)
@_anyway
@options.as_json
def verify(run: str, steps: int, seed: int, anyway: bool, as_json: bool) -> int:
    """Check RUN against its record: files, receipts, data, and some steps done again.

    Exit code 1 where something is off. Nothing is written into the run.
    """
    from ditlab.cli.progress import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab_addons.check.functions import verify as verify_run

        progress.stage("opening the run")
        found = verify_run(
            run, steps=steps, seed=seed, anyway=anyway, warn=progress.say, on_progress=progress
        )
    code = _print(found, as_json)
    output.hint(as_json, "report" if found.holds else "runs log", found.run_id)
    return code
