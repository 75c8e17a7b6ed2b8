"""The sweep: an experiment, the axes along which its trials differ, and how they are chosen, ranked
and stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partialmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from ditlab.errors import UserError, nearest
from ditlab.parts import OF_ADDONS, SweepKind, absent_part, display_html, sweep_kinds
from ditlab.spec.experiment import Experiment, NamedSpec, RunSeed, class_for
from ditlab.spec.files import (
    is_sweep,
    read_mapping,
    read_with_parents,
    refuse_other_kinds,
    resolve_paths,
    spec_name,
)
from ditlab.spec.optimization import Count
from ditlab.spec.overrides import Assignment, ClassOf, assign, field_at, parse_overrides, validate
from ditlab.spec.plugins import added_kinds, section_classes, section_fields
from ditlab.spec.sweep_axes import Axis
from ditlab.spec.uris import check_texts
from ditlab.spec.values import format_value, parse_duration, printable_sentence, value_at
from ditlab_models.contract import PositiveFloat, Share, Spec
from ditlab_models.extensions import kinds_of, with_kinds

MAX_TRIALS = 10_000  # each is validated before the first begins: about 3 s for as many
MAX_SEEDS = 1000
GRACE = 100
"""Steps before a scheduler compares trials for the first time, where a sweep gives none."""
Mode = Literal["min", "max"]
Reduction = Annotated[int, Field(ge=2, le=1000)]
SeveralSeeds = Annotated[int, Field(ge=2, le=MAX_SEEDS)]


def seconds(written: Any) -> Any:
    """A length of time in seconds: `90min`, `2h`, `1d`, `0.5h`. What is no text is left alone."""
    if not isinstance(written, str):
        return written
    found = parse_duration(written)
    if found is None:
        raise ValueError(
            f"time_budget={format_value(written)} is no time; write seconds, or a text such as "
            "90min, 2h, 1d."
        )
    return found


class RandomSearch(Spec):
    """Every trial drawn by itself, from the seed, its number and the axis's path alone."""

    kind: Literal["random"] = "random"
    """Independent draws; axes of kind `grid` are crossed with them."""


class GridSearch(Spec):
    """Every combination of the axes' values, in the order of the file, later axes fastest."""

    kind: Literal["grid"] = "grid"
    """All combinations; every axis must be `grid`, `choice` or `int`."""


class OptunaSearch(Spec):
    """Values proposed by Optuna (Akiba et al. 2019, arXiv:1907.10902) from those of the trials
    before.
    """

    kind: Literal["optuna"] = "optuna"
    """Proposed from earlier trials."""
    startup: Count = 10
    """Trials drawn at random before tree-structured Parzen estimators (Bergstra et al. 2011)
    propose.
    """


SearchSpec = Annotated[RandomSearch | GridSearch | OptunaSearch, Field(discriminator="kind")]


class TrialCurve(NamedTuple):
    """Values of the metric that a trial is ranked by, so far."""

    steps: Sequence[int]
    values: Sequence[float]
    """Less is better: negative where a sweep's mode is `max`."""


class Scheduler(Spec):
    """Choice by an add-on of the trials that train on. Subclasses add `kind: Literal[NAME] = NAME`.

    It is named by `ditlab.parts.Parts.schedulers`. It ends trials by their curves (`stops`), or
    names a `chooser`.
    """

    chooser: ClassVar[str] = ""
    """Place (`module:attribute`) of the `ditlab.sweeps.chooser.TrialChooser` that names the trials
    that train next, and how far. Without one all trials train, until `stops` ends them."""
    takes_seed_range: ClassVar[bool] = False
    """True where the chooser adds seeds to configurations: `seeds: {min: 3, max: 12}`."""
    may_change: ClassVar[tuple[str, ...]] = ()
    """Fields that a resumed sweep may have otherwise, such as a budget."""
    forecast_note: ClassVar[str] = "stops some trials earlier: this is the longest it takes"
    """Clause of forecasts on its effect on the duration, after `scheduler KIND`."""

    grace: Count = GRACE
    """Steps that every trial trains; at least evaluation.every."""

    def problems(self, sweep: Sweep, reference: Experiment) -> Iterable[str]:
        """Find sweeps in which it could not act, a sentence each.

        `reference` is the base with `fixed`. Its training.steps and evaluation.every go with
        `grace` already.
        """
        return ()

    def stops(self, trial: TrialCurve, others: Sequence[TrialCurve]) -> bool:
        """Return True where a trial ends now, after an evaluation from step `grace` on; `others`
        are the curves of all other trials that have values, ended ones too."""
        raise NotImplementedError


