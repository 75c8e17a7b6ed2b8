"""Figures of a run at its end: of small networks, or where there is a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ditlab.interface.pages import renew_report
from ditlab.interface.run import Run

LARGEST_ON_CPU = 20_000_000
"""Parameters of the largest network that is drawn without a GPU: its figures take about a minute."""


def draw_final_figures(run: Run, warn: Callable[[str], None]) -> list[Path]:
    """Draw all figures of a finished run into its folder, and log them to it; return the files.

    Draws nothing for `evaluation.samples: 0`, which asks for no pictures, and for large networks without a GPU. A
    figure that fails is named in a warning: the run has ended well by then.
    """
    import torch

    from denoisers.parameter_counts import count_parameters

    if not run.spec.evaluation.samples:
        return []
    if not torch.cuda.is_available() and count_parameters(run.spec.model).total > LARGEST_ON_CPU:
        return []
    files: list[Path] = []
    try:
        figures = run.figures()
        for kind in figures.kinds:
            try:
                files += figures.save_formats(kind, formats=("png", "svg"))
            except Exception as error:
                warn(f"figure {kind} was not drawn ({error}); ditlab figures {run.id} --kind {kind} draws it.")
        run.log_figures([file for file in files if file.suffix in {".png", ".gif"}])
        renew_report(run.home, run.folder, warn)  # written when training ended, before there were figures to show
    except KeyboardInterrupt:
        warn(f"figures were left at {len(files)} files; ditlab figures {run.id} draws them all.")
    except Exception as error:
        warn(f"figures were not drawn ({error}); ditlab figures {run.id} draws them.")
    return files
