"""A model family: its specs, and the parts built from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from denoisers.contract.evaluator import Evaluator
from denoisers.contract.network import Network
from denoisers.contract.objective import Objective
from denoisers.contract.sampler import Sampler
from denoisers.contract.spec import ModelSpec, ObjectiveSpec, SamplingSpec
from denoisers.contract.text import TextCodec

if TYPE_CHECKING:
    from denoisers.figures import Figure

ModelT = TypeVar("ModelT", bound=ModelSpec)
ObjectiveT = TypeVar("ObjectiveT", bound=ObjectiveSpec)
SamplingT = TypeVar("SamplingT", bound=SamplingSpec)


class Family(ABC, Generic[ModelT, ObjectiveT, SamplingT]):
    """Base of a model family. Methods import torch, and the modules that need it, in their bodies.

    `text` converts between text and the tokens of the data, where these are text and the tokeniser is known.
    """

    name: str
    """Name of the family: the value of `model.family`."""
    model: type[ModelT]
    objective: type[ObjectiveT]
    """Its fields have defaults, all of them."""
    sampling: type[SamplingT]
    """Its fields have defaults, all of them."""

    @abstractmethod
    def build_network(self, model: ModelT) -> Network:
        """Build the network with freshly initialised weights, drawn from torch's global generator."""

    @abstractmethod
    def build_objective(self, objective: ObjectiveT, model: ModelT, text: TextCodec | None = None) -> Objective:
        """Build the loss. Raises ValueError if it does not fit the model."""

    @abstractmethod
    def build_sampler(
        self, sampling: SamplingT, model: ModelT, objective: ObjectiveT, text: TextCodec | None = None
    ) -> Sampler:
        """Build the sampler. Raises ValueError if a model trained with this objective cannot sample so."""

    @abstractmethod
    def example_inputs(self, model: ModelT, batch_size: int, device: str = "meta") -> tuple[Any, ...]:
        """Return positional inputs of the network's forward pass, for shape traces on the meta device."""

    def build_evaluator(self, objective: ObjectiveT, model: ModelT, text: TextCodec | None = None) -> Evaluator | None:
        """Build the evaluator that `ditlab evaluate` runs beside the objective's metrics; None: there is none."""
        return None

    def static_figures(self, model: ModelT) -> Mapping[str, Figure]:
        """Return figures by kind that need no trained weights (position tables, patches)."""
        return {}