class NoScheduler(Spec):
    """Every trial trains to its end."""

    kind: Literal["none"] = "none"
    """Nothing is stopped early."""


class Asha(Spec):
    """Asynchronous successive halving (Li et al. 2020, arXiv:1810.05934)."""

    kind: Literal["asha"] = "asha"
    """Stops the worse trials at ever longer milestones."""
    grace: Count = GRACE
    """Steps that every trial trains, and the first milestone; at least evaluation.every."""
    reduction: Reduction = 3
    """One trial in so many goes on at a milestone; the next milestone is so many times later."""


class Pbt(Spec):
    """Population-based training (Jaderberg et al. 2017, arXiv:1711.09846)."""

    kind: Literal["pbt"] = "pbt"
    """All trials train at once; the worst take over weights and settings of the best, and vary the
    settings.
    """
    interval: Count
    """Steps between takeovers; a multiple of evaluation.every."""
    quantile: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    """Share of the population that is replaced, and share that it is replaced from."""
    resample: Share = 0.25
    """Chance that a setting is drawn again from its axis; otherwise it moves to a value near by."""


class Median(Spec):
    """The median stopping rule (Golovin et al. 2017, section 3.2.2 of Google Vizier)."""

    kind: Literal["median"] = "median"
    """Stops a trial whose best is worse than the median of the others' averages at the same
    step.
    """
    grace: Count = GRACE
    """Steps that every trial trains; at least evaluation.every."""
    min_trials: Count = 3
    """Trials that must have come as far before one is stopped."""


SchedulerSpec = Annotated[NoScheduler | Asha | Pbt | Median, Field(discriminator="kind")]


class SeedRange(Spec):
    """Seeds of a scheduler that adds seeds where configurations are close."""

    min: SeveralSeeds = 3
    """Seeds of every configuration."""
    max: SeveralSeeds = 12
    """Seeds of configurations that are close."""

    @model_validator(mode="after")
    def _ordered(self) -> SeedRange:
        if self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}; swap them.")
        return self


class SweepBudget(Spec):
    """Limit of the trials of a sweep together."""

    device_hours: PositiveFloat
    """GPU hours over all trials and sessions; core hours where trials have no GPU."""


