"""The experiment: everything that decides what is trained, how, on what, and where it is written
down.

The classes of its model, objective, sampling and data are those of its family, and of other
packages.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache, partialmethod
from typing import Annotated, Any

from pydantic import Field, create_model, field_validator, model_validator
from pydantic_core import to_jsonable_python

from ditlab.errors import UserError, nearest
from ditlab.parts import display_html
from ditlab.spec.data import DigitsData, order_of
from ditlab.spec.encoders import Encoders
from ditlab.spec.engine import Checkpoint, DeepSpeedEngine, Evaluation, Tracking
from ditlab.spec.mixture import DataSpec, MixtureData, packing_of, with_sources
from ditlab.spec.optimization import (
    LATER,
    LATER_TRAINING_FIELDS,
    AdamW,
    Batch,
    ConstantSchedule,
    OptimizerSpec,
    ScheduleSpec,
    Training,
    WarmupStableDecaySchedule,
    optimizers_with,
)
from ditlab.spec.overrides import Assignment, assign, validate
from ditlab.spec.plugins import AddedParts, parts_in, section_fields
from ditlab.spec.resources import Resources
from ditlab.spec.start import Start
from ditlab.spec.uris import check_texts
from ditlab.spec.values import format_value, value_at
from ditlab_models.contract import BatchField, ModelSpec, ObjectiveSpec, SamplingSpec, Spec
from ditlab_models.extensions import extended_objective, with_kinds, with_solvers
from ditlab_models.families import AnyFamily, family_names, family_of, find_family
from ditlab_models.plugins import PluginError

RunSeed = Annotated[int, Field(ge=0, lt=2**63)]
LATER_SECTIONS: dict[str, Any] = {"encoders": {}, "start": None}
"""Sections that came after the first runs, with the content under which a run is what it was
without them.
"""
LATER_DATA_FIELDS: dict[str, Any] = {
    "packing": "joined",
    "order": {"kind": "full"},
    "flip": 0.0,
    "captions": "whole",
}
"""Fields of `data` that came after the first runs, with the value under which a run is what it was
without them.
"""
PLACES = ("access", "cache")
"""Fields of `kind: arrow` that say how rows are read, which changes no number."""
# What does not change which weights come out (up to float summation order): a run can be resumed
# with other values.
NOT_CONTENT = ("name", "engine", "resources", "checkpoint", "evaluation", "sampling", "tracking")


def is_content(section: str) -> bool:
    """Return True for a section that decides the trained weights; those of add-ons do not."""
    return section in Experiment.model_fields and section not in NOT_CONTENT


def without_defaults(section: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a section without later fields that have the value of a run
    without them.
    """
    return {key: value for key, value in section.items() if key not in later or later[key] != value}


def content_of_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of `data`, parts of a mixture included, without later fields that
    change nothing.
    """
    kept = without_defaults(data, LATER_DATA_FIELDS)
    if kept.get("kind") == "arrow":
        kept = {key: value for key, value in kept.items() if key not in PLACES}
    parts = kept.get("parts")
    if isinstance(parts, Mapping):
        kept["parts"] = {name: content_of_data(part) for name, part in parts.items()}
    order = kept.get("order")
    if isinstance(order, Mapping) and order["kind"] == "interleaved":
        # Streams were called lanes: a name alone does not move a hash.
        plain = {key: value for key, value in order.items() if key not in ("kind", "streams")}
        kept["order"] = {**plain, "kind": "lanes", "lanes": order["streams"]}
    return kept


def check_name(name: str) -> str:
    """Return the name of an experiment or a sweep: it stands in paths, tables and MLflow's columns.
    Raises ValueError for one that cannot."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(
            f"name={format_value(name)} must begin with a letter or digit and hold only "
            "letters, digits, '.', '_' and '-' (at most 100); rename it."
        )
    return name


class NamedSpec(Spec):
    """Base of the specs that a file describes: an experiment, sweeps."""

    name: str

    _plain_name = field_validator("name")(check_name)

    def to_dict(self) -> dict[str, Any]:
        """Every field in JSON's types, defaults included."""
        return self.model_dump(mode="json", serialize_as_any=True)


