"""Page of a comparison as HTML and Markdown, with its pictures."""

from __future__ import annotations

from pathlib import Path

from ditlab.reports.comparison.curves import WINDOWS
from ditlab.reports.comparison.figures import MetricRow, draw_curves, side_by_side
from ditlab.reports.comparison.forks import fork_parts
from ditlab.reports.comparison.records import HELD_OUT, TRAIN_LOSS, Comparison
from ditlab.reports.comparison.summary import summary_text
from ditlab.reports.comparison.tables import budget_parts, component_table, quality_parts, runs_tables, spec_table
from ditlab.reports.page import Page, write_html, write_markdown
from ditlab.reports.parts import ImageFile, Paragraphs, Section
from ditlab.reports.rendering.render import save_figure


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write `comparison.html`, `comparison.md` and their pictures into `folder`; return all files, the page first.

    Raises OSError where the disk refuses.
    """
    curves = _curves(comparison, folder)
    samples, pictures = _samples(comparison, folder)
    sections = [
        Section("Runs", runs_tables(comparison)),
        Section("Forks", fork_parts(comparison)),
        Section("Differences of the specs", [spec_table(comparison)]),
        Section("Parameters by component", [component_table(comparison)]),
        Section("Loss curves", curves),
        Section("Equal budgets", budget_parts(comparison)),
        Section("Sampling and quality", quality_parts(comparison)),
        Section("Samples", samples),
    ]
    title = " and ".join([", ".join(comparison.labels[:-1]), comparison.labels[-1]])
    page = Page(title, summary_text(comparison), [section for section in sections if section.parts])
    return [
        write_html(page, folder / "comparison.html"),
        write_markdown(page, folder / "comparison.md"),
        *(part.path for part in curves if isinstance(part, ImageFile)),
        *pictures,
    ]


def _curves(comparison: Comparison, folder: Path) -> list[Paragraphs | ImageFile]:
    parts: list[Paragraphs | ImageFile] = []
    without = [comparison.label(run) for run in comparison.runs if TRAIN_LOSS not in run.curves]
    if without:
        parts.append(Paragraphs(f"Without training metrics in the journal: {', '.join(without)}."))
    if len(without) < len(comparison.runs):
        caption = (
            "Training loss over steps, samples seen and training time. Pale: as logged. Strong: running median over "
            f"1/{WINDOWS} of the run's points."
        )
        if not comparison.has_one_objective:
            caption += " The runs' objectives differ: heights of these curves are not comparable."
        row = _row(comparison, TRAIN_LOSS, "training loss", is_noisy=True)
        parts.append(ImageFile(draw_curves([row], comparison.labels, folder / "training-loss.png"), caption))
    if not comparison.common:
        return [*parts, Paragraphs(f"No held-out curves: {comparison.obstacle}.")]
    note = f" Not comparable: {comparison.obstacle}." if comparison.obstacle else ""
    # of a part of a mixture (`NAME/velocity`), the main metric alone: the table has all of them
    shown = [name for name in comparison.common if "/" not in name or name.endswith(f"/{comparison.main}")]
    first, *others = [_row(comparison, f"{HELD_OUT}{name}", f"held-out {name}") for name in shown]
    path = draw_curves([first], comparison.labels, folder / f"held-out-{_file_name(comparison.common[0])}.png")
    parts.append(ImageFile(path, f"Held-out {comparison.common[0]} during training.{note}"))
    if others:
        path = draw_curves(others, comparison.labels, folder / "held-out-others.png")
        parts.append(ImageFile(path, f"The other held-out metrics that the runs have in common.{note}"))
    return parts


def _row(comparison: Comparison, name: str, title: str, is_noisy: bool = False) -> MetricRow:
    curves = {place: run.curves[name] for place, run in enumerate(comparison.runs) if name in run.curves}
    return MetricRow(title, curves, is_noisy)


def _file_name(name: str) -> str:
    """Turn a metric's name into part of a file name."""
    return "".join(character if character.isalnum() or character in "._" else "-" for character in name)


def _samples(comparison: Comparison, folder: Path) -> tuple[list[Paragraphs | ImageFile], list[Path]]:
    """Write a picture a run, and one of all runs where they fit; return the page's parts and all pictures."""
    grids = [(run, run.drawn.grid) for run in comparison.runs if run.drawn and run.drawn.grid]
    reasons = [f"{comparison.label(run)}: {run.why_no_samples}." for run in comparison.runs if run.why_no_samples]
    notes = [Paragraphs("No samples. " + " ".join(reasons))] if reasons else []
    single = [
        ImageFile(save_figure(grid, folder / f"samples-{run.run_id}.png"), comparison.label(run)) for run, grid in grids
    ]
    together = side_by_side([(comparison.label(run), grid) for run, grid in grids])
    files = [picture.path for picture in single]
    if together is None:
        return [*single, *notes], files
    caption = (
        f"Drawn with seed {comparison.seed}: runs of one sample shape begin with the same noise, sample by sample."
    )
    path = save_figure(together, folder / "samples.png")
    return [ImageFile(path, caption), *notes], [path, *files]
