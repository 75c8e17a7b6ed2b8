"""`ditlab figures`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli.common import delivery_text, emit, json_option, print_line, say
from ditlab.cli.completing import complete_run
from ditlab.cli.hints import hint

if TYPE_CHECKING:
    from ditlab.analysis.figures import FigureSet
    from ditlab.cli.progress_bars import ProgressBars


@click.command()
@click.argument("run", required=False, shell_complete=complete_run)
@click.option("--kind", "kinds", multiple=True, help="Only this kind (repeatable); --list names them.")
@click.option("--list", "only_list", is_flag=True, help="List the kinds and draw nothing.")
@click.option("--seed", default=0, show_default=True, help="Seed of the samples in the figures.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the pictures (default: figures/, or the run's)."
)
@click.option(
    "--format",
    "formats",
    type=click.Choice(["png", "svg", "pdf"]),
    multiple=True,
    default=("png", "svg"),
    help="File format (repeatable; default: png and svg). An animation's png is a GIF and a still.",
)
@click.option(
    "--theme",
    type=click.Choice(["light", "dark", "both"]),
    default="light",
    show_default=True,
    help="Page on which the pictures will stand; dark ones are KIND-dark.png.",
)
@json_option
def figures(
    run: str | None,
    kinds: tuple[str, ...],
    only_list: bool,
    seed: int,
    out: Path | None,
    formats: tuple[str, ...],
    theme: str,
    as_json: bool,
) -> None:
    """Draw the figures of RUN's family from its trained weights, and log them (light, as PNG) to the run.

    Without RUN: figures that need no weights (embeddings, schedules, each family's fixed tables).
    """
    from ditlab.cli.progress_bars import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab.interface.analysis import figures as general_figures
        from ditlab.interface.run import open_run

        progress.stage("opening the run" if run else "preparing the figures")
        opened = open_run(run, warn=progress.say, on_progress=progress) if run else None
        if opened and not only_list:
            opened.check_writable()
        found = opened.figures(seed) if opened else general_figures()
        if only_list:
            files = []
        else:
            found.check(kinds)
            themes = ("light", "dark") if theme == "both" else (theme,)
            files = _draw(found, kinds, out, formats, themes, run, progress, as_json)
        num_unsent = 0
        logged = [file for file in files if file.suffix in (".png", ".gif") and not file.stem.endswith("-dark")]
        if opened and logged:
            progress.stage("sending the figures to MLflow")
            num_unsent = opened.log_figures(logged)
    if only_list:
        for kind in found.kinds:
            print_line(kind, as_json)
        emit({"kinds": found.kinds}, as_json)
        hint(as_json, "figures", *([opened.id] if opened else []), "--kind", found.kinds[0])
        return
    if opened and logged:
        say(delivery_text(f"{len(logged)} figure{'s' if len(logged) > 1 else ''}", opened.id, num_unsent))
    emit({"files": [str(file) for file in files]}, as_json)
    if opened:
        hint(as_json, "export", opened.id, "--out", f"export-{opened.id}")
    else:
        hint(as_json, "runs")


def _draw(
    found: "FigureSet", kinds: tuple[str, ...], out: Path | None, formats: Any, themes: Any, run: str | None,
    progress: "ProgressBars", as_json: bool,
) -> list[Path]:  # fmt: skip
    """Draw the figures and print their files. Raises UserError for a kind by name that the run has nothing for."""
    from ditlab.errors import UserError

    files: list[Path] = []
    chosen = kinds or found.kinds
    for number, kind in enumerate(chosen):
        progress("drawing figures", number, len(chosen), "figures")
        drawn = found.save_formats(kind, out, formats, themes)
        for file in drawn:
            files.append(file)
            print_line(file, as_json)
        if drawn:
            continue
        if kinds:
            raise UserError(f"--kind {kind}: run {run} has nothing to draw it from; leave it out.")
        progress.say(f"no {kind}: the run has nothing to draw it from.")
    return files