class Sweep(NamedSpec):
    """Trials of one experiment that differ along axes."""

    name: str
    """Name of the sweep, for people: letters, digits, `-`, `_`, `.`."""
    base: dict[str, Any]
    """The experiment that trials vary: a file relative to this one, or the experiment written
    out.
    """
    fixed: dict[str, Any] = Field(default_factory=dict)
    """Fields of the base, by dotted path, that every trial has otherwise: `training.steps: 300`."""
    space: dict[str, Axis]
    """Axes by dotted path: `optimizer.lr: {kind: loguniform, low: 1.0e-4, high: 1.0e-2}`."""
    search: SearchSpec = RandomSearch()
    """Choice of the values of a trial."""
    scheduler: SchedulerSpec = NoScheduler()
    """Early stopping, or takeover, of trials."""
    metric: str | list[str]
    """Metric that ranks trials, such as `eval/velocity`; several with `search: {kind: optuna}` and
    no scheduler.
    """
    mode: Mode | list[Mode] = "min"
    """Direction of the metric: `min` if less is better, `max` if more; a list has an entry for each
    metric.
    """
    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS)] | None = None
    """Number of trials; of draws, where some repeat earlier ones and are not trained again. Null,
    with grid search only: the whole grid. With `seeds` it counts configurations, each of which
    takes a run under every seed."""
    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)] | SeedRange = 1
    """Seeds that every configuration (values of the axes) is trained under: `seed` of the base, the
    next number, and so on. A configuration is ranked by its mean over them: `trials: 12` with
    `seeds: 3` makes 36 runs. With a scheduler that adds seeds also {min: 3, max: 12}:
    configurations that are close get more."""
    concurrent: Count | None = None
    """Trials that train at once at most. Null: as many as fit on the machine or cluster; with pbt,
    all.
    """
    seed: RunSeed = 0
    """Decides the values of every trial; the experiment's own seed is `seed` of the base."""
    time_budget: Annotated[
        PositiveFloat | None, BeforeValidator(seconds, json_schema_input_type=float | str | None)
    ] = None
    """Seconds of wall time over all sessions of the sweep, or a text such as `90min`, `2h`, `1d`.
    Null: no limit.
    """
    budget: SweepBudget | None = None
    """Limit of the device hours of all trials together: `{device_hours: 4}`. Null: no limit."""
    reuse_workers: bool = True
    """Keep the processes of a trial that has ended for the next one, which spares their start."""

    _no_secrets = model_validator(mode="before")(check_texts)

    @model_validator(mode="wrap")
    @classmethod
    def _with_its_parts(cls, value: Any, validate: Any) -> Any:
        if cls is not Sweep or not isinstance(value, Mapping):
            return validate(value)
        kind = value_at(value, ["scheduler", "kind"])
        if value.keys() <= cls.model_fields.keys() and kind in (None, *kinds_of(SchedulerSpec)):
            return validate(value)
        return sweep_class(value).model_validate(value)

    @field_validator("base", mode="before")
    @classmethod
    def _is_resolved(cls, base: Any) -> Any:
        if isinstance(base, dict):  # a file's name has become its content by now
            return base
        raise ValueError(
            f"base={format_value(base)} must be the path of an experiment's YAML, or the "
            "experiment itself."
        )

    @field_validator("space")
    @classmethod
    def _some_axis(cls, space: dict[str, Any]) -> dict[str, Any]:
        if not space:
            raise ValueError(
                "space={} holds no axis; add one, such as optimizer.lr: {kind: loguniform, ...}."
            )
        return space

    @field_validator("metric", "mode", mode="before")
    @classmethod
    def _word_or_words(cls, value: Any, info: ValidationInfo) -> Any:
        words = value if isinstance(value, list) else [value]
        problem = ""
        if info.field_name == "mode":
            if not words or any(word not in ("min", "max") for word in words):
                problem = "must be min or max, or a list with one of them for each metric"
        elif not words or not all(isinstance(word, str) and word for word in words):
            problem = "must be the name of a metric, such as eval/velocity, or several"
        elif len(set(words)) < len(words):
            problem = "names a metric twice; keep one of the two"
        if problem:
            raise ValueError(f"{info.field_name}={format_value(value)} {problem}.")
        return value

    @model_validator(mode="after")
    def _mode_for_each_metric(self) -> Sweep:
        if isinstance(self.mode, list) and len(self.mode) != len(self.metrics):
            raise ValueError(
                f"mode={format_value(self.mode)} has {len(self.mode)} entries for "
                f"{len(self.metrics)} of metric={format_value(self.metric)}; give one for "
                "each, or a single word for all."
            )
        return self

    @property
    def num_seeds(self) -> int:
        """Seeds that a configuration has at most."""
        if isinstance(self.seeds, int):
            return self.seeds
        return self.seeds.max

    @property
    def seed_list(self) -> list[int | None]:
        """The seeds of a configuration's runs; one None, for the seed that the experiment has,
        where there is one alone.
        """
        first = self.fixed.get("seed", self.base.get("seed", 0))
        if self.num_seeds > 1:
            return [first + number for number in range(self.num_seeds)]
        return [None]

    @property
    def first_seeds(self) -> list[int | None]:
        """The part of `seed_list` that every configuration has."""
        return self.seed_list[: self.seeds if isinstance(self.seeds, int) else self.seeds.min]

    @property
    def metrics(self) -> tuple[str, ...]:
        """All of them, the first first."""
        if isinstance(self.metric, str):
            return (self.metric,)
        return tuple(self.metric)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """One for each of `metrics`."""
        if isinstance(self.mode, str):
            return (self.mode,) * len(self.metrics)
        return tuple(self.mode)

    _repr_html_ = partialmethod(display_html, "sweep")


def sweep_class(mapping: Any = None) -> type[Sweep]:
    """Return the class of a sweep with the parts of add-ons, those that a mapping names; None: all.

    Raises UserError for one whose code cannot be used.
    """
    kind = value_at(mapping, ["scheduler", "kind"])
    is_own = mapping is not None and (not isinstance(kind, str) or kind in kinds_of(SchedulerSpec))
    added = () if is_own else added_kinds("scheduler", Scheduler, str(kind))
    return _with_parts(section_classes(mapping, "sweep_sections"), added)


def kinds_with_seed_range() -> list[str]:
    """Return the kinds of `scheduler` that take a range of seeds: those that are here, or else
    those of DiTLab.
    """
    found = [
        cls.model_fields["kind"].default
        for cls in added_kinds("scheduler", Scheduler)
        if cls.takes_seed_range
    ]
    return found or list(OF_ADDONS["scheduler"])


