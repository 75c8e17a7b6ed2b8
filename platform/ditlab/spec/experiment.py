"""The experiment: everything that decides what is trained, how, on what, and where it is written down.

The classes of its model, objective, sampling and data are those of its family, and of other packages.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, create_model, field_validator, model_validator

from denoisers.contract import BatchField, ModelSpec, ObjectiveSpec, SamplingSpec, Spec
from denoisers.extensions import extended_objective, fully_extended_objective, kinds_of
from denoisers.families import AnyFamily, families, family_names, family_of, find_family
from denoisers.plugins import PluginError
from ditlab.errors import UserError, nearest
from ditlab.notebook_html import never_failing
from ditlab.spec.cards import experiment_card
from ditlab.spec.data import DigitsData
from ditlab.spec.encoders import Encoders
from ditlab.spec.engine import Checkpoint, DeepSpeedEngine, Evaluation, Tracking
from ditlab.spec.mixture import DataSpec, MixtureData, check_orders, check_packing, source_kinds, with_sources
from ditlab.spec.optimization import LATER, AdamW, Batch, ConstantSchedule, OptimizerSpec, ScheduleSpec, Training
from ditlab.spec.overrides import Assignment, assign, explain
from ditlab.spec.plugins import DATA_SOURCES, DataSource
from ditlab.spec.resources import Resources
from ditlab.spec.start import Start, check_length
from ditlab.spec.uris import refuse_secrets
from ditlab.spec.values import format_value

LATER_SECTIONS: dict[str, Any] = {"encoders": {}, "start": None}
"""Sections that came after the first runs, with the content under which a run is what it was without them."""
LATER_DATA_FIELDS: dict[str, Any] = {"packing": "joined", "order": {"kind": "full"}}
"""Fields of `data` that came after the first runs, with the value under which a run is what it was without them."""
PLACES = ("access", "cache")
"""Fields of `kind: arrow` that say how rows are read, which changes no number."""
# What does not change which weights come out (up to float summation order): a run can be resumed with other values.
NOT_CONTENT = ("name", "engine", "resources", "checkpoint", "evaluation", "sampling", "tracking")


def without_defaults(section: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a section without later fields that have the value of a run without them."""
    return {key: value for key, value in section.items() if key not in later or later[key] != value}


def content_of_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of `data`, parts of a mixture included, without later fields that change nothing."""
    kept = without_defaults(data, LATER_DATA_FIELDS)
    if kept.get("kind") == "arrow":
        kept = {key: value for key, value in kept.items() if key not in PLACES}
    if isinstance(parts := kept.get("parts"), Mapping):
        kept["parts"] = {name: content_of_data(part) for name, part in parts.items()}
    return kept


def digest_of(content: Mapping[str, Any]) -> str:
    """Return 16 hex digits over plain values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ExperimentParts:
    """The classes that differ between experiments."""

    family: AnyFamily
    objective: type[ObjectiveSpec]
    """The family's, with fields for the loss components and the time density of other packages."""
    data: tuple[type[DataSource], ...]
    """Data sources of other packages."""

    def fields(self) -> dict[str, Any]:
        """Return the fields that an experiment of these parts has, as `pydantic.create_model` takes them."""
        family = self.family
        objective: Any = self.objective
        fields: dict[str, Any] = {
            "model": (family.model, Field(description="The network.")),
            "objective": (objective, Field(default=objective(), description="The loss.")),
            "sampling": (family.sampling, Field(default=family.sampling(), description="Defaults of sampling.")),
        }
        if self.data:
            data = Field(default=DigitsData(), description="Where samples come from.")
            fields["data"] = (with_sources(self.data), data)
        return fields


def parts_for(mapping: Any) -> ExperimentParts:
    """Return the classes that a mapping names.

    Raises UserError for an unknown family, and for a part of another package whose code cannot be used.
    """
    top = mapping if isinstance(mapping, dict) else {}
    try:
        family = _family(top.get("model"))
        objective = extended_objective(family.objective, top.get("objective"))
        return ExperimentParts(family, objective, _data_sources(top.get("data")))
    except PluginError as error:
        raise UserError(str(error)) from error


def all_parts() -> list[ExperimentParts]:
    """Return the classes of every family with all parts of other packages, for the JSON schema."""
    data = tuple(DATA_SOURCES.load_all().values())
    return [ExperimentParts(each, fully_extended_objective(each.objective), data) for each in families().values()]


