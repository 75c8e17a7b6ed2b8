"""What a model family gives to the platform, and what it is given. Imports no torch at run time.

A family's `spec.py` holds three pydantic models and joins them in a `Family`:

    FAMILY = Family(name="dit", model=DiTSpec, objective=VelocitySpec, sampling=FlowSamplingSpec)

`build()` of each imports torch inside. Shapes in this file leave out the batch dimension unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from denoisers.figures import Figure


class Spec(BaseModel):
    """Base of every spec: frozen, unknown keys refused, no infinities or NaN, no silent type conversion."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, strict=True
    )


ANY = -1
"""In a field's shape: an axis whose size is the data's, and may differ from batch to batch."""


@dataclass(frozen=True)
class BatchField:
    """One tensor that a family needs in every batch."""

    name: str
    """Column of the data store and key of the batch."""
    shape: tuple[int, ...]
    """Per sample; () is a scalar. An axis of size ANY is as long as the data says."""
    dtype: Literal["float32", "int64", "bool"]
    value_range: tuple[float, float] | None = None
    """The store's value range is mapped linearly onto this one: (-1, 1) for images. None takes values as they are."""
    unit: str = ""
    """What the numbers mean, for people: `pixel intensity`, `class index`."""
    num_classes: int | None = None
    """For class indices: values lie in [0, num_classes)."""
    multiple_of: int = 1
    """What the sizes of ANY axes are multiples of: a patch."""
    at_most: int | None = None
    """Largest size of an ANY axis; None: any."""


class ModelSpec(Spec):
    """Base of a family's network spec. Subclasses add `family: Literal[NAME] = NAME`."""

    family: str

    def build(self) -> Network:
        """The network with freshly initialised weights, drawn from torch's global generator."""
        raise NotImplementedError

    def batch_fields(self) -> tuple[BatchField, ...]:
        """The fields that its batches need."""
        raise NotImplementedError

    def example_inputs(self, batch_size: int, device: str = "meta") -> tuple[Any, ...]:
        """Positional inputs of the network's forward pass, for shape traces on the meta device."""
        raise NotImplementedError

    def static_figures(self) -> Mapping[str, Figure]:
        """Pictures by kind that need no trained weights (position tables, patches)."""
        return {}


