"""The interface between a model family and the platform. Imports no torch at run time.

A family's `family.py` joins its specs and builds its parts:

    class DiTFamily(Family[DiTSpec, DiTObjectiveSpec, DiTSamplingSpec]): ...

    FAMILY = DiTFamily()

In this order: batch fields and specs; network, noise and text; rows and requests; objective, loss
components and times; samplers; evaluators; the family itself. Shapes in this module are without the
batch dimension unless they say otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    runtime_checkable,
)

from pydantic import BaseModel, ConfigDict, Field

from ditlab_models.figures import Figure

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn


ANY = -1
"""Size, in a field's shape, of an axis that may differ from batch to batch."""
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Weight = NonNegativeFloat
"""Weight of a loss component."""
Shapes = Mapping[str, tuple[int, ...]]
"""Shape of one sample by batch field."""
MetricSettings = Mapping[str, Mapping[str, Any]]
"""Settings by held-out metric that its values depend on; "": of all metrics."""
Batch = Mapping[str, "Tensor"]
"""Tensors of a batch by field, (batch, ...) each."""
Conditions = Mapping[str, "Tensor"]
"""Tensors of the conditions of samples by name, (num, ...) each."""
ModuleGroups = Mapping[str, Sequence["nn.Module"]]
"""Modules of a network by the name of their group."""
Role = Literal["matrix", "convolution", "input", "head", "embedding", "norm", "bias", "scalar"]
"""Role of a parameter: `matrix` the weight of a linear map from features to features, `convolution`
a kernel, `input` and `head` the weights that read data and write predictions, `embedding` a table
or a learned token, `norm` the weights and biases of norms, `bias` every other bias, `scalar` what
is left, such as a temperature."""
ModulesByRole = Mapping[Role, Sequence["nn.Module"]]


@dataclass(frozen=True)
class FieldOptions:
    """Settings that a field's sizes follow, as dotted paths in an experiment: `model.image_size`.
    Empty: none.
    """

    shape: tuple[str, ...] = ()
    """Setting of each axis of the shape; (): no axis follows one."""
    num_classes: str = ""
    """Setting of `num_classes`."""
    multiple_of: str = ""
    """Setting of `multiple_of`."""
    at_most: str = ""
    """Setting of `at_most`."""


@dataclass(frozen=True)
class BatchField:
    """One tensor of every batch of a family."""

    name: str
    """Column of the data store and key of the batch."""
    shape: tuple[int, ...]
    """Per sample; () is a scalar. An axis of size ANY is as long as the data's."""
    dtype: Literal["float32", "int64", "bool"]
    value_range: tuple[float, float] | None = None
    """Range that the store's value range is mapped to linearly: (-1, 1) for images. None keeps the
    store's values.
    """
    unit: str = ""
    """Meaning of the numbers, for people: `pixel intensity`, `class index`."""
    num_classes: int | None = None
    """Number of classes of a class index: values lie in [0, num_classes)."""
    multiple_of: int = 1
    """Divisor of the sizes of ANY axes, such as a patch size."""
    at_most: int | None = None
    """Largest size of an ANY axis; None: any."""
    options: FieldOptions = FieldOptions()
    """Settings to change where data do not fit."""


@dataclass(frozen=True)
class InputLaw:
    """Law that an argument of the network's forward pass has in training."""

    argument: str
    """Name of the argument, (batch, ...): the first number of each sample has this law."""
    cdf: Callable[[float], float]
    """Distribution function: the probability of a number up to the given one."""
    law: str
    """The law in words: `uniform on [0, 1)`."""


@dataclass(frozen=True)
class SamplingTimes:
    """Times at which the network is evaluated for one sample, in order, written in closed form."""

    argument: str
    """Name of the forward pass' argument that holds the time, (batch,)."""
    values: tuple[float, ...]
    rounding: float = 0.0
    """Distance that a whole timestep may have from its value here."""
    shift: float | None = None
    """Change of the sample where every output of the network is 1 more, as an exact integration of
    a velocity has it; None: not known."""


