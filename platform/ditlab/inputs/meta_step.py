"""A training step on the meta device: shapes and dtypes of every tensor, no values, no memory.

Blocks are traced as they are: what compilation fuses is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from ditlab.spec.experiment import Experiment
from ditlab_models.contract import ANY, TextCodec
from ditlab_models.finetuning import fine_tune

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class DataShape:
    """Shapes of batch fields that the data decide and the spec does not, and their text."""

    fields: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shape of one sample by field, padding included; for fields with axes of any size."""
    columns: frozenset[str] | None = None
    """Names of the fields that the data hold; None where they are not here."""
    text: TextCodec | None = None
    """Codec of the data's tokens; None where they hold no text."""

    def of_experiment(self, experiment: Experiment) -> dict[str, tuple[int, ...]]:
        """Return the shape of one sample of every batch field of model and loss. Where the data are
        not known, an axis of any size is what the loss assumes, else as long as `at_most` allows.
        """
        known = {
            **experiment.objective.assumed_shapes(experiment.model, self.fields),
            **self.fields,
        }
        shapes = {}
        for each in experiment.batch_fields():
            longest = each.at_most or each.multiple_of
            assumed = tuple(longest if size == ANY else size for size in each.shape)
            shapes[each.name] = known.get(each.name, assumed)
        return shapes

    def step_key(self, experiment: Experiment, size: int, *form: object) -> str:
        """Return what decides a step of `size` samples on the meta device, as a text: a key for
        what was counted.
        """
        text = self.text and (self.text.vocabulary, self.text.end, self.text.packing)
        tuning = experiment.training.freeze, experiment.training.lora
        return repr(
            [
                experiment.model,
                experiment.objective,
                tuning,
                size,
                self.of_experiment(experiment),
                text,
                form,
            ]
        )


class MetaNoise:
    """Random numbers without values (`ditlab_models.contract.NoiseSource`)."""

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return a tensor of a shape, float32."""
        return torch.empty(*shape, device="meta")

    normal = uniform


class AnsweredReads(TorchDispatchMode):
    """Answers to reads of values, which meta tensors do not have: given integers in their order,
    true for booleans.
    """

    def __init__(self, integers: Sequence[int]) -> None:
        super().__init__()
        self._integers = iter(integers)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is not torch.ops.aten._local_scalar_dense.default:
            return function(*args, **(kwargs or {}))
        if args[0].dtype == torch.bool:
            return True
        return next(self._integers)


class MetaStep:
    """Network and loss of an experiment on the meta device, and a batch for them."""

    def __init__(
        self,
        experiment: Experiment,
        data: DataShape,
        dtype: torch.dtype = torch.float32,
        recomputes: bool = False,
    ) -> None:
        """Build both; `recomputes`: activations of blocks are checkpointed. Raises ValueError for a
        loss that does not fit its model."""
        family = experiment.family
        self._experiment = experiment
        self._shapes = data.of_experiment(experiment)
        with torch.device("meta"):
            self.network: Any = family.build_network(experiment.model).to(dtype)  # type: ignore[attr-defined]
            self._objective: Any = family.build_objective(
                experiment.objective, experiment.model, data.text
            )
            fine_tune(self.network, self._objective.modules, experiment.training)
        if self._objective.modules is not None:
            self._objective.modules.to(dtype)
        if recomputes:
            for module in self.network.checkpointed_modules():
                module.forward = partial(self._recomputed, module.forward)

    def modules(self) -> list[nn.Module]:
        """Return the modules that are trained: the network, then the loss' own."""
        if self._objective.modules is None:
            return [self.network]
        return [self.network, self._objective.modules]

    def batch(self, size: int) -> dict[str, Tensor]:
        """Return a batch of `size` samples, as the network and its loss take it."""
        fields = {each.name: getattr(torch, each.dtype) for each in self._experiment.batch_fields()}
        shapes = self._shapes.items()
        return {
            name: torch.empty(size, *shape, dtype=fields[name], device="meta")
            for name, shape in shapes
        }

    def loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Compute the weighted sum of the loss components of a batch, to be run inside
        `reading`.
        """
        components: dict[str, Tensor] = self._objective.loss(self.network, batch, MetaNoise())
        total = sum(self._objective.weights[name] * value for name, value in components.items())
        assert isinstance(total, Tensor)
        return total

    @contextmanager
    def reading(self, size: int) -> Iterator[None]:
        """Answer the loss' reads of values inside, for a batch of `size` samples, and create
        tensors without values.
        """
        integers = self._experiment.objective.typical_reads(self._experiment.model, size)
        with self.modes(), AnsweredReads(integers):
            yield

    def modes(self) -> AbstractContextManager[Any]:
        """Return what changes functions of torch during a pass."""
        return torch.device("meta")

    def _recomputed(self, forward: Any, *inputs: Any, **named: Any) -> Any:
        """Compute a block whose activations are computed again, as the engine does."""
        # Modes of functions are not active in a backward pass, where the block is computed again.
        return checkpoint(
            forward,
            *inputs,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), self.modes()),
            **named,
        )
