"""`ditlab sample`."""

from pathlib import Path
from typing import Any

import click

from ditlab.analysis.sampling.request import (
    SAMPLES_PER_PROMPT,
    Asked,
    folder_name,
    num_samples,
    request_options,
    sample_request,
)
from ditlab.cli.common import building, emit, json_option, run_argument, say, set_option, writing


@click.command()
@run_argument
@click.option(
    "--num",
    type=click.IntRange(min=1),
    help=f"How many, of each prompt where each has samples of its own [default: 64, or {SAMPLES_PER_PROMPT} of each "
    "prompt; all rows that `sampling` chooses, as those that meet a BED file].",
)
@click.option("--solver", help="Solver, by the family's name for it: euler, heun, midpoint, rk4, dpmpp_2m.")
@click.option("--steps", type=int, help="Solver steps.")
@click.option("--guidance", type=float, help="Classifier-free guidance scale; 1 is the conditional model as it is.")
@request_options
@click.option(
    "--seed",
    type=int,
    help="Of the first sample (of each prompt, where each has samples of its own; the "
    "next count on). Default: the run's seed, which gives the pictures of its evaluations.",
)
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
    seed: int | None,
    trajectory: bool,
    choice: str | None,
    batch: int,
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    **words: Any,
) -> None:
    """Draw samples from RUN's weights (their average where there is one). RUN is an id, a prefix of one, or a name.

    A family that completes real rows fills in what is hidden of them, and writes the completed rows as a table,
    imputed.parquet, as well; one that writes text, samples.txt; one that paints from text, a PNG for each sample, which
    holds its prompt, its seed and the settings. `--set sampling.KEY=VALUE` reaches every sampling setting of a family,
    and `--set encoders.text=FOLDER` says where the text encoder is.
    """
    import torch

    from denoisers.batched_sampling import draw_samples
    from ditlab.analysis.sampling.rows import rows_for, say_which, scales
    from ditlab.analysis.sampling.overrides import sampling_changes
    from ditlab.analysis.saved_run import default_device, open_run, output_folder
    from ditlab.inputs.conditions import sample_conditions
    from ditlab.inputs.model_inputs import ModelInputs
    from ditlab.inputs.noise import derived_seed
    from ditlab.reports.tables import save_table

    saved = open_run(run)
    from ditlab.analysis.sampling.files import (
        save_samples,  # matplotlib fills its cache below DITLAB_HOME: not without a run
    )

    experiment = saved.experiment(sampling_changes({"solver": solver, "steps": steps, "guidance": guidance}, overrides))
    device = default_device()
    with building():
        sampler: Any = experiment.family.build_sampler(experiment.sampling, experiment.model, experiment.objective, saved.text())
    asked = Asked(**words)
    request = sample_request(asked, seed, sampler)
    fields = experiment.batch_fields()
    view = rows_for(saved, fields, choice, sampler, request)
    inputs = ModelInputs.from_experiment(experiment, view.columns if view else (), device, say, saved.home)
    conditions = sample_conditions(sampler, num_samples(num, request, sampler), view, inputs, request)
    if view is not None and conditions.rows is not None:
        say_which(sampler, num, conditions, view, fields)
    network = saved.network(device)
    seed = experiment.seed if seed is None else seed
    generator = torch.Generator(device).manual_seed(derived_seed(seed, "samples"))
    drawn = draw_samples(sampler, network, conditions.tensors, conditions.num, generator, batch, trajectory)
    name = folder_name(saved.step, experiment.to_dict()["sampling"], choice, request, seed)
    folder = output_folder(out or saved.folder.path / "samples" / name)
    origin = {"run": saved.folder.run_id, "step": str(saved.step)}
    origin |= {} if asked.start is None else {"start": asked.start.name}
    with writing(folder):
        files = save_samples(sampler, drawn, origin, folder)
        if view is not None and conditions.rows is not None:
            table = sampler.table(drawn, conditions.rows)
            files.append(save_table(table, folder / "imputed.parquet", scales(view, fields)))
    for file in files:
        click.echo(file, err=as_json)
    emit({"run_id": saved.folder.run_id, "step": saved.step, "files": [str(file) for file in files]}, as_json)