class Spec(BaseModel):
    """Base of every spec: frozen, unknown keys refused, no infinities or NaN, no silent type
    conversion.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, strict=True
    )


class WeightsInit(Spec):
    """Published weights from which a run begins."""

    __annotations__ = {  # `from` is a keyword of Python
        "from": Annotated[
            str,
            Field(
                min_length=1,
                description=(
                    "File or folder of the weights, or hf://OWNER/NAME[@REVISION][/PATH] of "
                    "the Hugging Face hub."
                ),
            ),
        ]
    }
    format: str = "auto"
    """Layout of their names, as `ditlab weights inspect` tells it; `auto` finds it from names and
    shapes.
    """
    weights: Annotated[str, Field(min_length=1)] = "auto"
    """Set of tensors that is taken of a file with several, by the keys above it (`ema`, `model`);
    `auto` takes the moving average, or the network's own tensors where there is none."""
    strict: bool = True
    """True to refuse weights that do not fill the network or hold more; false loads what fits, and
    says what did not."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """SHA-256 that the weights must have, as `ditlab weights inspect` prints it; null: any, and the
    run records it.
    """

    added_fields: ClassVar[Mapping[str, Any]] = {"weights": "auto"}
    """As `ModelSpec.added_fields`."""

    @property
    def source(self) -> str:
        """The field `from`."""
        return str(getattr(self, "from"))


class ModelSpec(Spec):
    """Base of a family's network spec. Subclasses add `family: Literal[NAME] = NAME`."""

    masks_documents: ClassVar[bool] = False
    """True for a network of tokens that attends within documents where `TextCodec.packing` is
    `masked`.
    """

    added_fields: ClassVar[Mapping[str, Any]] = {"init": None}
    """Fields that came after the first runs, with the value under which a run is what it was
    without them; a run's content hash drops fields of this value. Subclasses that add some keep
    those of the base."""

    family: str
    init: WeightsInit | None = None
    """Published weights to begin from; null: fresh ones, drawn from the seed."""

    def batch_fields(self) -> tuple[BatchField, ...]:
        """Return the fields of the network's batches."""
        raise NotImplementedError


class ObjectiveSpec(Spec):
    """Base of a family's objective spec. Subclasses add `weights`, a spec with one float per loss
    component.
    """

    component_prediction: ClassVar[str | None] = None
    """The quantity that loss components of other packages compare, such as `velocity`; None: it
    takes none.
    """

    added_fields: ClassVar[Mapping[str, Any]] = {}
    """Fields that came after the first runs, with the value under which a run is what it was
    without them; a run's content hash drops fields of this value."""

    quarters: ClassVar[str] = ""
    """Sentence for a reader on held-out metrics that end in `_t0` to `_t3`; empty where there are
    none.
    """

    weights: Spec

    def batch_fields(self, model: ModelSpec) -> tuple[BatchField, ...]:
        """Return the fields that the loss reads beside the model's."""
        return ()

    def typical_reads(self, model: ModelSpec, batch_size: int) -> tuple[int, ...]:
        """Return the integers that the loss reads from its device, in order, at typical values, for
        traces without values."""
        return ()

    def assumed_shapes(self, model: ModelSpec, known: Shapes) -> Shapes:
        """Return the shape of one sample of fields with axes of any size, for plans where the data
        do not tell.

        `known`: shapes that they do tell. Axes of fields that are not named count as long as they
        may be.
        """
        return {}

    def metric_settings(self, model: ModelSpec) -> MetricSettings:
        """Return by held-out metric the settings that its values depend on beside network and
        samples; "": all metrics.

        Runs are compared, and trials ranked, where these are equal. Unless a family says less, they
        are all but the weights.
        """
        return {"": self.model_dump(mode="json", exclude={"weights"})}

    def input_laws(self, model: ModelSpec) -> tuple[InputLaw, ...]:
        """Return the laws of the network's random inputs in training, such as its times, as far as
        they are known: proofs compare what `loss` draws with them."""
        return ()

    def least_losses(self, model: ModelSpec) -> Mapping[str, float]:
        """Return the least value that a loss component can have, by the names of those for which
        one is known."""
        return {}

    def check(self, model: ModelSpec) -> None:
        """Raise ValueError if this loss does not fit the model, as far as the specs show."""

    def check_shapes(self, model: ModelSpec, shapes: Shapes) -> None:
        """Raise ValueError if the loss cannot take batches whose fields have these shapes (without
        the batch dimension)."""


