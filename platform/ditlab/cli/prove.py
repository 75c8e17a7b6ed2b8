"""`ditlab prove`."""

from pathlib import Path

import click

from ditlab.cli.common import emit, json_option, print_line, set_option, spec_argument
from ditlab.cli.hints import hint, repeated_arguments


@click.command()
@spec_argument
@set_option
@json_option
def prove(spec: Path, overrides: tuple[str, ...], as_json: bool) -> int:
    """Compare the engine that SPEC configures with plain readings of the same steps, before hours are spent.

    A few steps are trained by the real loop, with the spec's workers, ZeRO stage, precision, accumulation,
    checkpointing, offload, compilation and clipping, and each is computed once more without an engine, in float64 and
    in the spec's precision. Compared are samples and draws, losses, gradients by module, norm, clipping, update,
    moments, master weights, averages, learning rates, a resume, evaluation and a sample. A bound is what rounding
    explains. Exit code 1 where something is off; the first phase and module are named. Nothing is kept.
    """
    from ditlab.cli.progress_bars import ProgressBars
    from ditlab.spec.loading import load_experiment

    experiment = load_experiment(spec, overrides)  # before torch is imported: a mistake shows at once
    with ProgressBars("loading PyTorch") as progress:
        from ditlab.checking.prove.findings import proof_lines
        from ditlab.interface.proving import prove as prove_spec

        progress.stage("reading the spec's data")
        proof = prove_spec(experiment, on_progress=progress)
    for line in proof_lines(proof):
        print_line(line, as_json)
    emit(proof.to_dict(), as_json)
    if proof.holds:
        hint(as_json, "train", spec, *repeated_arguments("spec", "as_json"))
    return 0 if proof.holds else 1
