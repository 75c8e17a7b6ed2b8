"""Draw the pictures of docs/images/figures, which the guides to the families show.

    python docs/images/draw.py
        every family, and `general`: what belongs to no family
    python docs/images/draw.py unet general       these alone
    python docs/images/draw.py dit --kind adaln   one kind
    python docs/images/draw.py --untrained        only what needs no weights: a minute
    python docs/images/draw.py --look FOLDER
        and each as it was drawn, for light and dark pages, into FOLDER

Kinds that show weights are drawn from the runs of `RUNS`, in a home of their own, build/figures. A
run that is missing there is trained first, one that was interrupted goes on: a few minutes for
digits, some twenty for each of the others, on one core; dlm and pixelhdm train for fewer steps than
their examples, and dlm as a smaller network. The other kinds show the settings of the families'
defaults. Pictures that are drawn no more are removed, where all kinds of a family were drawn. The
exit code is 1 where a picture is missing, with a line for each.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from io import BytesIO
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
HOME = CHECKOUT / "build" / "figures"
# Read when ditlab is imported. Threads of so small networks wait for each other more than they
# compute.
os.environ |= {"DITLAB_HOME": str(HOME), "DITLAB_FIGURES": "off", "OMP_NUM_THREADS": "1"}

import ditlab
from ditlab.analysis.figures import FigureSet
from ditlab.analysis.plot import Plot
from ditlab.analysis.saved_evaluation import CheckpointEvaluation
from ditlab.reports.rendering.render import png_texts, save_formats, to_svg
from ditlab_models.figures import Bars, Diagram, Figure, Lines, Points

FOLDER = CHECKOUT / "docs" / "images" / "figures"
EXPERIMENTS = CHECKOUT / "experiments"
GENERAL = "general"
_SHORTER = ("training.steps=1500", "checkpoint.every=500", "evaluation.every=500")
_SMALLER = (
    "model.width=96",
    "model.depth=3",
    "model.num_heads=2",
    "model.length=64",
    "data.length=64",
    "training.precision=fp32",
    "engine.compile=false",
)
RUNS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "dit": ("digits/dit_class.yaml", ()),
    "unet": ("digits/unet_class.yaml", ()),
    "region": ("region/small_ddpm.yaml", ()),
    "dlm": ("dlm/small.yaml", (*_SHORTER, *_SMALLER)),
    "pixelhdm": ("pixelhdm/small.yaml", _SHORTER),
}
"""Experiments, below `EXPERIMENTS`, and changes to them, from whose weights a family's kinds are
drawn.
"""
MORE_WITH_WEIGHTS = ("patches",)
"""Kinds that need no weights, but show more with them: drawn from the run."""
EVALUATED: Mapping[str, tuple[int | None, tuple[str, ...]]] = {
    "region": (None, ("r2_by_mask_ratio", "r2_by_motif")),
    "dlm": (None, ("bound",)),
}
"""Samples that a family's evaluation draws, and the kinds of figures that it gives."""
VECTORS = (Bars, Diagram, Lines, Points)
"""Panels of lines and text, which are written as SVG."""
MOST_BYTES = 195_000
"""Largest picture, if few enough colours make it so small."""
COLOURS = (256, 128)

Maker = Callable[[], Figure | None]


def main() -> int:
    """Draw what the command line names; return the exit code."""
    options = _options()
    missing: list[str] = []
    for family in options.families or [GENERAL, *RUNS]:
        makers, problem = figure_makers(family, options.untrained)
        missing += [problem] if problem else []
        chosen = {
            kind: maker
            for kind, maker in makers.items()
            if not options.kind or kind in options.kind
        }
        faults = draw(family, chosen, options.look)
        missing += faults
        if not (options.kind or options.untrained or problem or faults):
            prune(family, makers)
    files = list(FOLDER.iterdir())
    print(
        f"{len(files)} pictures, {sum(file.stat().st_size for file in files) / 2**20:.1f} MiB",
        flush=True,
    )
    for line in missing:
        print(line, file=sys.stderr)
    return 1 if missing else 0


def figure_makers(family: str, untrained: bool) -> tuple[dict[str, Maker], str]:
    """Return functions that draw a family's figures, by kind, and why those of its run are missing
    (or "").
    """
    general = _general_figures()
    prefixes = tuple(f"{name}-" for name in RUNS)
    if family == GENERAL:
        return {
            kind: partial(_figure, general.draw, kind)
            for kind in general.kinds
            if not kind.startswith(prefixes)
        }, ""
    makers: dict[str, Maker] = {
        kind.removeprefix(f"{family}-"): partial(_figure, general.draw, kind)
        for kind in general.kinds
        if kind.startswith(f"{family}-")
    }
    if untrained:
        return makers, ""
    try:
        run = trained_run(family)
    except (ditlab.UserError, ditlab.RunFailed) as error:
        return makers, f"{family}: no figures of weights: {error}"
    figures = run.figures()
    for kind in figures.kinds:
        if kind not in makers or kind in MORE_WITH_WEIGHTS:
            makers[kind] = partial(_figure, figures.draw, kind)
    if family in EVALUATED:
        quality, kinds = EVALUATED[family]
        evaluation = cache(partial(run.evaluate, quality=quality))
        makers |= {kind: partial(_evaluated, evaluation, kind) for kind in kinds}
    return makers, ""