class SamplingSpec(Spec):
    """Base of a family's sampling spec: the defaults of `ditlab sample` and of evaluation's
    grids.
    """

    takes_solvers: ClassVar[bool] = False
    """True where `solver` may be another package's: a function as in
    `ditlab_models.processes.solvers`.
    """
    added_solvers: ClassVar[Mapping[str, str]] = {}
    """Solvers of other packages by name, with the place of each (`module:function`)."""

    def find_solver(self, own: Mapping[str, Callable[..., Tensor]]) -> Callable[..., Tensor]:
        """Return the function of the spec's `solver`: one of the family's `own`, or another
        package's.
        """
        name: str = getattr(self, "solver")  # noqa: B009  a field of families with `takes_solvers`
        if name in own:
            return own[name]
        return resolve_name(self.added_solvers[name])

    def evaluation_times(self, model: ModelSpec, objective: ObjectiveSpec) -> SamplingTimes | None:
        """Return the times at which the network is evaluated for one sample; None: not known."""
        return None

    def guided_by(self, scale: float, model: ModelSpec) -> SamplingSpec | None:
        """Return this spec with one guidance scale at all times and nothing else that changes a
        guided prediction; None: samples of this model are not guided."""
        return None

    def check(self, model: ModelSpec, objective: ObjectiveSpec) -> None:
        """Raise ValueError if a model trained with this objective cannot sample so, as far as the
        specs show.
        """


@runtime_checkable
class RoledNetwork(Protocol):
    """Network that names the modules whose weights have another role than their class says."""

    def role_modules(self) -> ModulesByRole:
        """Return modules by the role of their weights, submodules included; biases and norms keep
        their own.
        """
        ...


class Network(Protocol):
    """The three methods that a family's network, an `nn.Module`, has beside a module's own."""

    def components(self) -> ModuleGroups:
        """Return named groups of submodules that together own every parameter exactly once: a
        parameter count's rows."""
        ...

    def checkpointed_modules(self) -> Sequence[nn.Module]:
        """Return the modules whose activations are recomputed in the backward pass under activation
        checkpointing.
        """
        ...

    def compiled_modules(self) -> ModuleGroups:
        """Return the modules that `engine.compile` compiles, by block kind.

        Modules of a kind share one graph: they are of one class, differ in the values of their
        weights alone, and take the same inputs, whose sizes may vary.
        """
        ...


class NoiseSource(Protocol):
    """Source of all random numbers of an objective, keyed by (seed, step, global micro-batch index,
    name).

    `shape` includes the batch dimension, first. Two calls with one name give the same numbers,
    whatever was drawn between them. A slice of a micro-batch gets its slice of the numbers of the
    whole one.
    """

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw from U[0, 1), float32, on the batch's device."""
        ...

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw from N(0, 1), float32, on the batch's device."""
        ...


@dataclass(frozen=True)
class TextCodec:
    """Conversion between text and the tokens of a data set."""

    encode: Callable[[str], list[int]]
    """Text to tokens, without an end token."""
    decode: Callable[[Sequence[int]], str]
    """Tokens to text; an end token shows."""
    vocabulary: int
    end: int
    """Token at the end of every document."""
    bytes_per_token: float | None = None
    """Bytes of UTF-8 per token of the data, on average; None where the data are not at hand."""
    packing: Literal["joined", "masked"] = "joined"
    """Attention among the documents of a row. `joined`: a token attends to all of its row;
    `masked`: to those of its document."""


