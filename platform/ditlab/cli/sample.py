"""`ditlab sample`."""

from pathlib import Path
from typing import Any

import click

from ditlab.analysis.sampling.options import SAMPLES_PER_PROMPT, STRENGTH
from ditlab.cli.common import emit, json_option, print_line, run_argument, set_option
from ditlab.cli.hints import hint


@click.command()
@run_argument
@click.option(
    "--num",
    type=click.IntRange(min=1),
    help=f"Number of samples, of each prompt where each has samples of its own [default: 64, or {SAMPLES_PER_PROMPT} "
    "of each prompt; all rows that `sampling` selects, such as those that meet a BED file].",
)
@click.option("--solver", help="Solver, by the family's name for it: euler, heun, midpoint, rk4, dpmpp_2m.")
@click.option("--steps", type=int, help="Solver steps.")
@click.option("--guidance", type=float, help="Classifier-free guidance scale; 1 is the conditional model as it is.")
@click.option(
    "--label", metavar="CLASS", help="Class of every sample: its number, or its name where the run's data have names "
    "(`data import images --label-from folder`) [default: every class in turn]."
)  # fmt: skip
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    metavar="TEXT",
    help="Text to images: description of a sample; repeatable. Language models: the beginning of every sample; the "
    "model writes the rest.",
)
@click.option(
    "--prompts",
    "prompt_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Text to images: a UTF-8 file with a prompt in every line; empty lines are left out.",
)
@click.option("--negative-prompt", metavar="TEXT", help="Text to images: prompt that guidance leads away from.")
@click.option(
    "--prompt-at",
    "placed",
    type=(int, str),
    multiple=True,
    metavar="TOKEN TEXT",
    help="Text that every sample holds from this token on (negative: counted from the end). Repeatable: the model "
    "fills in what lies before, between and behind.",
)
@click.option("--size", metavar="HxW", help="Text to images: height and width in pixels, or one number for both.")
@click.option(
    "--start",
    type=click.Path(path_type=Path),
    metavar="IMAGE",
    help="Text to images: an image to start from, scaled and cropped around its centre to the size.",
)
@click.option(
    "--strength",
    type=float,
    metavar="FRACTION",
    help=f"Fraction of --start that is drawn anew: 1 is all of it, near 0 nothing [default: {STRENGTH}].",
)
@click.option(
    "--seed",
    type=int,
    help="Seed of the first sample (of each prompt, where each has samples of its own; the next ones count up). "
    "Default: the run's seed, which gives the pictures of its evaluations.",
)
@click.option("--trajectory", is_flag=True, help="Keep every solver step, and animate how noise becomes data.")
@click.option(
    "--data",
    metavar="ROWS",
    help="For families that complete real rows: `held_out` (default), `train`, or a store by folder or name.",
)
@click.option(
    "--batch",
    default=256,
    show_default=True,
    type=click.IntRange(min=1),
    help="Samples at once; lower it where memory is short.",
)
@click.option("--ema", metavar="LENGTH", help="An average of this relative length, as in `ditlab evaluate --ema`.")
@set_option
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the files; default: in the run's folder.")
@json_option
def sample(run: str, num: int | None, out: Path | None, as_json: bool, **options: Any) -> None:
    """Draw samples from RUN's weights (their average where there is one). RUN is an id, a prefix of one, or a name.

    A family that completes real rows fills in the hidden parts, and writes the completed rows as a table,
    imputed.parquet, as well; one that writes text, samples.txt; one that draws from text, a PNG for each sample, which
    holds its prompt, its seed and the settings. `--set sampling.KEY=VALUE` reaches every sampling setting of a family,
    and `--set encoders.text=FOLDER` says where the text encoder is.
    """
    from ditlab.cli.progress_bars import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab.interface.run import open_run

        progress.stage("opening the run")
        opened = open_run(run, warn=progress.say, on_progress=progress)
        drawn = opened.sample(num, **options)
        progress.stage("writing the files")
        files = drawn.save(out)
    for file in files:
        print_line(file, as_json)
    emit({"run_id": opened.id, "step": drawn.step, "files": [str(file) for file in files]}, as_json)
    hint(as_json, "evaluate", opened.id)
