"""Commands that use a run's weights: `ditlab sample`, `evaluate`, `figures`, `export`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.analysis.sample_options import SAMPLES_PER_PROMPT, STRENGTH
from ditlab.cli import options, output
from ditlab.errors import UserError
from ditlab.parts import OWN_FORMATS

if TYPE_CHECKING:
    from ditlab.analysis.figures import FigureSet
    from ditlab.api.run import Run
    from ditlab.cli.progress import ProgressBars


@click.command()
@options.run
@click.option(
    "--num",
    type=click.IntRange(min=1),
    help=(
        "Number of samples; with several prompts, of each [default: 64, or "
        f"{SAMPLES_PER_PROMPT} of each prompt; all rows that `sampling` selects, such as those "
        "that overlap a BED file]."
    ),
)
@click.option(
    "--solver",
    help="Solver by its name in the family, such as heun, ddim, analytic; a wrong one lists all.",
)
@click.option("--steps", type=int, help="Solver steps.")
@click.option(
    "--guidance",
    type=float,
    help="Classifier-free guidance scale; 1 is the conditional model as it is.",
)
@click.option(
    "--label",
    metavar="CLASS",
    help="Class of every sample: its number, or its name where the run's data have names "
    "(`data import images --label-from folder`) [default: every class in turn].",
)
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    metavar="TEXT",
    help=(
        "Text to images: description of a sample; repeatable. Language models: the beginning "
        "of every sample; the model writes the rest."
    ),
)
@click.option(
    "--prompts",
    "prompt_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Text to images: a UTF-8 file with a prompt in every line; empty lines are skipped.",
)
@click.option(
    "--negative-prompt",
    metavar="TEXT",
    help="Text to images: prompt that guidance leads away from.",
)
@click.option(
    "--prompt-at",
    "placed",
    type=(int, str),
    multiple=True,
    metavar="TOKEN TEXT",
    help=(
        "Text that every sample holds from this token on (negative: counted from the end). "
        "Repeatable: the model fills in what lies before, between and behind."
    ),
)
@click.option(
    "--size",
    metavar="HxW",
    help="Text to images: height and width in pixels, or one number for both.",
)
@click.option(
    "--start",
    type=click.Path(path_type=Path),
    metavar="IMAGE",
    help=(
        "Text to images: an image to start from, scaled and cropped around its centre to the size."
    ),
)
@click.option(
    "--strength",
    type=float,
    metavar="FRACTION",
    help=(
        "Fraction of --start that is drawn again: 1 is all of it, near 0 nothing [default: "
        f"{STRENGTH}]."
    ),
)
@click.option(
    "--seed",
    type=int,
    help=(
        "Seed of the first sample (of each prompt, where each has samples of its own; the next "
        "ones count up). Default: the run's seed, which gives the pictures of its evaluations."
    ),
)
@click.option(
    "--trajectory", is_flag=True, help="Keep every solver step, and animate how noise becomes data."
)
@click.option(
    "--data",
    metavar="ROWS",
    help=(
        "For families that complete real rows: `held_out` (default), `train`, or a store by "
        "folder or name."
    ),
)
@options.batch(256)
@click.option(
    "--compile",
    is_flag=True,
    help=(
        "Compile the network's blocks first, for some seconds to a minute: faster passes, "
        "whose samples differ by rounding."
    ),
)
@options.ema
@options.overrides
@click.option(
    "--out",
    type=options.NewPath(path_type=Path),
    help=(
        "Folder for the files; default: in the run's folder. FILE.npz: images alone, as ADM "
        "writes them."
    ),
)
@options.anyway
@options.as_json
def sample(
    run: str, num: int | None, out: Path | None, anyway: bool, as_json: bool, **settings: Any
) -> None:
    """Draw samples from RUN's weights (their average where there is one). RUN is an id, a prefix of
    one, or a name.

    A family that completes real rows fills in the hidden parts, and writes the completed rows as a
    table, imputed.parquet, as well; one that writes text, samples.txt; one that draws from text, a
    PNG for each sample, which holds its prompt, its seed and the settings. `--set
    sampling.KEY=VALUE` reaches every sampling setting of a family, and `--set encoders.text=FOLDER`
    says where the text encoder is.
    """
    # Before torch allocates: faults of tensors too large to be kept (`kept_memory`) were 7% of
    # uncompiled passes.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    from ditlab.reports.formatting import format_duration, shorten
    from ditlab.runs.cores import thread_text

    with options.opened_run(run, anyway) as (opened, progress):
        drawn = opened.sample(num, **settings)
        progress.stage("writing the files")
        files = drawn.save(out)
        completed = drawn.table
    for line in output.first_text_lines(drawn.texts):
        output.print_line(line, as_json)
    if completed:
        names = ", ".join(completed)
        rows = len(next(iter(completed.values())))
        output.print_line(
            shorten(f"{rows:,} completed rows of {names}", output.MOST_COLUMNS), as_json
        )
    threads = f", {thread_text(drawn.threads)}" if drawn.threads else ""
    plural = "" if len(drawn) == 1 else "s"
    output.say(
        f"{len(drawn):,} sample{plural} of step {drawn.step:,}: "
        f"{format_duration(drawn.seconds)}{threads}"
    )
    if drawn.num_not_finite:
        output.say(
            f"warning: {drawn.num_not_finite:,} of {len(drawn):,} samples hold values that are not "
            "finite (NaN): such pixels are magenta."
        )
    result = {
        "run_id": opened.id,
        "step": drawn.step,
        "not_finite": drawn.num_not_finite,
        "files": [str(file) for file in files],
    }
    output.emit(result, as_json, files)
    output.hint(as_json, "evaluate", opened.id)


class SampleNumber(click.IntRange):
    """Number of samples whose quality is measured, of a range; 0 for none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert as an integer of the range, or 0."""
        if str(value) == "0":
            return 0
        return int(super().convert(value, param, ctx))


@click.command()
@options.run
@options.batch(None)
@click.option(
    "--quality",
    metavar="NUM",
    type=SampleNumber(100, 50_000),
    help=(
        "Draw NUM samples (100 to 50000) and measure their quality, `quality/...`, added to "
        "the run where training measured as many, or none [default: as many as in training; 0 "
        "for none]: distances to the real images on features of DiTLab's own classifier of "
        "this data set, which cannot be compared with published FID; FID and others by the "
        "networks that evaluation.features names; and, for captions, the share of samples that "
        "a classifier assigns to the classes of their captions."
    ),
)
@click.option(
    "--rows",
    metavar="N",
    type=click.IntRange(min=1),
    help=(
        "Only the first N held-out samples; nothing is added to the run. Baselines are still "
        "fitted on all training samples."
    ),
)
@click.option(
    "--ema",
    "averages",
    metavar="LENGTHS",
    help=(
        "Relative lengths of averages, such as 0.05,0.1,0.2, rebuilt from those that "
        "`training.averages` has kept: a table of the metrics of each; nothing is added to the "
        "run. decay=0.999 is an exponential one, approximately."
    ),
)
@click.option(
    "--data",
    metavar="ROWS",
    help=(
        "Rows in place of the held-out ones: `train`, or all of a store, by folder or name (a "
        "bound on other text, a cell type or chromosome of another store); nothing is added to "
        "the run."
    ),
)
@options.overrides
@options.anyway
@options.as_json
def evaluate(
    run: str,
    batch: int | None,
    quality: int | None,
    rows: int | None,
    averages: str | None,
    data: str | None,
    overrides: tuple[str, ...],
    anyway: bool,
    as_json: bool,
) -> None:
    """Measure RUN's averaged weights as training does, and over all held-out samples; add the
    metrics to the run.

    `eval/...` and `quality/...` are training's numbers, to the bit on the same kind of device; what
    differs otherwise (`--batch`) is named, and nothing of that group is added. `held_out/...` are
    of all held-out samples, where training measures fewer.

    A family with an evaluator of its own (imputation, or text, beside simple baselines) adds
    `assessed/...`, and figures and tables under `assessment/`. With `--set sampling.KEY=VALUE` only
    the quality of samples under these settings is measured, of text with `--set
    evaluation.scorer.model=FOLDER` its perplexity under that language model too; `--set
    encoders.KEY=PLACE` says where the run's encoders are now. With either, nothing is added to the
    run.
    """
    settings: dict[str, Any] = {
        "quality": quality,
        "rows": rows,
        "batch": batch,
        "overrides": overrides,
    }
    if averages is not None and data is not None:
        raise UserError(f"--data {data} is not taken with --ema; leave one of them out.")
    if averages is not None:
        with options.opened_run(run, anyway) as (opened, _):
            from ditlab.analysis.averages import averages_table
            from ditlab.api.analysis import evaluate_averages

            by_length = evaluate_averages(opened, *averages.split(","), **settings)
        output.console(as_json).print(averages_table(by_length))
        listed = [{"profile": label, "metrics": each.metrics} for label, each in by_length.items()]
        output.emit({"run_id": opened.id, "averages": listed}, as_json)
        output.hint(as_json, "figures", opened.id)
        return
    with options.opened_run(run, anyway) as (opened, _):
        found = opened.evaluate(**settings, data=data)
    output.console(as_json).print(*found.terminal_tables())
    if found.num_unsent is not None:
        output.say_delivery("metrics", found.run_id, found.num_unsent)
    output.emit(found.to_dict(), as_json, found.files)
    output.hint(as_json, "figures", found.run_id)


@click.command()
@click.argument("run", required=False)
@click.option(
    "--kind", "kinds", multiple=True, help="Only this kind (repeatable); --list names them."
)
@click.option("--list", "only_list", is_flag=True, help="List the kinds and draw nothing.")
@click.option("--seed", default=0, show_default=True, help="Seed of the samples in the figures.")
@click.option(
    "--out",
    type=options.NewPath(path_type=Path),
    help=(
        "Folder for the pictures (default: in the run's folder; without RUN, figures/ below "
        "DITLAB_HOME)."
    ),
)
@click.option(
    "--format",
    "formats",
    type=click.Choice(["png", "svg", "pdf"]),
    multiple=True,
    default=("png", "svg"),
    help="File format (repeatable; default: png and svg). An animation's png is a GIF and a still.",
)
@options.as_json
def figures(
    run: str | None,
    kinds: tuple[str, ...],
    only_list: bool,
    seed: int,
    out: Path | None,
    formats: tuple[Any, ...],
    as_json: bool,
) -> None:
    """Draw the figures of RUN's family from its trained weights, and log them (as PNG) to the run.

    Without RUN: figures that need no weights (embeddings, schedules, each family's fixed tables).
    """
    from ditlab.cli.progress import ProgressBars

    opened: Run | None = None
    files: list[Path] = []
    num_unsent: int | None = None
    with ProgressBars("loading PyTorch") as progress:
        from ditlab.api.analysis import figures as general_figures
        from ditlab.api.run import open_run

        if run:
            progress.stage("opening the run")
            opened = open_run(run, warn=progress.say, on_progress=progress)
            if not only_list:
                opened.home.check_place()
            found = opened.figures(seed)
        else:
            progress.stage("preparing the figures")
            found = general_figures()
        found.check(kinds)
        if not only_list:
            files = _draw_kinds(run, found, kinds, formats, out, progress, as_json)
        if opened:
            num_unsent = _log_pictures(opened, files, progress, is_on_page=out is None)
    own = [opened.id] if opened else []
    if only_list:
        for kind in found.kinds:
            output.print_line(kind, as_json)
        output.emit({"kinds": found.kinds}, as_json)
        output.hint(as_json, "figures", *own, "--kind", found.kinds[0])
        return
    if opened and num_unsent is not None:
        output.say_delivery("figures", opened.id, num_unsent)
    output.emit({"files": [str(file) for file in files]}, as_json)
    if opened:
        place = output.relative(opened.home.root / "exports" / opened.id)
        output.hint(as_json, "export", *own, "--out", place)
    else:
        output.hint(as_json, "runs")


def _draw_kinds(
    run: str | None,
    found: FigureSet,
    kinds: tuple[str, ...],
    formats: tuple[Any, ...],
    out: Path | None,
    progress: ProgressBars,
    as_json: bool,
) -> list[Path]:
    """Draw figures of these kinds (none named: of all), and print and return their files.

    Raises UserError for a named kind that the run has nothing to draw from.
    """
    from ditlab.runs.cores import computing_beside_others

    files: list[Path] = []
    chosen = kinds or found.kinds
    with computing_beside_others(progress.say):
        for number, kind in enumerate(chosen):
            progress("drawing figures", number, len(chosen), "figures")
            drawn = found.save_formats(kind, out, formats)
            files += drawn
            for file in drawn:
                output.print_line(file, as_json)
            if drawn:
                continue
            if kinds:
                raise UserError(
                    f"--kind {kind}: run {run} has nothing to draw it from; leave it out."
                )
            progress.say(f"no {kind}: the run has nothing to draw it from.")
    return files


def _log_pictures(
    opened: Run, files: list[Path], progress: ProgressBars, is_on_page: bool
) -> int | None:
    """Log pictures to a run, and renew its page where they are on it. Return how many of the run's
    records wait for MLflow; None without pictures.
    """
    from ditlab.api.pages import log_files, renew_report

    pictures = [file for file in files if file.suffix in (".png", ".gif")]
    if not pictures:
        return None
    progress.stage("sending the figures to MLflow")
    num_unsent = log_files(opened.home, opened.folder, pictures, opened.warn, "figures")
    if is_on_page:
        progress.stage("renewing the run's page")
        renew_report(opened.home, opened.folder, opened.warn)
    return num_unsent


@click.command()
@options.run
@click.option(
    "--out", required=True, type=options.NewPath(path_type=Path), help="Folder for the files."
)
@click.option("--raw", is_flag=True, help="The weights themselves instead of their moving average.")
@options.ema
@options.export_format
@options.as_json
def export(
    run: str,
    out: Path,
    raw: bool,
    ema: str | None,
    form: str,
    as_json: bool,
) -> None:
    """Write RUN's weights as safetensors, with the spec that rebuilds the network, and its
    tokeniser if it has one.

    Adapters are merged into the weights. docs/locked_in.md has each way out of DiTLab in a few
    lines.
    """
    with options.opened_run(run) as (opened, progress):
        progress.stage("writing the weights")
        exported = opened.export(out, averaged=not raw, ema=ema, format=form)
    output.emit(exported.to_dict(), as_json, exported.files)
    if form not in OWN_FORMATS:
        output.hint_text(as_json, f"hf upload OWNER/NAME {output.short_path(exported.folder)}")
        return
    folder = str(output.relative(exported.folder))
    code = f"import ditlab; print(ditlab.load_export({folder!r}).network)"
    quoted = f'"{code}"'  # as one types it
    if set(code) & set('"$`\\!'):
        quoted = shlex.quote(code)
    program = output.short_path(Path(sys.executable))
    found = shutil.which("python")
    if found and Path(found).samefile(sys.executable):
        program = "python"
    output.hint_text(as_json, f"{program} -c {quoted}")