def _family(model: Any) -> AnyFamily:
    if not isinstance(model, dict) or model.get("family") is None:
        raise UserError(f"model.family is missing; set it to one of {', '.join(family_names())}.")
    name = model["family"]
    family = find_family(name) if isinstance(name, str) else None
    if family is None:
        hint = nearest(str(name), family_names())
        raise UserError(
            f"model.family={format_value(name)} is no known family; {hint}{'' if hint.endswith('?') else '.'} A family "
            "of another package needs that package installed here (an entry point in the group denoisers.families), or "
            "its folder denoisers/NAME on the Python path."
        )
    return family


def _data_sources(data: Any) -> tuple[type[DataSource], ...]:
    sources = [DATA_SOURCES.load(kind) for kind in source_kinds(data) if kind not in kinds_of(DataSpec)]
    return tuple(source for source in sources if source is not None)


class Experiment(Spec):
    """One training run. `model`, `objective` and `sampling` are those of the model's family."""

    name: str
    """Name of the run, for people: letters, digits, `-`, `_`, `.`."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Decides initial weights, order of samples and every random draw."""
    model: ModelSpec
    """The network, by family."""
    objective: ObjectiveSpec
    """The loss: time sampling, noise schedule, weight of each component."""
    data: DataSpec = DigitsData()
    """Data that samples come from."""
    encoders: Encoders = Encoders()
    """Frozen encoders of captions and images, for families that read them and data that hold none."""
    batch: Batch = Batch()
    """Samples of one step."""
    optimizer: OptimizerSpec = AdamW()
    """Optimiser of the weights."""
    schedule: ScheduleSpec = ConstantSchedule()
    """Learning rate over time."""
    training: Training
    """Length and arithmetic of the run."""
    start: Start | None = None
    """Checkpoint of another run to go on from; null: fresh weights."""
    engine: DeepSpeedEngine = DeepSpeedEngine()
    """Engine that executes a step."""
    resources: Resources = Resources()
    """Workers and what each gets."""
    checkpoint: Checkpoint = Checkpoint()
    """Saving the run's state."""
    evaluation: Evaluation = Evaluation()
    """Held-out figures and sample grids during the run."""
    sampling: SamplingSpec
    """Defaults of sampling, and of evaluation's grids."""
    tracking: Tracking = Tracking()
    """Tracking of metrics."""

    @model_validator(mode="before")
    @classmethod
    def no_secrets(cls, values: Any) -> Any:
        """They come from the environment."""
        refuse_secrets(values)
        return values

    @field_validator("name")
    @classmethod
    def plain_name(cls, name: str) -> str:
        """It stands in paths, tables and MLflow's columns."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            raise ValueError(
                f"name={format_value(name)} must begin with a letter or digit and hold only letters, digits, '.', "
                "'_' and '-' (at most 100); rename it."
            )
        return name

    @model_validator(mode="after")
    def batch_divides(self) -> Experiment:
        """Every worker gets equally many whole micro-batches; of an elastic run's, at least one."""
        size, workers = self.batch.size, self.resources.max_workers
        elastic = self.resources.min_workers != workers
        if size % workers and not (elastic and self.batch.micro):
            raise ValueError(
                f"batch.size={size} is no multiple of resources.workers={workers}; "
                f"set batch.size to {_multiple(size, workers)}."
            )
        micro = self.micro_size
        if elastic and (size % micro or size // micro < workers):
            raise ValueError(
                f"batch.size={size} in micro-batches of batch.micro={micro} does not give each of up to {workers} "
                f"workers one; set batch.micro to a divisor of batch.size that is at most {max(1, size // workers)}, "
                "or lower resources.workers.max."
            )
        if size % (micro * workers) and not elastic:
            raise ValueError(
                f"batch.size={size} is no multiple of batch.micro={micro} times resources.workers={workers}; "
                f"set batch.size to {_multiple(size, micro * workers)}, "
                f"or batch.micro to a divisor of {size // workers}."
            )
        check_orders(self.data, size, workers)
        return self

    @model_validator(mode="after")
    def low_precision_has_masters(self) -> Experiment:
        """Stage 0 keeps no float32 weights beside half-precision ones."""
        if self.training.precision != "fp32" and self.engine.zero.stage == 0:
            raise ValueError(
                f"training.precision={self.training.precision} with engine.zero.stage=0 has no float32 optimiser "
                "partitions to resume from; set engine.zero.stage to 1 (the same numbers)."
            )
        return self

    @model_validator(mode="after")
    def schedule_fits(self) -> Experiment:
        """Warm-up ends before the run; for a run of epochs, its plan checks that. A mixture has no epochs."""
        check_length(self.start, self.training.steps)
        if isinstance(self.data, MixtureData):
            self.data.check_length(self.training, self.schedule)
        warmup = getattr(self.schedule, "warmup", 0)
        if self.training.steps is not None and warmup >= self.training.steps and warmup:
            raise ValueError(
                f"schedule.warmup={warmup} leaves nothing of training.steps={self.training.steps}; "
                f"set schedule.warmup to {self.training.steps // 10}, or training.steps above {warmup}."
            )
        return self

    @model_validator(mode="after")
    def parts_fit(self) -> Experiment:
        """The loss and the sampler are ones of this model, and each encoder is used; the optimiser's state has room."""
        self.optimizer.check(self.engine.zero.offload)
        self.objective.check(self.model)
        self.sampling.check(self.model, self.objective)
        self.encoders.check(self.batch_fields(), self.model.family)
        check_packing(self.data, self.model)
        return self

    @property
    def family(self) -> AnyFamily:
        """The model's family, which builds the parts of the run."""
        return family_of(self.model)

    @property
    def micro_size(self) -> int:
        """Samples of one forward pass on one worker."""
        return self.batch.micro or self.batch.size // self.resources.max_workers

    @property
    def num_micro(self) -> int:
        """Micro-batches of one step, over all workers."""
        return self.batch.size // self.micro_size

    @property
    def accumulation(self) -> int:
        """Micro-batches of one step on each of `resources.max_workers`, the last of which may have fewer."""
        return -(-self.num_micro // self.resources.max_workers)

    def batch_fields(self) -> tuple[BatchField, ...]:
        """Return the fields of a batch that network and loss read."""
        return (*self.model.batch_fields(), *self.objective.batch_fields(self.model))

    def to_dict(self) -> dict[str, Any]:
        """Every field in JSON's types, defaults included."""
        return self.model_dump(mode="json", serialize_as_any=True)

    def replace(self, path: str, value: Any) -> Experiment:
        """Return the experiment with the field at a dotted path changed, validated again as a whole.

        `spec.replace("optimizer.lr", 3e-4)`; a mapping is merged into the fields that it names. Raises UserError,
        naming field and value, for a path that leads nowhere and for a value that does not fit.
        """
        return self.replace_all({path: value})

    def replace_all(self, values: Mapping[str, Any]) -> Experiment:
        """As `replace`, for several fields at once: only the result must be valid."""
        plain = {path: _plain(value) for path, value in values.items()}
        changes = [Assignment(path, value, f"{path}={format_value(value)}") for path, value in plain.items()]
        return validate_experiment(assign(self.to_dict(), changes, class_for))

    def content_hash(self) -> str:
        """16 hex digits over what decides the trained weights; where it runs and what is logged leave it alone."""
        content = {key: value for key, value in self.to_dict().items() if key not in NOT_CONTENT}
        content["data"] = content_of_data(content["data"])
        del content["training"]["averages"]  # they are kept beside the training, and change none of its numbers
        content["optimizer"] = without_defaults(content["optimizer"], LATER)
        content["objective"] = without_defaults(content["objective"], self.objective.added_fields)
        content["encoders"] = self.encoders.content()
        return digest_of(without_defaults(content, LATER_SECTIONS))

    @never_failing
    def _repr_html_(self) -> str:
        length = f"{self.training.steps:,} steps" if self.training.steps else f"{self.training.epochs} epochs"
        about = f"family {self.model.family}, {length} of {self.batch.size:,} samples, content {self.content_hash()}"
        return experiment_card(self, self.name, about)


def _plain(value: Any) -> Any:
    """A value in the types of YAML."""
    if isinstance(value, Spec):
        return value.model_dump(mode="json", serialize_as_any=True)
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _multiple(size: int, divisor: int) -> str:
    """The multiples of `divisor` on both sides of `size`: `96 or 144`."""
    below = size // divisor * divisor
    return f"{below} or {below + divisor}" if below else str(divisor)


def class_for(mapping: Any) -> type[Experiment]:
    """Return the experiment class that a mapping names by `model.family` and parts of other packages.

    Raises UserError for an unknown family.
    """
    return experiment_class(parts_for(mapping))


@cache
def experiment_class(parts: ExperimentParts) -> type[Experiment]:
    """Return the experiment whose `model`, `objective`, `sampling` and `data` are of these classes."""
    doc = f"A training run of the family {parts.family.name}."
    return create_model(f"{parts.family.name}-experiment", __base__=Experiment, __doc__=doc, **parts.fields())


def validate_experiment(mapping: Mapping[str, Any]) -> Experiment:
    """Validate a resolved mapping. Raises UserError with one line a mistake."""
    cls = class_for(mapping)
    try:
        return cls.model_validate(dict(mapping))
    except ValidationError as error:
        raise UserError("\n".join(explain(error, cls, mapping))) from None