class ObjectiveSpec(Spec):
    """Base of a family's objective spec. Subclasses add `weights`, a spec with one float per loss component."""

    weights: Spec

    def batch_fields(self, model: ModelSpec) -> tuple[BatchField, ...]:
        """The fields that the loss needs beside the model's."""
        return ()

    def check(self, model: ModelSpec) -> None:
        """Raises ValueError where this is no loss of that model, as far as the specs tell. `build` does so too."""

    def check_shapes(self, model: ModelSpec, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raises ValueError for batches that the loss does not take, where their fields have these shapes, a sample
        each."""

    def build(self, model: ModelSpec, text: TextCodec | None = None) -> Objective:
        """`text` says how the data's tokens read, where they are text and it is known."""
        raise NotImplementedError

    def assessor(self, model: ModelSpec, text: TextCodec | None = None) -> Assessor | None:
        """What `ditlab evaluate` measures beside the objective's metrics; None: nothing."""
        return None


class SamplingSpec(Spec):
    """Base of a family's sampling spec: the defaults of `ditlab sample` and of evaluation's grids."""

    def check(self, model: ModelSpec, objective: ObjectiveSpec) -> None:
        """Raises ValueError where that model, trained so, cannot draw so, as far as the specs tell. `build` does so
        too."""

    def build(self, model: ModelSpec, objective: ObjectiveSpec, text: TextCodec | None = None) -> Sampler:
        """`text` says how the data's tokens read, where they are text and it is known."""
        raise NotImplementedError


@dataclass(frozen=True)
class Family:
    """A model family. `objective` and `sampling` must be constructible without arguments (their defaults)."""

    name: str
    model: type[ModelSpec]
    objective: type[ObjectiveSpec]
    sampling: type[SamplingSpec]


@dataclass(frozen=True)
class TextCodec:
    """How the tokens of a data set read."""

    encode: Callable[[str], list[int]]
    """The tokens of a text, without an end token."""
    decode: Callable[[Sequence[int]], str]
    """The text of tokens; an end token shows."""
    vocabulary: int
    end: int
    """The token behind every document."""
    bytes_per_token: float | None = None
    """Bytes of UTF-8 that a token of the data stands for on average; None where the data are not at hand."""


class NoiseSource(Protocol):
    """Where an objective draws every random number from: keyed by (seed, step, global micro-batch index, name).

    `shape` includes the batch dimension, first. Two calls with one name give the same numbers; draws do not depend on
    the order of the calls. A slice of a micro-batch gets its slice of the whole one's numbers.
    """

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """U[0, 1), float32, on the batch's device."""
        ...

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        """N(0, 1), float32, on the batch's device."""
        ...


@dataclass(frozen=True)
class RealRows:
    """Rows of a data set: as a model takes them, and as people know them."""

    batch: Mapping[str, Tensor]
    """The model's fields, (num, *shape) each, on its device."""
    columns: Mapping[str, np.ndarray]
    """The store's other columns, (num, *shape) each; a class index whose classes have names is given as these."""
    names: Mapping[str, Sequence[str]]
    """Of the entries along a column's last axis, for the columns that have names: those of motifs."""
    noise: NoiseSource
    """Fixed draws of these rows: the same in every run, whatever the batches."""


@dataclass(frozen=True)
class RowSet:
    """Rows of a data set that can be gone through as often as one likes, in an order of their own."""

    num: int
    batches: Callable[[int], Iterator[RealRows]]
    """Goes through all rows, so many at a time; the last batch may be smaller."""


@dataclass(frozen=True)
class Prompt:
    """Text that samples hold at a place of their own."""

    text: str
    position: int = 0
    """Token where it begins; negative counts from a sample's end."""


@dataclass(frozen=True)
class SampleRequest:
    """What samples are asked to be."""

    label: int | None = None
    """Class of every sample."""
    prompts: Sequence[Prompt] = ()
    """What every sample holds, the rest being filled in; or, where a sampler `draws_per_prompt`, what samples show: as
    many for each prompt, one prompt's after the other's."""
    negative_prompt: str | None = None
    """What samples shall not show, where guidance leads away from something else than no prompt."""
    encode: Callable[[Sequence[str]], Mapping[str, Tensor]] | None = None
    """Texts as batch fields, (num, ...) each, where an encoder outside the network makes them."""
    size: tuple[int, int] | None = None
    """(height, width) in pixels, of families that draw any size."""
    seed: int | None = None
    """Of the first sample (of each prompt); the next ones count on. None: the sampler's generator gives seeds."""
    start: Tensor | None = None
    """(channels, height, width) in the model's range: an image that samples start from, in place of pure noise."""
    strength: float = 1.0
    """How much of the way from noise is gone anew from `start`: 1 is all of it, near 0 keeps the image."""
    rows: RealRows | None = None
    """As many rows as samples, for a sampler that completes rows or takes its conditions from them."""


NOTHING_ASKED = SampleRequest()


class Network(Protocol):
    """A family's network is an `nn.Module` with two more methods (and so has all of a module's own)."""

    def components(self) -> dict[str, Sequence[nn.Module]]:
        """Named groups of submodules that together own every parameter exactly once: a parameter count's rows."""
        ...

    def checkpointed_modules(self) -> Sequence[nn.Module]:
        """The modules whose activations are recomputed in the backward pass when activation checkpointing is on."""
        ...


class Objective(Protocol):
    """A family's loss. Weighted sum over `weights` is what trains; components are logged one by one."""

    weights: dict[str, float]
    """By loss component; a component with weight 0 need not be computed by `loss`."""

    modules: nn.Module | None
    """Modules of its own: trained and checkpointed, never part of a parameter total (`training_only`)."""

    def loss(self, network: nn.Module, batch: Mapping[str, Tensor], noise_source: NoiseSource) -> dict[str, Tensor]:
        """Components by name, each an unweighted mean over the micro-batch (a scalar tensor)."""
        ...

    def metrics(self, network: nn.Module, batch: Mapping[str, Tensor], noise_source: NoiseSource) -> dict[str, Tensor]:
        """Held-out figures by name, each a mean over the batch: every loss component, whatever its weight, and more."""
        ...

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Figures to report, from the means of `metrics` over all held-out samples.

        Most are these means. What is no mean over samples, a correlation or a perplexity, is made here from means that
        are its parts.
        """
        ...

    def metric_names(self) -> Sequence[str]:
        """The names that `summary` gives, without computing them: what a sweep can rank by."""
        ...

    def figures(
        self,
        network: nn.Module,
        batch: Mapping[str, Tensor],
        sampler: Sampler,
        generator: torch.Generator,
        kinds: Sequence[str] | None = None,
    ) -> Iterator[tuple[str, Figure]]:
        """Pictures from trained weights: (kind, figure), for every kind or for `kinds`, which cost only themselves."""
        ...

    def figure_kinds(self) -> Sequence[str]:
        """The kinds that `figures` gives, without drawing them."""
        ...


@dataclass(frozen=True)
class Samples:
    """What a sampler returns."""

    values: Tensor
    """(num, *sample shape), in the model's own range."""
    conditions: dict[str, Tensor]
    """What each sample was conditioned on; empty for unconditional samples."""
    trajectory: Tensor | None = None
    """(frames, num, *sample shape), the first frame pure noise, when asked for."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Anything else a family wants to hand to `show`."""


class Sampler(Protocol):
    """Draws samples and shows them."""

    takes_rows: Literal["none", "conditions", "completed"]
    """What real rows are to samples: nothing; a source of conditions (captions) where a request names none; what they
    complete (imputation). Where not `none`, a request holds as many rows as samples."""

    draws_per_prompt: bool
    """Whether each prompt of a request gets samples of its own."""

    at_once: int | None
    """Samples that are drawn at once at most, where each needs much memory; None: as many as are asked for."""

    def conditions(self, num: int, request: SampleRequest = NOTHING_ASKED) -> dict[str, Tensor]:
        """The conditions of `num` samples: those asked for, or a spread over all (classes in turn); {} if none apply.

        Raises ValueError for a condition the model does not know.
        """
        ...

    def sample(
        self,
        network: nn.Module,
        conditions: Mapping[str, Tensor],
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
    ) -> Samples:
        """`num` samples. Noise is drawn sample by sample, so the first k do not depend on `num`."""
        ...

    def show(self, samples: Samples) -> Figure:
        """The samples as a person wants to see them: an image grid, text, a heatmap."""
        ...


@dataclass(frozen=True)
class Picture:
    """A sample as an image file."""

    pixels: np.ndarray
    """(height, width, 3) uint8."""
    settings: Mapping[str, str]
    """What it was drawn with, by name: prompt, seed, solver."""


@runtime_checkable
class PicturingSampler(Sampler, Protocol):
    """A sampler each of whose samples is an image file of its own."""

    size: tuple[int, int]
    """(height, width) in pixels of samples whose request names no size."""

    def pictures(self, samples: Samples) -> Sequence[Picture]:
        """One for each sample."""
        ...


@runtime_checkable
class RetiringObjective(Protocol):
    """An objective whose loss comes to an end in part: what makes its fields can then be freed."""

    def retired_fields(self, step: int) -> Collection[str]:
        """Batch fields that `loss` reads no more from optimiser step `step` (from 0) on. A batch then lacks them."""
        ...


class RowConditionedSampler(Sampler, Protocol):
    """A sampler that `takes_rows` for their conditions."""

    row_fields: Sequence[str]
    """The batch fields of rows that are conditions; `rows.batch` holds these alone."""


class CompletingSampler(Sampler, Protocol):
    """A sampler that `takes_rows` to complete them."""

    def wanted(self, rows: RealRows) -> np.ndarray | None:
        """Which rows to complete, (num,) bool; None: all. `rows.batch` is empty here: their other columns decide."""
        ...

    def note(self, rows: RealRows) -> str:
        """What a person should know of completing just these rows, without a full stop, or nothing: what was asked for
        and lies in none of them. `rows.batch` may be empty."""
        ...

    def table(self, samples: Samples, rows: RealRows) -> dict[str, np.ndarray]:
        """The completed rows as columns of equal length, for a table file that other tools read."""
        ...


@dataclass(frozen=True)
class Assessment:
    """What an assessor found out about a trained network."""

    metrics: dict[str, float]
    """By name, for the run's record."""
    tables: dict[str, dict[str, np.ndarray]]
    """By name: columns of equal length."""
    figures: dict[str, Figure]
    """By name."""


class Assessor(Protocol):
    """Measures a trained network over whole data sets, beside what needs no training."""

    def assess(
        self, network: nn.Module, train: RowSet, held_out: RowSet, references: Mapping[str, Any], batch_size: int
    ) -> Assessment:
        """`train` is what baselines are fitted on; `references`, by name, what the data's maker knows of it."""
        ...