def trained_run(family: str) -> ditlab.Run:
    """Return the newest finished run of the family's experiment, trained first where there is none.

    Raises UserError and RunFailed as `ditlab.train`: where another process trains it, for one.
    """
    experiment, changes = RUNS[family]
    spec = ditlab.load(EXPERIMENTS / experiment, changes)
    for run in ditlab.find_runs(name=spec.name, status="finished"):
        if run.record.spec_hash == spec.content_hash():
            return run
    print(f"{family}: training {spec.name}, {spec.training.steps} steps", flush=True)
    run = ditlab.train(spec, local=True, resume="auto").run
    if run.status != "finished":
        raise ditlab.UserError(
            f"the training of {spec.name} was {run.status} at step {run.step}; start this "
            "script again."
        )
    return run


def draw(family: str, makers: Mapping[str, Maker], look: Path | None) -> list[str]:
    """Draw figures and write them as FAMILY-KIND; return a line for each that is missing."""
    faults = []
    for kind, maker in makers.items():
        start = time.monotonic()
        name = f"{family}-{kind}"
        try:
            figure = maker()
        except Exception as error:  # the other kinds are drawn all the same
            faults.append(f"{name}: {type(error).__name__}: {error}")
            continue
        if figure is None:
            faults.append(f"{name}: the run has nothing to draw it from")
            continue
        path = write(name, figure)
        if look is not None:
            still = Figure(figure.panels, figure.title, figure.columns, alt=figure.alternative_text)
            save_formats(still if figure.panels else figure, look / name)
        print(
            f"{path.name:<44} {path.stat().st_size / 1000:4.0f} kB "
            f"{time.monotonic() - start:6.1f} s",
            flush=True,
        )
    return faults


def write(name: str, figure: Figure) -> Path:
    """Write a figure's still, small: as SVG where it is lines and text, else as PNG with few
    colours.
    """
    content, suffix = small_png(figure), ".png"
    if all(isinstance(panel, VECTORS) for panel in figure.panels) and figure.panels:
        drawing = to_svg(figure).encode()
        if len(drawing) <= MOST_BYTES:
            content, suffix = drawing, ".svg"
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}{suffix}"
    path.write_bytes(content)
    path.with_suffix(".png" if suffix == ".svg" else ".svg").unlink(missing_ok=True)
    return path


def small_png(figure: Figure) -> bytes:
    """Draw a PNG with as many colours as `MOST_BYTES` has room for, and its alternative text."""
    from PIL import Image

    image = Plot(figure).image
    texts = png_texts(figure.title, figure.alternative_text)
    for colours in COLOURS:
        content = BytesIO()
        few = image.quantize(colours, dither=Image.Dither.NONE)
        few.save(content, format="PNG", optimize=True, pnginfo=texts)
        if content.tell() <= MOST_BYTES:
            break
    return content.getvalue()


def prune(family: str, kinds: Collection[str]) -> None:
    """Remove a family's pictures of other kinds, but for those to which a page leads by itself."""
    pages = "\n".join(
        path.read_text(encoding="utf-8") for path in (CHECKOUT / "docs").rglob("*.md")
    )
    for path in FOLDER.glob(f"{family}-*"):
        if (
            path.stem.removeprefix(f"{family}-") not in kinds
            and f"figures/{path.name}" not in pages
        ):
            path.unlink()
            print(f"{path.name} removed", flush=True)


@cache
def _general_figures() -> FigureSet:
    return ditlab.figures()


def _figure(draw_kind: Callable[[str], Plot | None], kind: str) -> Figure | None:
    plot = draw_kind(kind)
    return None if plot is None else plot.figure


def _evaluated(evaluation: Callable[[], CheckpointEvaluation], kind: str) -> Figure:
    return evaluation().plots[kind].figure


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help=f"{', '.join(RUNS)}, {GENERAL}; default: all"
    )
    parser.add_argument("--kind", action="append", help="draw this kind alone; repeatable")
    parser.add_argument("--untrained", action="store_true", help="draw only what needs no weights")
    parser.add_argument(
        "--look",
        type=Path,
        metavar="FOLDER",
        help="write each also as it was drawn, light and dark",
    )
    options = parser.parse_args()
    if unknown := set(options.families) - {GENERAL, *RUNS}:
        parser.error(
            f"{', '.join(sorted(unknown))}: no such family; there are {', '.join([*RUNS, GENERAL])}"
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
