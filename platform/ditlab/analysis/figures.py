"""Figures of a run's family from trained weights, and figures that need no run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ditlab.analysis.opened_run import SavedRun, default_device
from ditlab.analysis.plot import Plot
from ditlab.analysis.user_errors import output_folder, writing
from ditlab.errors import UserError, nearest
from ditlab.home import Home
from ditlab.inputs.noise import derived_seed
from ditlab.reports.figures import loss_figure, parameters_figure, schedule_figure, schedules_figure
from ditlab.reports.rendering.render import PictureFormat, save_formats
from ditlab.runs.cores import computing_beside_others
from ditlab.tracking.history import metric_history
from ditlab.training.plan import learning_rate, plan_run, planned_rate
from ditlab_models.contract import ModelSpec
from ditlab_models.families import families
from ditlab_models.figure_kinds.embeddings import embedding_figures
from ditlab_models.figures import Figure
from ditlab_models.parameters import count_parameters

_log = logging.getLogger("ditlab")
Maker = Figure | Callable[[], Figure | None]
"""A figure, or a function that draws it; None where the run has nothing to draw it from."""


@dataclass(frozen=True)
class FigureSet:
    """Figures by kind, each drawn on request."""

    makers: Mapping[str, Maker]
    source: str
    """The end of an error's first clause: `for this run`."""
    folder: Path
    """Default folder of `save`."""

    @property
    def kinds(self) -> list[str]:
        """The kinds of figures."""
        return list(self.makers)

    def check(self, kinds: Sequence[str]) -> None:
        """Raise UserError for a kind that does not exist."""
        for kind in kinds:
            if kind not in self.makers:
                raise UserError(
                    f"--kind {kind} is unknown {self.source}; {nearest(kind, self.kinds)}"
                )

    def draw(self, kind: str) -> Plot | None:
        """Draw a figure; None where the run has nothing to draw it from. Raises UserError for an
        unknown kind.
        """
        self.check([kind])
        maker = self.makers[kind]
        figure = maker if isinstance(maker, Figure) else maker()
        return None if figure is None else Plot(figure)

    def save_formats(
        self, kind: str, folder: Path | None = None, formats: Sequence[PictureFormat] = ("png",)
    ) -> list[Path]:
        """Draw a figure and write it in each format: `KIND.png`, `KIND.svg`.

        An animation's `png` is a GIF with a still PNG beside it. Returns the files; none where the
        run has nothing to draw it from. Raises UserError for an unknown kind, and where the disk
        refuses.
        """
        with computing_beside_others(_log.info):  # a caller that draws several says it once
            plot = self.draw(kind)
        place = output_folder(folder or self.folder)
        if plot is None:
            return []
        with writing(place):
            return save_formats(plot.figure, place / kind, formats)


def general_figures() -> FigureSet:
    """Figures that need no run: embeddings, schedules, each family's fixed tables."""
    makers: dict[str, Maker] = {
        f"embeddings-{kind}": figure for kind, figure in embedding_figures().items()
    }
    for family in families().values():
        model = family.model()
        makers |= {
            f"{family.name}-{kind}": figure for kind, figure in family.static_figures(model).items()
        }
        makers[f"{family.name}-parameters"] = partial(_parameters, model)
    makers["schedules"] = lambda: schedules_figure(learning_rate)
    return FigureSet(makers, "without a run", Home.from_environment().root / "figures")


def run_figures(saved: SavedRun, seed: int) -> FigureSet:
    """Figures of a run's family from its trained weights; `seed` is that of the samples in them."""
    experiment = saved.experiment
    device = default_device()
    objective: Any = saved.objective(device, saved.text())
    parts: dict[str, Any] = {}

    def trained(kind: str) -> Figure:
        if not parts:
            parts["network"] = saved.network(device)
            parts["batch"] = saved.batch(64, device)
            parts["sampler"] = saved.inputs(None, device).decoding(saved.sampler(experiment))
        generator = torch.Generator(device).manual_seed(derived_seed(seed, "figures"))
        figure: Figure = next(iter(objective.figures(**parts, generator=generator, kinds=[kind])))[
            1
        ]
        return figure

    def loss() -> Figure | None:
        history = metric_history(saved.folder)
        if "train/loss" in history:
            return loss_figure(history)
        return None

    def schedule() -> Figure:
        plan = plan_run(experiment, saved.data())
        return schedule_figure(partial(planned_rate, experiment, plan), plan.total_steps)

    makers: dict[str, Maker] = {kind: partial(trained, kind) for kind in objective.figure_kinds()}
    for kind, figure in experiment.family.static_figures(experiment.model).items():
        makers.setdefault(kind, figure)
    makers |= {
        "parameters": partial(_parameters, experiment.model),
        "loss": loss,
        "schedule": schedule,
    }
    return FigureSet(makers, "for this run", saved.folder.media / "figures")


def _parameters(model: ModelSpec) -> Figure:
    return parameters_figure(count_parameters(model).components, model.family)
