"""A sweep over the samples of a trained run: settings of sampling and averages vary, nothing
trains. Imports no torch.

Every configuration of the space draws from the same seeds of noise, so that differences between
configurations are paired by seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.spec.experiment import Experiment, NamedSpec, class_for
from ditlab.spec.files import (
    build_experiment,
    load_recorded_experiment,
    read_with_parents,
    spec_name,
)
from ditlab.spec.optimization import Count
from ditlab.spec.overrides import Assignment, assign, is_below, parse_overrides, validate
from ditlab.spec.schema import file_schema
from ditlab.spec.sweep import MAX_TRIALS, Mode, assign_to_sweep
from ditlab.spec.sweep_axes import Axis, combinations
from ditlab.spec.sweep_space import axis_problems, written
from ditlab.spec.values import Nonempty, format_value
from ditlab.tracking.records import find_training_run
from ditlab_models.contract import Spec

AVERAGE = "ema"
"""Path of an axis over averages of other lengths: the option of `ditlab sample`."""
SAMPLING = "sampling."
NOT_COMPARED = ("height", "width", "prompts", "negative_prompt", "length", "mask")
"""Fields of `sampling` that change what is drawn: configurations that differ in them are measured
against other data.
"""


class TrainedRun(Spec):
    """The run whose weights draw the samples."""

    run: Nonempty
    """Id of the run, a unique prefix of one, or a run's name."""


class SamplingSweep(NamedSpec):
    """Settings of sampling that vary: samples of one trained run are drawn under each
    configuration, and measured.
    """

    name: str
    """Name of the sweep, for people: letters, digits, `-`, `_`, `.`."""
    base: TrainedRun
    """The trained run: `{run: RUN}`."""
    fixed: dict[str, Any] = Field(default_factory=dict)
    """Settings that all configurations have other than the run: `sampling.solver: heun`,
    `encoders.text: PLACE`, `evaluation.scorer: {model: FOLDER}`."""
    space: Annotated[dict[str, Axis], Field(min_length=1)]
    """Axes by path: fields of `sampling`, and `ema`, the relative length of an average (null: the
    checkpoint's own). All combinations are drawn, so every axis is of kind `grid`, `choice` or
    `int`."""
    metric: str
    """Metric of samples by which configurations are ranked, such as `quality/frechet`."""
    mode: Mode = "min"
    """Direction of the metric: `min` if less is better, `max` if more."""
    samples: Annotated[int, Field(ge=20, le=50_000)] = 500
    """Samples that are drawn and measured for each configuration and seed."""
    seeds: Annotated[int, Field(ge=1, le=1000)] = 5
    """Seeds of the noise of samples, the same for all configurations; from two on there are
    intervals.
    """
    seed: Annotated[int, Field(ge=0, lt=2**60)] = 0
    """First seed, as `ditlab sample --seed` takes it; the next ones are `samples` apart."""
    batch: Count = 256
    """Samples drawn at once; lower it where memory is short."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metric, as other sweeps have several."""
        return (self.metric,)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The mode."""
        return (self.mode,)

    def describe(self) -> str:
        """Phrase on its size: `4 configurations`."""
        return f"{len(self.configurations()):,} configurations"

    def of_run(self, run_id: str) -> SamplingSweep:
        """The sweep with the id of its run in place of a name."""
        return self.model_copy(update={"base": TrainedRun(run=run_id)})

    def noise_seeds(self) -> list[int]:
        """The seeds of `ditlab sample --seed`.

        A text-to-image family draws sample k from the noise of seed + k: seeds that are nearer
        would share it.
        """
        return [self.seed + number * self.samples for number in range(self.seeds)]

    def configurations(self) -> list[Configuration]:
        """All combinations of the axes' values in the file's order, later axes fastest."""
        return [
            self._configuration(number, values)
            for number, values in enumerate(combinations(self.space, MAX_TRIALS))
        ]

    def _configuration(self, number: int, values: Mapping[str, Any]) -> Configuration:
        settings = {**self.fixed, **values}
        average = settings.pop(AVERAGE, None)
        changes = [
            Assignment(path, value, f"{path}={format_value(value)}")
            for path, value in settings.items()
        ]
        return Configuration(number, values, None if average is None else str(average), changes)


@dataclass(frozen=True)
class Configuration:
    """One combination of the axes' values, and the settings of `ditlab sample` that draw it."""

    number: int
    values: Mapping[str, Any]
    """Value by axis path; an axis whose condition does not hold is absent."""
    ema: str | None
    """Value of `--ema`; None: the checkpoint's own average."""
    changes: Sequence[Assignment]
    """Fields of the run's experiment that change."""

    def overrides(self) -> tuple[str, ...]:
        """Values of `--set`."""
        texts = []
        for each in self.changes:
            text = each.value if isinstance(each.value, str) else json.dumps(each.value)
            texts.append(f"{each.path}={text}")
        return tuple(texts)

    def arguments(self) -> list[str]:
        """The options as a command line has them."""
        arguments = [] if self.ema is None else ["--ema", self.ema]
        for each in self.overrides():
            arguments += ["--set", each]
        return arguments


