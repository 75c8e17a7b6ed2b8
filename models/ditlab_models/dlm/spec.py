"""The language model family's specs. Imports no torch; the defaults are the published sizes
(79,245,649 parameters).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from ditlab_models.checks import check_mlp_ratio, check_multiple
from ditlab_models.contract import (
    BatchField,
    FieldOptions,
    InputLaw,
    MetricSettings,
    ModelSpec,
    NoiseSource,
    ObjectiveSpec,
    PositiveFloat,
    PositiveInt,
    SamplingSpec,
    SamplingTimes,
    Spec,
)
from ditlab_models.processes.specs import (
    TokenNoiseSchedule,
    logit_normal_cdf,
    quarter_names,
    uniform_cdf,
)

if TYPE_CHECKING:
    from torch import Tensor


LAST_TIME = 1e-5
"""Last time of a sampler's steps, as in the paper's public code."""
TINY = 1e-6
"""Distance from 0 and 1 within which a density is taken for that at the distance."""


@dataclass(frozen=True)
class DrawnTimes:
    """Times, and what a loss at them counts for: (B, N) float32 each."""

    s: Tensor
    weight: Tensor | None
    """Factor on the loss; None: 1 everywhere."""


class UniformTokenTime(Spec):
    """s ~ U[0, 1)."""

    kind: Literal["uniform"] = "uniform"
    """Every time equally often."""

    def draw(self, noise_source: NoiseSource, shape: tuple[int, int]) -> DrawnTimes:
        """Draw times under the name `time`."""
        return DrawnTimes(noise_source.uniform("time", shape), None)

    def cdf(self, s: float) -> float:
        """Return the probability of a time up to `s`."""
        return uniform_cdf(s)


class BellTokenTime(Spec):
    """s = sigmoid(mean + std u), u ~ N(0, 1) (Esser et al. 2024, arXiv:2403.03206, section 3.1), or
    uniform at times.

    The uniform share bounds the weights of times that the bell hardly draws (defensive mixture:
    Hesterberg 1995, Technometrics 37, 185): without it their variance would be infinite.
    """

    kind: Literal["logit_normal"] = "logit_normal"
    """More often around one time."""
    mean: float = 0.0
    """Mean of the normal distribution; above 0 leans towards s = 1 (most noise), below 0 towards s
    = 0.
    """
    std: PositiveFloat = 1.0
    """Standard deviation of the normal distribution; small values crowd around the mean."""
    uniform_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of times that are drawn uniformly; no loss counts for more than 1 / `uniform_share`."""
    weighting: Literal["integral", "drawn"] = "integral"
    """`integral`: losses are divided by the density of their times, so that the training loss stays
    the integral of the bound and the density decides its variance alone; `drawn`: every draw counts
    once, dense times for more."""

    def draw(self, noise_source: NoiseSource, shape: tuple[int, int]) -> DrawnTimes:
        """Draw times under the names `time`, `time_bell` and `time_choice`."""
        bell = (self.mean + self.std * noise_source.normal("time_bell", shape)).sigmoid()
        is_uniform = noise_source.uniform("time_choice", shape) < self.uniform_share
        s = noise_source.uniform("time", shape).where(is_uniform, bell)
        if self.weighting == "drawn":
            return DrawnTimes(s, None)
        return DrawnTimes(s, 1 / self.density(s))

    def cdf(self, s: float) -> float:
        """Return the probability of a time up to `s`."""
        bell = logit_normal_cdf(s, self.mean, self.std)
        return self.uniform_share * uniform_cdf(s) + (1 - self.uniform_share) * bell

    def density(self, s: Tensor) -> Tensor:
        """Return the density at times s, in their shape."""
        within = s.clamp(TINY, 1 - TINY)
        z = (within.logit() - self.mean) / self.std
        bell = (-0.5 * z.square()).exp() / (
            self.std * math.sqrt(2 * math.pi) * within * (1 - within)
        )
        return self.uniform_share + (1 - self.uniform_share) * bell


TokenTime = Annotated[UniformTokenTime | BellTokenTime, Field(discriminator="kind")]


