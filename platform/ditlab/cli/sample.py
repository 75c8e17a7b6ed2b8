"""`ditlab sample`."""

from pathlib import Path
from typing import Any

import click

from ditlab.cli.common import emit, json_option, run_argument, writing

CHUNK = 256  # samples drawn at once


@click.command()
@run_argument
@click.option("--num", default=64, show_default=True, type=click.IntRange(min=1), help="How many.")
@click.option("--solver", help="Solver, by the family's name for it: euler, heun, midpoint, rk4.")
@click.option("--steps", type=int, help="Solver steps.")
@click.option("--guidance", type=float, help="Classifier-free guidance scale; 1 is the conditional model as it is.")
@click.option("--label", type=int, help="Class to draw; default: every class in turn.")
@click.option("--seed", type=int, help="Default: the run's seed, which gives the pictures of its evaluations.")
@click.option("--trajectory", is_flag=True, help="Keep every solver step, and show how noise becomes data.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the files; default: in the run's folder.")
@json_option
def sample(
    run: str,
    num: int,
    solver: str | None,
    steps: int | None,
    guidance: float | None,
    label: int | None,
    seed: int | None,
    trajectory: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Draw samples from RUN's weights (their average where there is one). RUN is an id, a prefix of one, or a name."""
    import torch
    from safetensors.torch import save_file

    from ditlab.cli.saved import default_device, open_run, output_folder
    from ditlab.errors import UserError
    from ditlab.training.drawing import draw_samples
    from ditlab.training.noise import derived_seed

    saved = open_run(run)
    from ditlab.reports.render import save  # matplotlib fills its cache below DITLAB_HOME: not for an unknown run

    given = {"solver": solver, "steps": steps, "guidance": guidance}
    experiment = saved.experiment({name: value for name, value in given.items() if value is not None})
    device = default_device()
    seed = experiment.seed if seed is None else seed
    try:
        sampler: Any = experiment.sampling.build(experiment.model, experiment.objective)
        conditions = sampler.conditions(num, label)
    except ValueError as error:
        raise UserError(str(error)) from error
    network = saved.network(device)
    generator = torch.Generator(device).manual_seed(derived_seed(seed, "samples"))
    drawn = draw_samples(sampler, network, conditions, num, generator, CHUNK, trajectory)
    settings = "-".join(
        str(value) for value in experiment.sampling.model_dump().values() if not isinstance(value, dict)
    )
    of_class = "" if label is None else f"-label{label}"
    name = f"step{saved.step}-{settings}{of_class}-seed{seed}"
    folder = output_folder(out or saved.folder.path / "samples" / name)
    tensors = {"values": drawn.values, **drawn.conditions}
    if drawn.trajectory is not None:
        tensors["trajectory"] = drawn.trajectory
    numbers = folder / "samples.safetensors"
    with writing(folder):
        save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, numbers)
        files = [save(sampler.show(drawn), folder / "samples.png"), numbers]
        if trajectory:
            files.append(save(_film(sampler, drawn), folder / "trajectory.gif"))
    for file in files:
        click.echo(file, err=as_json)
    emit({"run_id": saved.folder.run_id, "step": saved.step, "files": [str(file) for file in files]}, as_json)


def _film(sampler: Any, drawn: Any) -> Any:
    """An animation of the samples as they form, at most 26 frames of it."""
    from denoisers.contract import Samples
    from denoisers.figures import Figure

    frames = drawn.trajectory
    picked = sorted({round(i * (len(frames) - 1) / 25) for i in range(26)})
    shown = [sampler.show(Samples(frames[index], drawn.conditions)) for index in picked]
    return Figure(panels=shown[-1].panels, columns=shown[-1].columns, frames=[*shown, *[shown[-1]] * 5])
