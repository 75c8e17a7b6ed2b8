"""Export of a run's weights, or of an average that is rebuilt for it."""

from __future__ import annotations

from pathlib import Path

from ditlab.analysis.averaging.requested import with_average
from ditlab.analysis.saved_run import SavedRun
from ditlab.analysis.user_errors import output_folder
from ditlab.errors import UserError
from ditlab.training.export import write_export


def export_saved(saved: SavedRun, folder: Path, averaged: bool, ema: str | float | None) -> list[Path]:
    """Write the files of an export: the trained weights, the checkpoint's average where `averaged`, or a rebuilt one.

    Raises UserError where the disk refuses, and for an average that cannot be rebuilt.
    """
    if ema is not None and not averaged:
        raise UserError(f"--raw and --ema {ema} exclude each other; leave one of them out.")
    with with_average(saved, ema) as chosen:
        weights = chosen.weights() if averaged else saved.checkpoint.weights(averaged=False)
        facts = {} if chosen.average is None else {"average": chosen.average.profile.label}
        return write_export(saved.checkpoint.manifest, weights, output_folder(folder), saved.folder.tokenizer, facts)
