"""Loss components of other packages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor


class LossComponent(ABC):
    """A loss component that a package adds to the objectives of existing families.

    It is computed where `objective.weights` names it, and logged like the family's own components. The first line of
    its docstring describes the weight in the JSON schema.
    """

    name: ClassVar[str]
    """Name below `objective.weights`: letters, digits and `_`, beginning with a letter."""
    prediction: ClassVar[str] = "velocity"
    """The quantity that it compares (`ObjectiveSpec.component_prediction`)."""

    @abstractmethod
    def __call__(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return a scalar, a mean over the batch, from two tensors of one shape (batch, ...), float32 or better."""