def load_sampling_sweep(path: Path, overrides: Sequence[str] = ()) -> SamplingSweep:
    """The sweep that a YAML file and its parents describe, with `--set` overrides on top,
    `base.run` among them. Raises UserError, naming file and field, for what is wrong in its own
    fields; `configuration_experiments` checks the rest."""
    mapping = assign_to_sweep(
        read_with_parents(path), list(parse_overrides(overrides)), lambda _: SamplingSweep
    )
    return validate(SamplingSweep, mapping, f"{spec_name(path)}: ")


def load_checked(path: Path, overrides: Sequence[str]) -> SamplingSweep:
    """Load a sweep, and check every configuration against the run that its base names. Raises
    UserError.
    """
    sweep = load_sampling_sweep(path, overrides)
    run = find_training_run(Home.from_environment(), sweep.base.run)
    configuration_experiments(sweep, load_recorded_experiment(run.folder.spec), spec_name(path))
    return sweep


def sampling_sweep_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of such files."""
    return file_schema(SamplingSweep, "DiTLab sweep over samples")


def configuration_experiments(
    sweep: SamplingSweep, trained: Experiment, source: str
) -> list[Experiment]:
    """The run's experiment with the settings of each configuration. Raises UserError, beginning
    with `source`, for axes that do not change samples alone, and for configurations at which the
    experiment is not valid."""
    for label, entries in (("fixed", sweep.fixed), ("space", sweep.space)):
        for path in entries:
            problem = _path_problem(path, label)
            if problem:
                raise UserError(f"{source}: {label}.{path} {problem}")
    problem = next(axis_problems(sweep.space, sweep.fixed), "")
    if problem:
        raise UserError(f"{source}: {problem}")
    for path, axis in sweep.space.items():
        if axis.listed() is None:
            raise UserError(
                f"{source}: space.{path}.kind={axis.kind} has no end of values, and all of "
                "them are drawn; use kind: grid with values written out."
            )
    num = len(combinations(sweep.space, MAX_TRIALS + 1))
    if num > MAX_TRIALS:
        raise UserError(
            f"{source}: space has more than {MAX_TRIALS:,} combinations; take values out."
        )
    return [
        _experiment_at(configuration, trained, source) for configuration in sweep.configurations()
    ]


def _experiment_at(configuration: Configuration, trained: Experiment, source: str) -> Experiment:
    named = f"{source}: configuration {configuration.number} ({written(configuration.values)})"
    try:
        mapping = assign(trained.to_dict(), configuration.changes, class_for)
    except UserError as error:
        raise UserError(f"{named}: {error}") from None
    return build_experiment(mapping, named)


def _path_problem(path: str, label: str) -> str:
    """Why a path cannot vary, or be set, without training or beside other configurations; empty
    where it can.
    """
    if path == AVERAGE or path.startswith(SAMPLING):
        if label == "space" and any(is_below(path, f"{SAMPLING}{name}") for name in NOT_COMPARED):
            return (
                "changes what is drawn, and configurations are compared on the same samples; set "
                "it under `fixed`."
            )
        return ""
    if label == "fixed" and (path.startswith("encoders.") or is_below(path, "evaluation.scorer")):
        return ""
    return (
        "changes the training, and base.run is trained; vary fields of sampling, or "
        f"{AVERAGE}, the length of the average, or name an experiment as the base."
    )
