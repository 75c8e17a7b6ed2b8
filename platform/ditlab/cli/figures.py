"""`ditlab figures`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli.common import building, emit, json_option, say, writing

if TYPE_CHECKING:
    from denoisers.figures import Figure

Makers = dict[str, Callable[[], "Figure | None"]]


@click.command()
@click.argument("run", required=False)
@click.option("--kind", "kinds", multiple=True, help="Only this kind (repeatable); --list names them.")
@click.option("--list", "only_list", is_flag=True, help="Name the kinds and draw nothing.")
@click.option("--seed", default=0, show_default=True, help="Of the samples in them.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the pictures (default: figures/, or the run's)."
)
@json_option
def figures(
    run: str | None, kinds: tuple[str, ...], only_list: bool, seed: int, out: Path | None, as_json: bool
) -> None:
    """Draw the pictures of RUN's family from its trained weights, and log them to the run.

    Without RUN: those that need no weights (embeddings, schedules, each family's fixed tables).
    """
    from ditlab.analysis.saved_run import open_run, output_folder
    from ditlab.errors import UserError, nearest

    saved = open_run(run) if run else None
    from ditlab.reports.rendering.render import (
        save,  # matplotlib fills its cache below DITLAB_HOME: not for an unknown run
    )

    makers = _run_figures(saved, seed) if saved else _free_figures()
    if only_list:
        for kind in makers:
            click.echo(kind, err=as_json)
        emit({"kinds": list(makers)}, as_json)
        return
    for kind in kinds:
        if kind not in makers:
            raise UserError(
                f"--kind {kind} is unknown {'for this run' if saved else 'without a run'}; "
                f"{nearest(kind, list(makers))}"
            )
    folder = output_folder(out or (saved.folder.media / "figures" if saved else Path("figures")))
    files = []
    for kind in kinds or makers:
        figure = makers[kind]()
        if figure is None:
            if kinds:
                raise UserError(f"--kind {kind}: run {run} has nothing to draw it from; leave it out.")
            say(f"no {kind}: the run has nothing to draw it from.")
            continue
        with writing(folder):
            files.append(save(figure, folder / f"{kind}{'.gif' if figure.frames else '.png'}"))
        click.echo(files[-1], err=as_json)
    if saved:
        with saved.tracker() as tracker:
            for file in files:
                tracker.log_artifact(file, "figures")
        say(f"logged {len(files)} figures to run {saved.folder.run_id}")
    emit({"files": [str(file) for file in files]}, as_json)


def _done(figure: "Figure") -> "Figure":
    return figure


def _free_figures() -> Makers:
    from denoisers.families import families
    from denoisers.layers.embedding_figures import embedding_figures
    from ditlab.reports.schedules import schedules_figure
    from ditlab.training.schedules import learning_rate

    makers: Makers = {f"embeddings-{kind}": partial(_done, figure) for kind, figure in embedding_figures().items()}
    makers["schedules"] = lambda: schedules_figure(learning_rate)
    for family in families().values():
        for kind, figure in family.static_figures(family.model()).items():
            makers[f"{family.name}-{kind}"] = partial(_done, figure)
    return makers


def _run_figures(saved: Any, seed: int) -> Makers:
    import torch

    from ditlab.analysis.saved_run import default_device
    from ditlab.inputs.noise import derived_seed
    from ditlab.reports.curves import loss_figure
    from ditlab.reports.schedules import schedule_figure
    from ditlab.tracking.journal.history import metric_history
    from ditlab.training.plan import plan_run
    from ditlab.training.schedules import learning_rate

    experiment, device = saved.experiment(), default_device()
    with building():
        objective: Any = saved.objective(device, saved.text())
    parts: dict[str, Any] = {}

    def trained(kind: str) -> "Figure":
        if not parts:
            parts["network"], parts["batch"] = saved.network(device), saved.batch(64, device)
            parts["sampler"] = experiment.family.build_sampler(experiment.sampling, experiment.model, experiment.objective, saved.text())
        generator = torch.Generator(device).manual_seed(derived_seed(seed, "figures"))
        return next(iter(objective.figures(**parts, generator=generator, kinds=[kind])))[1]

    def loss() -> "Figure | None":
        history = metric_history(saved.folder)
        return loss_figure(history) if "train/loss" in history else None

    def schedule() -> "Figure":
        plan = plan_run(experiment, saved.data())
        return schedule_figure(
            lambda step: learning_rate(
                experiment.schedule, experiment.optimizer.lr, step, plan.total_steps, plan.epoch_steps
            ),
            plan.total_steps,
        )

    makers: Makers = {kind: partial(trained, kind) for kind in objective.figure_kinds()}
    for kind, figure in experiment.family.static_figures(experiment.model).items():
        makers.setdefault(kind, partial(_done, figure))
    makers["loss"] = loss
    makers["schedule"] = schedule
    return makers
