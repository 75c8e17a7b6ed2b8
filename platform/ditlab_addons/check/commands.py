"""Commands that check training: `ditlab prove`, `ditlab replay`, `ditlab verify`."""

from __future__ import annotations

from functools import partial
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
@click.option(
    "--against",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help=(
        "Compare FILE, which `ditlab eject` wrote and you have changed, with SPEC instead: the "
        "first step, quantity and module that have other bits."
    ),
)
@options.as_json
def prove(spec: Path, overrides: tuple[str, ...], against: Path | None, as_json: bool) -> int:
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
        from ditlab_addons.check.functions import compare_file
        from ditlab_addons.check.functions import prove as prove_spec

        if against:
            return _print(compare_file(experiment, against, on_progress=progress), as_json)
        progress.stage("reading the spec's data")
        proof = prove_spec(experiment, on_progress=progress)
    code = _print(proof, as_json)
    if proof.holds:
        output.hint(as_json, "train", spec, *output.repeated_arguments("spec", "as_json"))
    return code


@click.command()
@options.spec
@options.overrides
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    type=options.NewPath(path_type=Path),
    help="File to write, such as train.py.",
)
@options.as_json
def eject(spec: Path, overrides: tuple[str, ...], out: Path, as_json: bool) -> None:
    """Write SPEC's training as one file of plain torch, to read and to change.

    The file needs torch, numpy, safetensors and pyarrow, and nothing of DiTLab: network, loss,
    sampler, order of samples, draws, optimiser, checkpoint, resume, evaluation and samples of this
    spec alone. On a CPU its weights have the bits of `ditlab train`, for the same number of threads
    and workers. `ditlab prove SPEC --against FILE` says where a changed file departs, and `ditlab
    runs adopt FOLDER` makes a run of what it has trained.
    """
    from ditlab.spec.files import load_experiment

    experiment = load_experiment(spec, overrides)
    from ditlab_addons.check.functions import eject as write_file

    found = write_file(experiment, out)
    console = output.console(as_json)
    console.print(f"{found.file}: {found.lines:,} lines", highlight=False)
    for each in found.left_out:
        console.print(each, highlight=False)
    output.emit(found.to_dict(), as_json)
    output.hint_text(as_json, f"python {found.file} FOLDER")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@options.as_json
def adopt(folder: Path, as_json: bool) -> None:
    """Make a run of what a file of `ditlab eject` has trained into FOLDER.

    Its log and checkpoints are taken over, and its last weights are evaluated by the spec's own
    network. What was changed in the file is said, and kept as the run's tag `ditlab.adopted`.
    """
    from ditlab_addons.check.eject.adopting import adopt as adopt_folder

    console = output.console(as_json)
    found = adopt_folder(folder, say=partial(console.print, highlight=False), warn=output.say)
    console.print(f"run {found.run_id}: {found.step:,} of {found.total_steps:,} steps")
    output.emit(found.to_dict(), as_json)
    output.hint(as_json, "runs show", found.run_id)


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