class Experiment(NamedSpec):
    """One training run. `model`, `objective` and `sampling` are those of the model's family."""

    name: str
    """Name of the run, for people: letters, digits, `-`, `_`, `.`."""
    seed: RunSeed = 0
    """Decides initial weights, order of samples and every random draw."""
    model: ModelSpec
    """The network, by family."""
    objective: ObjectiveSpec
    """The loss: time sampling, noise schedule, weight of each component."""
    data: DataSpec = DigitsData()
    """Data that samples come from."""
    encoders: Encoders = Encoders()
    """Frozen encoders of captions and images, for families that read them and data that hold
    none.
    """
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

    _no_secrets = model_validator(mode="before")(check_texts)

    @model_validator(mode="after")
    def fits_together(self) -> Experiment:
        """Workers get equally many whole micro-batches (of an elastic run at least one),
        half-precision weights have float32 ones, warm-up ends before the run; loss, sampler,
        encoders and data fit the model."""
        self._check_batch()
        if self.training.precision != "fp32" and self.engine.zero.stage == 0:
            raise ValueError(
                f"training.precision={self.training.precision} with engine.zero.stage=0 has no "
                "float32 optimiser partitions to resume from; set engine.zero.stage to 1 (the "
                "same numbers)."
            )
        if self.start is not None:
            self._check_start(self.start)
        self._check_length()
        self.optimizer.check(self)
        self.objective.check(self.model)
        self.sampling.check(self.model, self.objective)
        self.encoders.check(self.batch_fields(), self.model.family)
        if packing_of(self.data) == "masked" and not self.model.masks_documents:
            raise ValueError(
                "data.packing=masked keeps attention within documents of tokens, and "
                f"model.family={self.model.family} reads no documents; set data.packing to "
                "joined, or train a model of tokens such as dlm."
            )
        return self

    def _check_batch(self) -> None:
        """Raise ValueError for a batch that workers cannot share in whole micro-batches, or that
        does not fit the order of the data.
        """
        size = self.batch.size
        micro = self.batch.micro
        workers = self.resources.max_workers
        if micro and self.resources.min_workers != workers:  # elastic
            if size % micro or size // micro < workers:
                raise ValueError(
                    f"batch.size={size} in micro-batches of batch.micro={micro} does not give "
                    f"each of up to {workers} workers one; set batch.micro to a divisor of "
                    f"batch.size that is at most {max(1, size // workers)}, or lower "
                    "resources.workers.max."
                )
        elif size % workers:
            self._refuse_batch(workers, f"resources.workers={workers}")
        elif micro and size % (workers * micro):
            divisors = f"batch.micro={micro} times resources.workers={workers}"
            remedy = f", or batch.micro to a divisor of {size // workers}"
            self._refuse_batch(workers * micro, divisors, remedy)
        order_of(self.data).check_batch(size, workers)

    def _refuse_batch(self, unit: int, divisors: str, remedy: str = "") -> None:
        """Raise ValueError for a batch that is no multiple of `unit`, the product of `divisors`."""
        size = self.batch.size
        below = size // unit * unit
        sizes = " or ".join(str(each) for each in (below, below + unit) if each)
        raise ValueError(
            f"batch.size={size} is no multiple of {divisors}; set batch.size to {sizes}{remedy}."
        )

    def _check_start(self, start: Start) -> None:
        """Raise ValueError for a fork that has nothing to train, or other weights to begin with."""
        steps = self.training.steps
        if steps is not None and steps <= start.first_step:
            raise ValueError(
                f"training.steps={steps} leaves nothing to train from "
                f"start.step={start.step} on; set training.steps above that, or "
                "start.state to averaged or trained, which begin at step 0."
            )
        if self.model.init:
            raise ValueError(
                f"model.init.from={format_value(self.model.init.source)} and "
                f"start.run={start.run} exclude each other, as a fork begins with its "
                "parent's weights; set model.init to null, or leave start out."
            )

    def _check_length(self) -> None:
        """Raise ValueError for a schedule that does not fit into the run's steps; the plan of a run
        of epochs checks it.
        """
        if isinstance(self.data, MixtureData):
            self.data.check_length(self.training, self.schedule)
        steps = self.training.steps
        warmup = getattr(self.schedule, "warmup", 0)
        if steps is None:
            return
        if warmup >= steps:
            raise ValueError(
                f"schedule.warmup={warmup} leaves nothing of training.steps={steps}; "
                f"set schedule.warmup to {steps // 10}, or training.steps above {warmup}."
            )
        if isinstance(self.schedule, WarmupStableDecaySchedule):
            self.schedule.check_decay(steps, warmup)

    @property
    def family(self) -> AnyFamily:
        """The model's family, which builds the parts of the run."""
        return family_of(self.model)

    @property
    def keeps_average(self) -> bool:
        """True where checkpoints hold an average of the weights, which is what is evaluated: the
        field `ema`.
        """
        return self.training.ema is not None or self.optimizer.averages_weights

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
        """Micro-batches of one step on each of `resources.max_workers`, the last of which may have
        fewer.
        """
        return -(-self.num_micro // self.resources.max_workers)

    def batch_fields(self) -> tuple[BatchField, ...]:
        """Return the fields of a batch that network and loss read."""
        return (*self.model.batch_fields(), *self.objective.batch_fields(self.model))

    def replace(self, path: str, value: Any) -> Experiment:
        """Return the experiment with the field at a dotted path changed:
        `spec.replace("optimizer.lr", 3e-4)`. A mapping is merged into the fields that it names.
        Raises UserError, naming field and value, for what is wrong."""
        return self.replace_all({path: value})

    def replace_all(self, values: Mapping[str, Any]) -> Experiment:
        """As `replace`, for several fields at once: only the result must be valid."""
        plain = to_jsonable_python(dict(values), serialize_as_any=True, fallback=str)
        changes = [
            Assignment(path, value, f"{path}={format_value(value)}")
            for path, value in plain.items()
        ]
        return validate_experiment(assign(self.to_dict(), changes, class_for))

    def draws(self) -> dict[str, Any]:
        """Return the settings that decide the samples, times and noise of every step, by field or
        section.

        Runs in which these are equal train on the same ones, whatever else they differ in. They do
        not begin with the same weights where their networks differ.
        """
        plain = self.to_dict()
        decide_times = [
            name for name in plain["objective"] if name.startswith("time") or name == "process"
        ]
        times = {f"objective.{name}": plain["objective"][name] for name in decide_times}
        return {
            "seed": self.seed,
            "data": content_of_data(plain["data"]),
            "batch.size": self.batch.size,  # a batch is a slice of the order
            "batch.micro": self.batch.micro,  # noise is keyed by micro-batch
            **times,
            # noise has the shapes of samples
            "model": [[each.name, each.shape] for each in self.batch_fields()],
            # a GPU's generator gives other numbers
            "resources.gpus_per_worker": self.resources.gpus_per_worker > 0,
            # the first step
            "start": plain["start"] and plain["start"]["state"] == "all" and plain["start"]["step"],
        }

    def content_hash(self) -> str:
        """16 hex digits over what decides the trained weights; where it runs and what is logged
        leave it alone.
        """
        content = {key: value for key, value in self.to_dict().items() if is_content(key)}
        content["data"] = content_of_data(content["data"])
        for beside in ("averages", "stop"):  # they change none of the training's numbers
            del content["training"][beside]
        content["training"] = without_defaults(content["training"], LATER_TRAINING_FIELDS)
        content["optimizer"] = without_defaults(content["optimizer"], LATER)
        content["model"] = without_defaults(content["model"], self.model.added_fields)
        if self.model.init:
            init = content["model"]["init"]
            content["model"]["init"] = without_defaults(init, self.model.init.added_fields)
        content["objective"] = without_defaults(content["objective"], self.objective.added_fields)
        content["encoders"] = self.encoders.content()
        decisive = json.dumps(without_defaults(content, LATER_SECTIONS), sort_keys=True)
        return hashlib.sha256(decisive.encode()).hexdigest()[:16]

    _repr_html_ = partialmethod(display_html, "experiment")


@cache
def experiment_class(
    family: AnyFamily, objective: type[ObjectiveSpec], added: AddedParts
) -> type[Experiment]:
    """Return the experiment of a family, one class for each set of parts: `objective` is the
    family's, with fields for loss components and time densities of other packages, `added` all
    other parts of theirs."""
    default: Any = objective
    sampling: Any = with_solvers(family.sampling_of(objective), dict(added.solvers))
    if issubclass(objective, family.objective):
        process = ""
    else:
        process = f"-{objective.model_fields['process'].default}"
    fields: dict[str, Any] = {
        "model": (family.model, Field(description="The network.")),
        "objective": (objective, Field(default=default(), description="The loss.")),
        "data": (with_sources(added.sources, added.orders), Experiment.model_fields["data"]),
        "sampling": (sampling, Field(default=sampling(), description="Defaults of sampling.")),
    }
    if added.schedules:
        schedule = Field(default=ConstantSchedule(), description="Learning rate over time.")
        fields["schedule"] = (with_kinds(ScheduleSpec, added.schedules), schedule)
    if added.optimizers:
        optimizer = Field(default=AdamW(), description="Optimiser of the weights.")
        fields["optimizer"] = (optimizers_with(added.optimizers), optimizer)
    fields |= section_fields(added.sections)
    doc = f"A training run of the family {family.name}."
    return create_model(
        f"{family.name}{process}-experiment", __base__=Experiment, __doc__=doc, **fields
    )


def class_for(mapping: Any) -> type[Experiment]:
    """Return the experiment class that a mapping names by `model.family` and parts of other
    packages. Raises UserError for an unknown family, and for a part of another package whose code
    cannot be used."""
    top = mapping if isinstance(mapping, dict) else {}
    model = top.get("model")
    if not isinstance(model, dict) or model.get("family") is None:
        raise UserError(f"model.family is missing; set it to one of {', '.join(family_names())}.")
    name = model["family"]
    try:
        family = find_family(name) if isinstance(name, str) else None
        if family is None:
            hint = nearest(str(name), family_names())
            if not hint.endswith("?"):
                hint += "."
            raise UserError(
                f"model.family={format_value(name)} is no known family; {hint} A family of "
                "another package needs that package installed here (an entry point in the "
                "group ditlab.families), or its folder ditlab_models/NAME on the Python path."
            )
        process = value_at(top, ["objective", "process"])
        known = [*family.objectives()]
        if family.processes and process is not None and process not in known:
            raise UserError(
                f"objective.process={format_value(process)} is unknown; "
                f"{nearest(str(process), known)}"
            )
        given = top.get("objective")
        objective = extended_objective(family.objective_of(given), given)
        return experiment_class(family, objective, parts_in(top))
    except PluginError as error:
        raise UserError(str(error)) from error


def validate_experiment(mapping: Mapping[str, Any]) -> Experiment:
    """Validate a resolved mapping. Raises UserError with one line a mistake."""
    return validate(class_for(mapping), mapping)