@dataclass(frozen=True)
class RealRows:
    """Rows of a data set, both as batch fields and as the store's columns."""

    batch: Batch
    """The model's fields, (num, *shape) each, on its device."""
    columns: Mapping[str, np.ndarray]
    """The store's other columns, (num, *shape) each; class names in place of class indices that
    have names.
    """
    names: Mapping[str, Sequence[str]]
    """Names of the entries along a column's last axis, for the columns that have them: those of
    motifs.
    """
    noise: NoiseSource
    """Fixed draws of these rows: the same in every run, whatever the batch size."""


@dataclass(frozen=True)
class RowSet:
    """Rows of a data set in a fixed order, which can be iterated any number of times."""

    num: int
    batches: Callable[[int], Iterator[RealRows]]
    """Iterate over all rows in batches of the given size; the last one may be smaller."""


@dataclass(frozen=True)
class Prompt:
    """Text that samples hold at a given position."""

    text: str
    position: int = 0
    """Index of its first token; negative counts from a sample's end."""


@dataclass(frozen=True)
class SampleRequest:
    """Conditions of samples."""

    label: int | None = None
    """Class of every sample."""
    prompts: Sequence[Prompt] = ()
    """Text of every sample, the rest being filled in; for a sampler that `draws_per_prompt`,
    descriptions of samples: equally many samples for each prompt, one prompt's after the other's.
    """
    negative_prompt: str | None = None
    """Description that guidance leads away from; None: the sampler's default."""
    encode: Callable[[Sequence[str]], Mapping[str, Tensor]] | None = None
    """Texts to batch fields, (num, ...) each, where an encoder outside the network makes them."""
    size: tuple[int, int] | None = None
    """(height, width) in pixels, for families that draw any size."""
    seed: int | None = None
    """Seed of the first sample (of each prompt); the next ones count up. None: the sampler's
    generator gives seeds.
    """
    start: Tensor | None = None
    """(channels, height, width) in the model's range: an image that sampling starts from, in place
    of pure noise.
    """
    strength: float = 1.0
    """Share of the way from noise that is done again from `start`: 1 is all of it, near 0 keeps the
    image.
    """
    rows: RealRows | None = None
    """One row per sample, for a sampler that completes rows or takes its conditions from them."""
    classes: Sequence[int] = ()
    """Classes that samples without `label` are of in turn, those that the data hold; empty: all of
    the model's.
    """


DEFAULT_REQUEST = SampleRequest()
"""A request without conditions."""


class Objective(Protocol):
    """A family's loss. The sum of its components, weighted by `weights`, is trained; components are
    logged one by one."""

    weights: dict[str, float]
    """Weights by loss component; `loss` may skip a component with weight 0."""

    modules: nn.Module | None
    """The objective's own modules: trained and checkpointed, never part of a parameter total
    (`training_only`).
    """

    def loss(
        self, network: nn.Module, batch: Batch, noise_source: NoiseSource
    ) -> dict[str, Tensor]:
        """Return the components by name, each an unweighted mean over the micro-batch (a scalar
        tensor).
        """
        ...

    def metrics(
        self, network: nn.Module, batch: Batch, noise_source: NoiseSource
    ) -> dict[str, Tensor]:
        """Return held-out metrics by name: every loss component, whatever its weight, and more.

        Each is a value a sample, (B,), whose mean counts, and from which the noise of held-out
        draws is known; or a mean over the batch, a scalar.
        """
        ...

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics to report, from the means of `metrics` over all held-out samples: most
        are these means.
        """
        ...

    def metric_names(self) -> Sequence[str]:
        """Return the names that `summary` gives, without computing them: the metrics that a sweep
        can rank by.
        """
        ...

    def figures(
        self,
        network: nn.Module,
        batch: Batch,
        sampler: Sampler,
        generator: torch.Generator,
        kinds: Sequence[str] | None = None,
    ) -> Iterator[tuple[str, Figure]]:
        """Draw figures of a trained network: (kind, figure) for every kind, or for `kinds`
        alone.
        """
        ...

    def figure_kinds(self) -> Sequence[str]:
        """Return the kinds that `figures` gives, without drawing them."""
        ...


@runtime_checkable
class KnownOptimumObjective(Protocol):
    """An objective that knows how far a network is from the best one, on data of some laws."""

    def knows_optimum(self, law: Any) -> bool:
        """Return True where the best network on data of this law has a closed form."""
        ...

    def excess_loss(
        self, network: nn.Module, law: Any, batch: Batch, noise_source: NoiseSource
    ) -> Tensor:
        """Return the held-out loss above the least possible one, (B,), expected given the corrupted
        inputs that `metrics` draws: it is never below 0, and free of the noise of their targets."""
        ...


@runtime_checkable
class KnownTargetObjective(Protocol):
    """An objective that knows which output of the network its components are least at."""

    def best_output(self, batch: Batch, noise_source: NoiseSource) -> Tensor:
        """Return the output that predicts the targets of `loss` for this batch and these draws
        exactly, in the network's own shape (batch, ...)."""
        ...


