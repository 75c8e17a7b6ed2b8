"""Mixtures: samples drawn by weight from several sources, and what the data of an experiment may be
in all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, create_model, field_validator, model_validator

from ditlab.spec.data import (
    ArrowData,
    FullOrderSpec,
    OrderSpec,
    Packing,
    SourceSpec,
    TextData,
    order_of,
)
from ditlab.spec.optimization import Schedule, SteppedCosineRestartSchedule, Training
from ditlab.spec.values import format_value, value_at
from ditlab_models.contract import Spec
from ditlab_models.extensions import kinds_of, with_kinds

PART_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")

PartWeight = Annotated[float, Field(gt=0, le=10**9)]


class MixtureData(Spec):
    """Several sources, from which each sample, or each batch, is drawn by weight."""

    kind: Literal["mixture"] = "mixture"
    """Samples of several sources, drawn by weight."""
    parts: dict[str, SourceSpec]
    """Sources by a name of your choice (letters, digits, `-`, `_`), each with its own fields: a
    kind of `data`, but no mixture. All hold the fields that the model reads, in the same types,
    ranges and classes. Each part has its own order, its own held-out samples, and held-out metrics
    of its own, `eval/NAME/...`."""
    weights: dict[str, PartWeight]
    """Weight of each part by its name, above 0: its share of what is drawn is its weight by the sum
    of all weights.
    """
    draw: Literal["auto", "sample", "batch"] = "auto"
    """`sample`: each sample of a batch draws its part. `batch`: each batch draws one part for all
    of its samples, as it must where parts differ in shapes. `auto`: by sample where all columns
    have one shape, else by batch."""

    @field_validator("parts", mode="before")
    @classmethod
    def _no_mixtures_inside(cls, parts: Any) -> Any:
        for name in parts if isinstance(parts, Mapping) else ():
            if value_at(parts, [name, "kind"]) == "mixture":
                raise ValueError(
                    f"data.parts.{name}.kind=mixture is a mixture in a mixture; write its "
                    "parts here."
                )
        return parts

    @field_validator("parts")
    @classmethod
    def _plain_names(cls, parts: dict[str, Any]) -> dict[str, Any]:
        if not parts:
            raise ValueError(
                "data.parts={} names no source; give at least one, such as {a: {kind: digits}}."
            )
        for name in parts:
            # fields that tell mappings apart
            if not PART_NAME.fullmatch(name) or name in ("kind", "family"):
                raise ValueError(
                    f"data.parts holds the name {format_value(name)}, which cannot be part of "
                    "the name of a metric, or is a field's; begin with a letter, then letters, "
                    "digits, '-' and '_' (at most 40)."
                )
            kind = order_of(parts[name]).kind
            if kind != "full":
                raise ValueError(
                    f"data.parts.{name}.order.kind={kind} is of a single source; leave it out, "
                    "or train on that source."
                )
        return parts

    @model_validator(mode="after")
    def _a_weight_for_each(self) -> MixtureData:
        without = [name for name in self.parts if name not in self.weights]
        if without:
            raise ValueError(
                f"data.weights gives part '{without[0]}' no weight; set "
                f"data.weights.{without[0]} above 0."
            )
        extra = [name for name in self.weights if name not in self.parts]
        if extra:
            raise ValueError(
                f"data.weights.{extra[0]}={self.weights[extra[0]]:g} is the weight of no part "
                f"(data.parts has {', '.join(self.parts)}); remove it, or add the part."
            )
        return self

    def check_length(self, training: Training, schedule: Schedule) -> None:
        """Raise ValueError for a length in epochs, which a mixture has none of."""
        given = remedy = ""
        if training.epochs is not None:
            given = f"training.epochs={training.epochs}"
            remedy = "set training.steps, and training.epochs to null"
        elif isinstance(schedule, SteppedCosineRestartSchedule):
            if schedule.cycle is None:
                given = "schedule.cycle=null, one epoch,"
                remedy = "give it in steps"
        elif epochs := getattr(schedule, "warmup_epochs", 0.0):
            given = f"schedule.warmup_epochs={epochs:g}"
            remedy = "set schedule.warmup, in steps"
        if given:
            raise ValueError(
                f"{given} is no length for data.kind=mixture, each of whose parts has epochs "
                f"of its own; {remedy}."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts, sorted: in this order they are drawn and numbered, however the file
        lists them.
        """
        return tuple(sorted(self.parts))

    @property
    def shares(self) -> dict[str, float]:
        """Each part's share of what is drawn, by name in the order of `names`."""
        total = math.fsum(self.weights.values())
        return {name: self.weights[name] / total for name in self.names}


DataSpec = Annotated[SourceSpec | MixtureData, Field(discriminator="kind")]


@cache
def with_sources(sources: tuple[type[Spec], ...], orders: tuple[type[OrderSpec], ...]) -> Any:
    """Return the annotation of `data` with further sources, as the data themselves and as parts,
    and further orders of all that have one."""
    kinds = [_with_orders(source, orders) for source in (*kinds_of(SourceSpec).values(), *sources)]
    field = Field(description=MixtureData.model_fields["parts"].description)
    parts: Any = (dict[str, with_kinds(SourceSpec, kinds)], field)  # type: ignore[misc]
    mixture = create_model(
        "MixtureData", __base__=MixtureData, __doc__=MixtureData.__doc__, parts=parts
    )
    return with_kinds(SourceSpec, [*kinds, mixture])


def _with_orders(source: type[Spec], orders: tuple[type[OrderSpec], ...]) -> type[Spec]:
    field = source.model_fields.get("order")
    if field is None or not orders:
        return source
    order: Any = (
        with_kinds(FullOrderSpec, orders),
        Field(default=field.default, description=field.description),
    )
    return create_model(source.__name__, __base__=source, __doc__=source.__doc__, order=order)


def source_kinds(data: Any, *keys: str) -> list[str]:
    """Return the kinds that a mapping of `data` names, its own or its parts', sorted; those that
    are no text are dropped. With keys those of a field, such as `order`."""
    sources = [data]
    if value_at(data, ["kind"]) == "mixture":
        parts = value_at(data, ["parts"])
        sources = [*parts.values()] if isinstance(parts, Mapping) else []
    kinds = (value_at(source, [*keys, "kind"]) for source in sources)
    return sorted({kind for kind in kinds if isinstance(kind, str)})


def in_part(message: str, name: str, part: type[Spec]) -> str:
    """Return a message on a source with the fields that it has as a part of a mixture:
    `data.parts.NAME.path`.
    """
    fields = "|".join(part.model_fields)
    return re.sub(rf"\bdata\.(?=(?:{fields})\b)", f"data.parts.{name}.", message)


def packing_of(data: Spec) -> Packing:
    """Return the packing of an experiment's data; of parts, that of all. Raises ValueError for
    parts that differ.
    """
    if not isinstance(data, MixtureData):
        if isinstance(data, ArrowData | TextData):
            return data.packing
        return "joined"
    found = {packing_of(data.parts[name]): name for name in reversed(data.names)}
    if len(found) > 1:
        raise ValueError(
            f"data.parts.{found['masked']}.packing=masked and "
            f"data.parts.{found['joined']}.packing=joined cannot be mixed, as one network "
            "reads both; set the packing of all parts to one of them."
        )
    return next(iter(found))