class DLMSpec(ModelSpec):
    """A transformer over tokens, modulated by the noise level, for discrete diffusion
    (arXiv:2310.16834).
    """

    masks_documents: ClassVar[bool] = True
    added_fields: ClassVar[Mapping[str, Any]] = {
        **ModelSpec.added_fields,
        "norm": "rms",
        "mlp": "swiglu",
        "final_norm": True,
    }

    family: Literal["dlm"] = "dlm"
    """The discrete diffusion language model."""
    length: PositiveInt = 1024
    """Tokens of a sequence, as the data has them. No parameter depends on it."""
    vocabulary: Annotated[int, Field(ge=2)] = 50257
    """Different tokens; that of the data's tokeniser."""
    depth: PositiveInt = 6
    """Transformer blocks."""
    num_heads: PositiveInt = 8
    """Attention heads of a transformer block; each is width / num_heads wide."""
    width: Annotated[int, Field(ge=2)] = 512
    """Numbers that stand for a token inside the network."""
    mlp_ratio: PositiveFloat = 4.0
    """Hidden width of a transformer block's MLP, in multiples of `width`."""
    condition_width: PositiveInt = 128
    """Width of what the network is told of the noise level."""
    time_width: Annotated[int, Field(ge=2)] = 256
    """Width of the noise level's sinusoid."""
    block_size: PositiveInt | None = None
    """Tokens of a block, a divisor of `length`: trains block-causally, every block given the clean
    blocks before it, for sampling block by block. null: every token sees every other."""
    norm: Literal["rms", "layer"] = "rms"
    """Norms: `rms`, RMSNorm with eps 1e-6; `layer`, LayerNorm with a weight, no bias and eps 1e-5,
    as published.
    """
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    """MLP of a block: `swiglu`, three linear layers without biases; `gelu`, two with biases around
    a tanh GELU, as published."""
    final_norm: bool = True
    """A norm between the last block and the output layer, which has one of its own; false as
    published.
    """

    @model_validator(mode="after")
    def _sizes_fit(self) -> DLMSpec:
        pairs = 2 * self.num_heads
        check_multiple(
            "model.width", self.width, self.num_heads, f"model.num_heads={self.num_heads}", pairs
        )
        reason = (
            f"{pairs} (rotary positions turn pairs of entries of each of "
            f"model.num_heads={self.num_heads} heads)"
        )
        check_multiple("model.width", self.width, pairs, reason)
        check_multiple("model.time_width", self.time_width, 2, "2 (half cosines, half sines)")
        check_mlp_ratio(self.width, self.mlp_ratio)
        if self.block_size is not None and self.length % self.block_size:
            divisors = [size for size in range(1, self.length + 1) if self.length % size == 0]
            below = [size for size in divisors if size < self.block_size][-1:]
            above = [size for size in divisors if size > self.block_size][:1]
            raise ValueError(
                f"model.block_size={self.block_size} does not divide model.length={self.length}; "
                f"set model.block_size to {' or '.join(map(str, below + above))}."
            )
        return self

    @property
    def head_width(self) -> int:
        """Width of an attention head."""
        return self.width // self.num_heads

    @property
    def mlp_width(self) -> int:
        """Hidden width of a block's MLP."""
        return round(self.width * self.mlp_ratio)

    def batch_fields(self) -> tuple[BatchField, ...]:
        options = FieldOptions(shape=("model.length",), num_classes="model.vocabulary")
        return (
            BatchField(
                "tokens",
                (self.length,),
                "int64",
                None,
                "token index",
                self.vocabulary,
                options=options,
            ),
        )


class DLMWeights(Spec):
    """One weight per loss component."""

    score_entropy: PositiveFloat = 1.0
    """Weight of the score entropy, in nats a token."""


class DLMObjectiveSpec(ObjectiveSpec):
    """Score entropy of the uniform discrete process (arXiv:2310.16834, eq. 5)."""

    added_fields: ClassVar[Mapping[str, Any]] = {"time": {"kind": "uniform"}}

    score: Literal["log", "softmax"] = "log"
    """Meaning of the network's output: `log`, the log score (the published objective, never below
    0); `softmax`, logits whose softmax is the score (a variant to compare with: its loss can fall
    below 0)."""
    noise: TokenNoiseSchedule = TokenNoiseSchedule()
    """Noise level by time."""
    time_min: Annotated[float, Field(ge=0, lt=1)] = 1e-3
    """Training times lie between here and 1. Held-out metrics do not depend on it."""
    time: TokenTime = UniformTokenTime()
    """Distribution of training times. Held-out metrics, and so every bound, do not depend on it."""
    scale_by_sigma: bool = False
    """Must be false: scaling of the output by the noise level, which is for the absorbing process
    alone.
    """
    weights: DLMWeights = DLMWeights()
    """Weight of each loss component."""

    def metric_settings(self, model: ModelSpec) -> MetricSettings:
        """Return what each metric is a mean over: the noise levels of the integral, the whole
        schedule, or neither.

        `bound` and what follows from it hold the ends' part, so they compare whatever the noise.
        """
        noise = self.noise.model_dump(mode="json")
        ends = {name: noise[name] for name in ("sigma_min", "sigma_max")}
        by_time = dict.fromkeys(("unweighted", *quarter_names("score_entropy")), noise)
        return {"": {"score": self.score}, "score_entropy": ends, "excess_loss": ends, **by_time}

    def input_laws(self, model: ModelSpec) -> tuple[InputLaw, ...]:
        def cdf(sigma: float) -> float:
            time = self.noise.time_of(sigma)
            return self.time.cdf((time - self.time_min) / (1 - self.time_min))

        law = f"noise levels of {self.time.kind} times from {self.time_min:g} to 1"
        return (InputLaw("sigma", cdf, law),)

    def least_losses(self, model: ModelSpec) -> Mapping[str, float]:
        if self.score == "softmax":
            return {}
        return {"score_entropy": 0.0, "unweighted": 0.0}

    @field_validator("scale_by_sigma")
    @classmethod
    def _not_for_the_uniform_graph(cls, value: bool) -> bool:
        if value:
            raise ValueError(
                "objective.scale_by_sigma=true belongs to the absorbing graph, whose true "
                "scores all hold the factor 1 / (e^sigma - 1); those of the uniform graph "
                "share none. Set objective.scale_by_sigma to false."
            )
        return value