@cache
def _with_parts(
    sections: tuple[type[Spec], ...], kinds: tuple[type[Scheduler], ...]
) -> type[Sweep]:
    fields = section_fields(sections)
    if kinds:
        field = Sweep.model_fields["scheduler"]
        fields["scheduler"] = (with_kinds(SchedulerSpec, kinds), field)
    return create_model("Sweep", __base__=Sweep, __doc__=Sweep.__doc__, **fields)


def find_sweep_kind(mapping: Mapping[str, Any], source: str) -> SweepKind | None:
    """Return the kind of a sweep that trains nothing, by its `base`; None for any other mapping.

    Raises UserError, beginning with `source`, where the add-on of the kind is not here.
    """
    base = mapping.get("base")
    if not isinstance(base, dict):
        return None
    for name, kind in sweep_kinds().items():
        if name in base:
            return kind
    for name in base:
        reason = absent_part("sweep's base", name)
        if reason:
            raise UserError(f"{source}: {reason}")
    return None


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """The sweep that a YAML file and its parents describe, with `--set` overrides on top. Raises
    UserError, naming file and field, for what is wrong in its own fields; `check_sweep` checks the
    rest."""
    mapping = read_with_parents(path)
    refuse_other_kinds(mapping, spec_name(path))
    if "base" not in mapping and "space" not in mapping:
        raise UserError(
            f"{spec_name(path)}: has no `base`, so it is an experiment; name a sweep, or use "
            "`ditlab train`."
        )
    kind = find_sweep_kind(mapping, spec_name(path))
    if kind:
        raise UserError(
            f"{spec_name(path)}: base.{kind.name} makes it a {kind.noun}, which trains "
            "nothing; `ditlab tune` and `validate` take it."
        )
    base = mapping.get("base")
    if isinstance(base, str):
        named_by = f"{spec_name(path)}: base={printable_sentence(base)}"
        read_mapping(Path(base), named_by)
        mapping["base"] = read_with_parents(Path(base))
        if is_sweep(mapping["base"]):
            raise UserError(f"{named_by} is a sweep itself; name an experiment.")
    given = list(parse_overrides(overrides))
    for override in given:
        if override.keys[0] == "base":
            instead = "`base` in a file, or fixed.FIELD"
            if override.keys[1:]:
                instead = f"fixed.{override.path[5:]}"
            raise UserError(f"{override.source}: the base is left as it is; set {instead} instead.")
    mapping = assign_to_sweep(mapping, given, sweep_class)
    return build_sweep(resolve_paths(mapping, Path()), spec_name(path))


def assign_to_sweep(
    mapping: dict[str, Any], given: Sequence[Assignment], class_of: ClassOf
) -> dict[str, Any]:
    """The mapping of a sweep with the fields of `--set`, single entries of `fixed` and `space`
    among them. `class_of` gives the class that a mapping is written for. Raises UserError for what
    does not fit."""
    entered = [override for override in given if override.path.startswith(("space.", "fixed."))]
    mapping = assign(mapping, [override for override in given if override not in entered], class_of)
    for override in entered:
        top, below = override.path.split(".", 1)
        # of `fixed` fields of the experiment, of `space` axes, null for none
        entries = dict(mapping.get(top) or {})
        if top == "fixed" or isinstance(override.value, dict):
            annotation: Any = object
            if top == "fixed":
                with suppress(UserError):
                    base = mapping["base"]
                    annotation = field_at(class_for(base), base, override.keys[1:]).annotation
            entries[below] = override.typed(annotation)
        elif override.typed(object) is not None:
            raise UserError(
                f"{override.source}: an axis is set as a whole, such as 'space.{below}={{kind: "
                f"choice, values: [1, 2]}}'; for one value in every trial set fixed.{below}, "
                "to remove the axis give null."
            )
        elif entries.pop(below, None) is None:
            raise UserError(
                f"{override.source}: there is no such axis to remove; "
                f"{nearest(below, list(entries))}"
            )
        mapping = {**mapping, top: entries}
    return mapping


def build_sweep(mapping: Mapping[str, Any], source: str) -> Sweep:
    """Validates a resolved mapping. Raises UserError with one line per mistake, each beginning with
    `source`.
    """
    return validate(sweep_class(mapping), mapping, f"{source}: ")