@runtime_checkable
class DetachingObjective(Protocol):
    """An objective with components whose gradient skips a branch on purpose, so that it is not the
    gradient of their value.
    """

    detaching: Collection[str]
    """Names of these components: proofs compare the gradients of the others with differences of the
    loss.
    """


@runtime_checkable
class RetiringObjective(Protocol):
    """An objective one of whose components ends during training, so that the source of its fields
    can be freed.
    """

    def retired_fields(self, step: int) -> Collection[str]:
        """Return the batch fields that `loss` no longer reads from optimiser step `step` (from 0)
        on. Batches lack them from then on."""
        ...


@runtime_checkable
class PreparingObjective(Protocol):
    """An objective that takes sizes of tensors from values, on the host: of a GPU's they would be
    waited for.
    """

    prepared_from: Collection[str]
    """Batch fields that `prepare` reads."""

    def prepare(self, batch: Batch, noise_source: NoiseSource) -> dict[str, Tensor]:
        """Return further tensors of a training batch, from its rows and from random numbers in the
        host's memory.

        They are moved and join the batch of `loss`, which calls this itself where they are missing.
        """
        ...


@runtime_checkable
class CountingObjective(PreparingObjective, Protocol):
    """An objective whose loss is a sum over a pass, divided by a count that `prepare` returns.

    Training puts the mean of that count over all passes of the step's batch, of all workers, in its
    place: the mean of the passes' losses is then one sum over one count, however the batch is cut.
    """

    counted: Collection[str]
    """Names of the counts among the tensors that `prepare` returns, () in float64 each."""