class BlockSampling(Spec):
    """A block after another, each given the finished ones, as models with `model.block_size` are
    trained.
    """

    cache: bool = True
    """Cache keys and values of finished blocks. Without, each pass goes over them again: the same
    tokens, more slowly."""


class DLMSamplingSpec(SamplingSpec):
    """Reverse diffusion from uniformly drawn tokens to text."""

    solver: Literal["euler", "analytic", "categorical"] = "euler"
    """`euler`: steps of the reverse rate; `analytic`: the staggered score times the transposed
    transition (arXiv:2310.16834, eq. 19); `categorical`: repeated draws from the softmax of the
    output, a heuristic."""
    steps: PositiveInt | None = None
    """Network evaluations of a sequence, or of each block with `block`. null: 128, or 50 a
    block.
    """
    denoise: bool = True
    """Remove the noise that is left at t = 1e-5 in a last step (euler and analytic)."""
    temperature: PositiveFloat = 1.0
    """Divisor of the network's output. Of log scores it makes those of a law whose probabilities
    have the power 1/temperature: below 1 likely tokens become likelier, and samples less varied."""
    block: BlockSampling | None = None
    """Block by block, for models with `model.block_size`; null: all tokens at once, for the
    others.
    """
    length: PositiveInt | None = None
    """Tokens to draw; null: `model.length`."""

    def evaluation_times(self, model: ModelSpec, objective: ObjectiveSpec) -> SamplingTimes | None:
        assert isinstance(model, DLMSpec) and isinstance(objective, DLMObjectiveSpec)
        num = self.num_steps
        is_reverse = self.solver != "categorical"
        parts = num if is_reverse else max(1, num - 1)
        times = [1 - (1 - LAST_TIME) * step / parts for step in range(num)]
        if is_reverse and self.denoise:
            times.append(LAST_TIME)
        levels = [objective.noise.level(time) for time in times]
        if self.block is None:
            return SamplingTimes("sigma", tuple(levels))
        assert model.block_size is not None
        blocks = (self.length or model.length) // model.block_size
        finished = objective.noise.sigma_min
        if self.block.cache:  # each block but the last is read again when it is finished
            return SamplingTimes("sigma", tuple([*levels, finished] * (blocks - 1) + levels))
        again = [each for level in levels for each in (finished, level)]
        return SamplingTimes("sigma", tuple(levels + again * (blocks - 1)))

    @property
    def num_steps(self) -> int:
        """`steps`, or its default."""
        if self.steps is not None:
            return self.steps
        return 128 if self.block is None else 50

    def check(self, model: ModelSpec, objective: ObjectiveSpec) -> None:
        """Raise ValueError for a length that the model was not trained for, and for blocks where it
        knows none.
        """
        assert isinstance(model, DLMSpec)
        if self.block is not None and model.block_size is None:
            raise ValueError(
                "sampling.block needs a model trained block by block (model.block_size is null); "
                "set sampling.block to null, or train with model.block_size."
            )
        if self.block is None and model.block_size is not None:
            raise ValueError(
                f"sampling.block is null, and a model with model.block_size={model.block_size} "
                "has only learned to go on from finished blocks; set sampling.block to {}."
            )
        length = self.length or model.length
        if length > model.length:
            raise ValueError(
                f"sampling.length={length} is more than the model was trained on "
                f"(model.length={model.length}); set sampling.length to {model.length} or less."
            )
        if model.block_size is not None:
            check_multiple(
                "sampling.length", length, model.block_size, f"model.block_size={model.block_size}"
            )
