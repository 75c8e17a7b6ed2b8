"""`ditlab sample`."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli.common import building, emit, json_option, run_argument, set_option, writing

if TYPE_CHECKING:
    from denoisers.contract import Prompt, SampleRequest


@click.command()
@run_argument
@click.option(
    "--num",
    type=click.IntRange(min=1),
    help="How many [default: 64; all rows that `sampling` chooses, as those that meet a BED file].",
)
@click.option("--solver", help="Solver, by the family's name for it: euler, heun, midpoint, rk4.")
@click.option("--steps", type=int, help="Solver steps.")
@click.option("--guidance", type=float, help="Classifier-free guidance scale; 1 is the conditional model as it is.")
@click.option("--label", type=int, help="Class to draw; default: every class in turn.")
@click.option("--prompt", help="Text that every sample begins with; the model writes the rest.")
@click.option(
    "--prompt-at",
    "placed",
    type=(int, str),
    multiple=True,
    metavar="TOKEN TEXT",
    help="Text that every sample holds from this token on (negative: counted from the end). Repeatable: the model "
    "fills in what lies before, between and behind.",
)
@click.option("--seed", type=int, help="Default: the run's seed, which gives the pictures of its evaluations.")
@click.option("--trajectory", is_flag=True, help="Keep every solver step, and show how noise becomes data.")
@click.option(
    "--data",
    "choice",
    metavar="WHICH",
    help="For families that complete real rows: those of `held_out` (default), `train`, or of a store, by "
    "folder or name.",
)
@click.option(
    "--batch",
    default=256,
    show_default=True,
    type=click.IntRange(min=1),
    help="Samples at once; lower it where memory is short.",
)
@set_option
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the files; default: in the run's folder.")
@json_option
def sample(
    run: str,
    num: int | None,
    solver: str | None,
    steps: int | None,
    guidance: float | None,
    label: int | None,
    prompt: str | None,
    placed: tuple[tuple[int, str], ...],
    seed: int | None,
    trajectory: bool,
    choice: str | None,
    batch: int,
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Draw samples from RUN's weights (their average where there is one). RUN is an id, a prefix of one, or a name.

    A family that completes real rows fills in what is hidden of them, and writes the completed rows as a table,
    imputed.parquet, as well; one that writes text, samples.txt. `--set sampling.KEY=VALUE` reaches every sampling
    setting of a family.
    """
    import torch
    from safetensors.torch import save_file

    from denoisers.contract import SampleRequest
    from ditlab.cli.sample_rows import chosen_rows, say_which, scales
    from ditlab.cli.saved import default_device, open_run, output_folder
    from ditlab.errors import UserError
    from ditlab.reports.tables import save_table
    from ditlab.reports.text_file import save_text
    from ditlab.training.drawing import draw_samples
    from ditlab.training.noise import derived_seed
    from ditlab.training.rows import conditions_of

    saved = open_run(run)
    from ditlab.reports.render import save  # matplotlib fills its cache below DITLAB_HOME: not for an unknown run

    experiment = saved.experiment(_changes({"solver": solver, "steps": steps, "guidance": guidance}, overrides))
    device = default_device()
    seed = experiment.seed if seed is None else seed
    with building():
        sampler: Any = experiment.sampling.build(experiment.model, experiment.objective, saved.text())
    fields = experiment.batch_fields()
    if choice is not None and sampler.takes_rows != "completed":
        raise UserError(
            f"--data {choice}: this run's family draws from noise alone and completes no rows; leave it out."
        )
    view = chosen_rows(saved, fields, choice) if sampler.takes_rows == "completed" else None
    asked = SampleRequest(label, _prompts(prompt, placed))
    conditions = conditions_of(sampler, num, view, fields, asked)
    if view is not None:
        say_which(sampler, num, conditions, view, fields)
    network = saved.network(device)
    generator = torch.Generator(device).manual_seed(derived_seed(seed, "samples"))
    drawn = draw_samples(sampler, network, conditions.tensors, conditions.num, generator, batch, trajectory)
    name = _folder_name(saved.step, experiment.to_dict()["sampling"], choice, asked, seed)
    folder = output_folder(out or saved.folder.path / "samples" / name)
    tensors = {"values": drawn.values, **drawn.conditions}
    if drawn.trajectory is not None:
        tensors["trajectory"] = drawn.trajectory
    numbers = folder / "samples.safetensors"
    with writing(folder):
        save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, numbers)
        figure = sampler.show(drawn)
        files = [save(figure, folder / "samples.png"), numbers]
        files += filter(None, [save_text(figure, folder / "samples.txt")])
        if view is not None:
            table = sampler.table(drawn, conditions.rows)
            files.append(save_table(table, folder / "imputed.parquet", scales(view, fields)))
        if trajectory:
            files.append(save(_film(sampler, drawn), folder / "trajectory.gif"))
    for file in files:
        click.echo(file, err=as_json)
    emit({"run_id": saved.folder.run_id, "step": saved.step, "files": [str(file) for file in files]}, as_json)


def _changes(given: Mapping[str, Any], overrides: Sequence[str]) -> list[Any]:
    """What the command line says of `sampling`. Raises UserError for an override of anything else."""
    from ditlab.errors import UserError
    from ditlab.spec.overrides import Assignment, parse_overrides

    changes = [
        Assignment(f"sampling.{name}", value, f"--{name} {value}") for name, value in given.items() if value is not None
    ]
    for change in parse_overrides(overrides):
        if change.keys[0] != "sampling" or len(change.keys) < 2:
            raise UserError(f"{change.source}: a finished run takes sampling settings alone: --set sampling.KEY=VALUE.")
        changes.append(change)
    return changes


def _prompts(prompt: str | None, placed: Sequence[tuple[int, str]]) -> "list[Prompt]":
    from denoisers.contract import Prompt

    return [*([] if prompt is None else [Prompt(prompt)]), *(Prompt(text, position) for position, text in placed)]


def _folder_name(step: int, sampling: Mapping[str, Any], choice: str | None, asked: "SampleRequest", seed: int) -> str:
    """`step400-euler-50-1.0-seed0`: what the samples depend on; of long values, paths among them, the end."""
    from ditlab.tracking.parameters import flatten

    parts = [f"step{step}", *flatten(sampling).values(), *filter(None, [choice])]
    parts += [] if asked.label is None else [f"label{asked.label}"]
    if asked.prompts:
        parts += ["prompt" + hashlib.sha256(repr(list(asked.prompts)).encode()).hexdigest()[:8]]
    parts += [f"seed{seed}"]
    return "-".join(re.sub(r"[^\w.+-]+", "_", part)[-40:] for part in parts)


def _film(sampler: Any, drawn: Any) -> Any:
    """An animation of the samples as they form, at most 26 frames of it."""
    from denoisers.contract import Samples
    from denoisers.figures import Figure

    frames = drawn.trajectory
    picked = sorted({round(i * (len(frames) - 1) / 25) for i in range(26)})
    shown = [sampler.show(Samples(frames[index], drawn.conditions)) for index in picked]
    return Figure(panels=shown[-1].panels, columns=shown[-1].columns, frames=[*shown, *[shown[-1]] * 5])