class LossComponent(ABC):
    """A loss component that a package adds to the objectives of existing families.

    It is computed where `objective.weights` names it, and logged like the family's own components.
    The first line of its docstring describes the weight in the JSON schema.
    """

    name: ClassVar[str]
    """Name below `objective.weights`: letters, digits and `_`, beginning with a letter."""
    prediction: ClassVar[str] = "velocity"
    """The quantity that it compares (`ObjectiveSpec.component_prediction`)."""

    @abstractmethod
    def __call__(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return a scalar, a mean over the batch, from two tensors of one shape (batch, ...),
        float32 or better.
        """


class TimeDensity(Spec):
    """Base of the distributions of training times. Subclasses add `kind: Literal[NAME] = NAME`.

    The family decides which end of [0, 1] is noise: t = 1 in `dit` and `unet`, t = 0 in `pixelhdm`.
    """

    kind: str

    def draw(self, noise_source: NoiseSource, num: int) -> Tensor:
        """Return training times within `bounds`, (num,) float32: drawn from the noise source under
        the name `time`.
        """
        raise NotImplementedError

    def cdf(self, t: float) -> float | None:
        """Return the probability of a time up to `t`; None: not known, and `ditlab prove` does not
        compare what is drawn."""
        return None

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest time."""
        return (0.0, 1.0)


@dataclass(frozen=True)
class Samples:
    """The result of sampling."""

    values: Tensor
    """(num, *sample shape), in the model's own range."""
    conditions: dict[str, Tensor]
    """Conditions of each sample; empty for unconditional samples."""
    trajectory: Tensor | None = None
    """(frames, num, *sample shape), the first frame pure noise, where a trajectory was
    requested.
    """
    fields: dict[str, Any] = field(default_factory=dict)
    """Further values for `show`."""


RowUse = Literal["none", "conditions", "completed"]


class Sampler(Protocol):
    """Draws samples and shows them. A class that names it as its base has the defaults of its
    fields.
    """

    takes_rows: RowUse = "none"
    """Use of real rows: none; a source of conditions (captions) where a request names none; rows to
    complete (imputation). Where not `none`, a request holds as many rows as samples.

    `conditions`: `row_fields` names the batch fields of rows that are conditions; `rows.batch`
    holds these alone. `completed`: `select_rows(rows)` returns a mask (num,) bool of the rows to
    complete, None for all, from their other columns, as `rows.batch` is empty there; `note(rows)` a
    remark on completing just these rows, without a full stop, or "": the part of the request that
    lies in none of them, where `rows.batch` may be empty; `table(samples, rows)` the completed rows
    as NumPy columns of equal length by name, for a table file that other tools read.
    """

    draws_per_prompt: bool = False
    """True if each prompt of a request gets samples of its own."""

    max_batch_size: int | None = None
    """Most samples that are drawn in one batch, where each needs much memory; None: no limit."""

    def conditions(self, num: int, request: SampleRequest = DEFAULT_REQUEST) -> dict[str, Tensor]:
        """Return the conditions of `num` samples: the request's, or a spread over all (classes in
        turn); {} if none apply.

        Raises ValueError for a condition that the model does not have.
        """
        ...

    def sample(
        self,
        network: nn.Module,
        conditions: Conditions,
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
        noise: Tensor | None = None,
    ) -> Samples:
        """Draw `num` samples. Noise is drawn sample by sample, so the first k do not depend on
        `num`.

        `noise` (num, *sample shape) is the state that sampling begins with (tokens, for a process
        of tokens), in place of one drawn from the generator; all other draws stay the same. Raises
        ValueError where it does not fit.
        """
        ...

    def show(self, samples: Samples) -> Figure:
        """Return the samples as a figure: an image grid, text, a heatmap."""
        ...


@runtime_checkable
class GuidedSampler(Sampler, Protocol):
    """A sampler whose predictions are guided away from those without conditions (Ho and Salimans
    2022, arXiv:2207.12598)."""

    def guided(self, network: nn.Module, conditions: Conditions) -> Callable[[Tensor, Any], Tensor]:
        """Return the guided prediction as a function of x (num, ...) and one time."""
        ...

    def unconditioned(self, conditions: Conditions) -> Conditions:
        """Return conditions under which the network predicts what it does without any."""
        ...


@runtime_checkable
class ClassSampler(Sampler, Protocol):
    """A sampler of classes that may have names."""

    class_names: Sequence[str]
    """Names of the classes by number, for `show`, as the platform sets them; a class without one is
    its number.
    """


@dataclass(frozen=True)
class Picture:
    """A sample as an image file."""

    pixels: np.ndarray
    """(height, width, 3) uint8."""
    settings: Mapping[str, str]
    """Settings of the sample by name: prompt, seed, solver."""


@runtime_checkable
class PicturingSampler(Sampler, Protocol):
    """A sampler each of whose samples is an image file of its own."""

    size: tuple[int, int]
    """(height, width) in pixels of samples whose request names no size."""

    def pictures(self, samples: Samples) -> Sequence[Picture]:
        """Return one picture per sample."""
        ...


@dataclass(frozen=True)
class EvaluationResult:
    """The metrics, tables and figures of a trained network."""

    metrics: dict[str, float]
    """Metrics by name, for the run's record."""
    tables: dict[str, dict[str, np.ndarray]]
    """Tables by name: columns of equal length."""
    figures: dict[str, Figure]
    """Figures by name."""


class Evaluator(Protocol):
    """Measures a trained network over whole data sets, beside baselines that need no training."""

    def evaluate(
        self,
        network: nn.Module,
        train: RowSet,
        held_out: RowSet,
        references: Mapping[str, Any],
        batch_size: int,
    ) -> EvaluationResult:
        """Evaluate on `held_out`. Baselines are fitted on `train`; `references` are known
        properties of the data by name, such as the optimum of generated data."""
        ...


@runtime_checkable
class SamplesEvaluator(Evaluator, Protocol):
    """An evaluator that measures drawn samples as well, for families that draw no images: those the
    platform measures."""

    sample_metrics: Sequence[str]
    """Names of the metrics of samples."""

    def measure_samples(
        self, train: RowSet, held_out: RowSet, batch_size: int
    ) -> Callable[[Samples], dict[str, float]]:
        """Return a function from samples, in host memory, to `sample_metrics`; what it needs of the
        rows is computed once."""
        ...


ModelT = TypeVar("ModelT", bound=ModelSpec)
ObjectiveT = TypeVar("ObjectiveT", bound=ObjectiveSpec)
SamplingT = TypeVar("SamplingT", bound=SamplingSpec)


class Family(ABC, Generic[ModelT, ObjectiveT, SamplingT]):
    """Base of a model family. Methods import torch, and the modules that need it, in their bodies.

    `text` converts between text and the tokens of the data, where these are text and the tokeniser
    is known.
    """

    name: str
    """Name of the family: the value of `model.family`."""
    model: type[ModelT]
    objective: type[ObjectiveT]
    """Its fields have defaults, all of them."""
    sampling: type[SamplingT]
    """Its fields have defaults, all of them."""
    processes: tuple[tuple[type[ObjectiveT], type[SamplingT]], ...] = ()
    """Objective and sampling specs of each process, `objective.process`, of a family that trains
    under several; the first are `objective` and `sampling`. Empty: there is one process, and no
    such field."""

    def objectives(self) -> dict[str, type[ObjectiveT]]:
        """Return every objective spec by its process, the default one first; under "" where there
        is one alone.
        """
        found = {
            str(objective.model_fields["process"].default): objective
            for objective, _ in self._pairs()
        }
        return found or {"": self.objective}

    def objective_of(self, mapping: Any) -> type[ObjectiveT]:
        """Return the objective spec that a mapping is written for, by its `process`; the default
        one where it names none, or one that there is not."""
        process = mapping.get("process") if isinstance(mapping, Mapping) else None
        if not isinstance(process, str):
            process = ""
        return self.objectives().get(process, self.objective)

    def sampling_of(self, objective: type[ObjectiveSpec]) -> type[SamplingT]:
        """Return the sampling spec that belongs to an objective spec, or to a subclass of it."""
        return next(
            (sampling for own, sampling in self._pairs() if issubclass(objective, own)),
            self.sampling,
        )

    def _pairs(self) -> tuple[tuple[type[ObjectiveT], type[SamplingT]], ...]:
        """Return `processes` with a subclass' own `objective` and `sampling` in the first place."""
        return self.processes and ((self.objective, self.sampling), *self.processes[1:])

    @abstractmethod
    def build_network(self, model: ModelT) -> Network:
        """Build the network with freshly initialised weights, drawn from torch's global
        generator.
        """

    @abstractmethod
    def build_objective(
        self, objective: ObjectiveT, model: ModelT, text: TextCodec | None = None
    ) -> Objective:
        """Build the loss. Raises ValueError if it does not fit the model."""

    @abstractmethod
    def build_sampler(
        self,
        sampling: SamplingT,
        model: ModelT,
        objective: ObjectiveT,
        text: TextCodec | None = None,
    ) -> Sampler:
        """Build the sampler. Raises ValueError if a model trained with this objective cannot sample
        so.
        """

    @abstractmethod
    def example_inputs(
        self, model: ModelT, batch_size: int, device: str = "meta"
    ) -> tuple[Any, ...]:
        """Return positional inputs of the network's forward pass, for shape traces on the meta
        device.
        """

    def build_evaluator(
        self, objective: ObjectiveT, model: ModelT, text: TextCodec | None = None
    ) -> Evaluator | None:
        """Build the evaluator that `ditlab evaluate` runs beside the objective's metrics; None:
        there is none.
        """
        return None

    def static_figures(self, model: ModelT) -> Mapping[str, Figure]:
        """Return figures by kind that need no trained weights (position tables, patches)."""
        return {}
