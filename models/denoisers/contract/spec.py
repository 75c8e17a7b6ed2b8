"""Base classes of the specs: fields and checks, nothing that is built from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from denoisers.contract.fields import BatchField

PositiveInt = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0)]
"""Weight of a loss component."""


class Spec(BaseModel):
    """Base of every spec: frozen, unknown keys refused, no infinities or NaN, no silent type conversion."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, strict=True
    )


class ModelSpec(Spec):
    """Base of a family's network spec. Subclasses add `family: Literal[NAME] = NAME`."""

    masks_documents: ClassVar[bool] = False
    """True for a network of tokens that attends within documents where `TextCodec.packing` is `masked`."""

    family: str

    def batch_fields(self) -> tuple[BatchField, ...]:
        """Return the fields of the network's batches."""
        raise NotImplementedError


class ObjectiveSpec(Spec):
    """Base of a family's objective spec. Subclasses add `weights`, a spec with one float per loss component."""

    component_prediction: ClassVar[str | None] = None
    """The quantity that loss components of other packages compare, such as `velocity`; None: it takes none."""

    added_fields: ClassVar[Mapping[str, Any]] = {}
    """Fields that came after the first runs, with the value under which a run is what it was without them; a run's
    content hash leaves them out there."""

    weights: Spec

    def batch_fields(self, model: ModelSpec) -> tuple[BatchField, ...]:
        """Return the fields that the loss reads beside the model's."""
        return ()

    def typical_reads(self, model: ModelSpec, batch_size: int) -> tuple[int, ...]:
        """Return the integers that the loss of a batch reads from its device, in order, at typical values.

        For traces on the meta device, which has no values to read.
        """
        return ()

    def assumed_shapes(self, model: ModelSpec, known: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of one sample of fields with axes of any size, for plans where the data do not tell.

        `known`: shapes that they do tell. Axes of fields that are not named count as long as they may be.
        """
        return {}

    def check(self, model: ModelSpec) -> None:
        """Raise ValueError if this loss does not fit the model, as far as the specs show."""

    def check_shapes(self, model: ModelSpec, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise ValueError if the loss cannot take batches whose fields have these shapes (without the batch
        dimension)."""


class SamplingSpec(Spec):
    """Base of a family's sampling spec: the defaults of `ditlab sample` and of evaluation's grids."""

    def check(self, model: ModelSpec, objective: ObjectiveSpec) -> None:
        """Raise ValueError if a model trained with this objective cannot sample so, as far as the specs show."""
