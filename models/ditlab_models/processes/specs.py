"""Specs of noising processes and of images: noise schedules, training and sampling by flow matching
and under the Gaussian process. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from ditlab_models.contract import (
    BatchField,
    FieldOptions,
    InputLaw,
    MetricSettings,
    ModelSpec,
    NoiseSource,
    NonNegativeFloat,
    ObjectiveSpec,
    PositiveFloat,
    PositiveInt,
    SamplingSpec,
    SamplingTimes,
    Share,
    Spec,
    TimeDensity,
    Weight,
)

if TYPE_CHECKING:
    from torch import Tensor


DCT_BLOCK = 8
"""Height and width of a block of the frequency loss, in pixels: JPEG's."""

SolverName = Literal["euler", "heun", "midpoint", "rk4"]
GaussianSolverName = Literal["ddpm", "ddim"]
FLOW_SOLVERS = get_args(SolverName)
GAUSSIAN_SOLVERS = get_args(GaussianSolverName)
VarianceKind = Literal["learned_range", "posterior", "beta"]
Beta = Annotated[float, Field(gt=0, lt=1)]
MOST_SIGNAL = 0.05
"""Largest alpha_bar at the last timestep that passes for noise."""


NUM_QUARTERS = 4


def quarter_names(component: str) -> tuple[str, ...]:
    """Metric names of a component by quarter of time: `velocity_t0` to `velocity_t3`."""
    return tuple(f"{component}_t{quarter}" for quarter in range(NUM_QUARTERS))


SOLVER_NODES: Mapping[str, tuple[float, ...]] = {
    "euler": (0.0,),
    "heun": (0.0, 1.0),
    "midpoint": (0.0, 0.5),
    "rk4": (0.0, 0.5, 0.5, 1.0),
}
"""Parts of a step after which each solver evaluates the velocity, the nodes of its tableau."""


def uniform_cdf(t: float) -> float:
    """Return the probability of a number of U[0, 1) up to `t`."""
    return min(max(t, 0.0), 1.0)


def logit_normal_cdf(t: float, mean: float, std: float) -> float:
    """Return the probability of sigmoid(mean + std u), u ~ N(0, 1), up to `t`."""
    if not 0 < t < 1:
        return uniform_cdf(t)
    return NormalDist(mean, std).cdf(math.log(t / (1 - t)))


def time_law(time: TimeDensity) -> tuple[InputLaw, ...]:
    """Return the law of the network's argument `t` under a density of times, where it is known."""
    if time.cdf(0.5) is None:
        return ()
    return (InputLaw("t", lambda t: time.cdf(t) or 0.0, f"times of kind {time.kind}"),)


def timestep_law(num_steps: int) -> tuple[InputLaw, ...]:
    """Return the law of an argument `t` that is uniform over the timesteps 0 to T - 1."""

    def cdf(t: float) -> float:
        return uniform_cdf((math.floor(t) + 1) / num_steps)

    return (InputLaw("t", cdf, f"uniform over the timesteps 0 to {num_steps - 1}"),)


def even_timesteps(num_steps: int, taken: int) -> SamplingTimes:
    """Return `taken` timesteps of T = `num_steps` at even distances from T - 1 down to 0."""
    last = num_steps - 1
    values = tuple(last * (1 - number / max(1, taken - 1)) for number in range(taken))
    return SamplingTimes("t", values, rounding=0.5)


class UniformTime(TimeDensity):
    """t ~ U[0, 1)."""

    kind: Literal["uniform"] = "uniform"
    """Every time equally often."""

    def draw(self, noise_source: NoiseSource, num: int) -> Tensor:
        """Training times, (num,), drawn under the name `time`."""
        return noise_source.uniform("time", (num,))

    def cdf(self, t: float) -> float:
        return uniform_cdf(t)


class LogitNormalTime(TimeDensity):
    """t = eps + (1 - 2 eps) sigmoid(mean + std u), u ~ N(0, 1) (Esser et al. 2024,
    arXiv:2403.03206, section 3.1).
    """

    kind: Literal["logit_normal"] = "logit_normal"
    """More often in the middle, where the velocity is hardest to tell."""
    mean: float = 0.0
    """Mean of the normal distribution; above 0 leans towards t = 1, below 0 towards t = 0."""
    std: PositiveFloat = 1.0
    """Standard deviation of the normal distribution; small values crowd around the mean."""
    eps: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Smallest distance of t from 0 and from 1."""

    def draw(self, noise_source: NoiseSource, num: int) -> Tensor:
        """Training times, (num,), drawn under the name `time`."""
        t = (self.mean + self.std * noise_source.normal("time", (num,))).sigmoid()
        return self.eps + (1 - 2 * self.eps) * t

    def cdf(self, t: float) -> float:
        return logit_normal_cdf((t - self.eps) / (1 - 2 * self.eps), self.mean, self.std)

    @property
    def bounds(self) -> tuple[float, float]:
        """`eps` and 1 - `eps`."""
        return (self.eps, 1 - self.eps)


TimeSampling = Annotated[UniformTime | LogitNormalTime, Field(discriminator="kind")]


class ImageModelSpec(ModelSpec):
    """Base of a network that maps a square image, a time and perhaps a class to an image of the
    same shape.
    """

    image_size: PositiveInt = 28
    """Height and width of an image, in pixels."""
    channels: PositiveInt = 1
    """Colour channels of an image: 1 for grey, 3 for RGB."""
    num_classes: PositiveInt | None = None
    """Classes to condition on (labels 0 to num_classes - 1); null for an unconditional model."""
    label_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of training labels replaced by the null class, so that guidance works. Unused without
    classes.
    """
    time_scale: PositiveFloat = 1.0
    """Multiplies t in [0, 1] before its sinusoid; 1000 spreads it over more of the frequencies."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return (self.channels, self.image_size, self.image_size)

    @property
    def predicts_variance(self) -> bool:
        """True for a network with twice the channels in its output, the second half for a learned
        variance.
        """
        return False

    def batch_fields(self) -> tuple[BatchField, ...]:
        options = FieldOptions(shape=("model.channels", "model.image_size", "model.image_size"))
        image = BatchField(
            "image", self.image_shape, "float32", (-1.0, 1.0), "pixel intensity", options=options
        )
        if self.num_classes is None:
            return (image,)
        options = FieldOptions(num_classes="model.num_classes")
        return (
            image,
            BatchField(
                "label", (), "int64", None, "class index", self.num_classes, options=options
            ),
        )


class VelocityWeights(Spec):
    """One weight per loss component; a component with weight 0 is not computed in training."""

    velocity: Weight = 1.0
    """Weight of the mean squared error of the velocity, per pixel."""
    direction: Weight = 0.0
    """Weight of 1 - cos(predicted velocity, velocity), per image (FasterDiT, arXiv:2410.10356)."""

    @model_validator(mode="after")
    def _some_weight(self) -> VelocityWeights:
        if not any(getattr(self, name) for name in type(self).model_fields):
            raise ValueError(
                "objective.weights are all 0, so nothing trains; set "
                "objective.weights.velocity to 1."
            )
        return self


class VelocitySpec(ObjectiveSpec):
    """Base of an objective spec that regresses the velocity of x_t = (1 - t) x0 + t x1, x0 data, x1
    noise.
    """

    component_prediction = "velocity"
    quarters = (
        "t0 to t3: the held-out velocity error by quarter of time, from t0 (t below 1/4, "
        "nearly clean data) to t3 (t from 3/4 on, nearly pure noise)."
    )

    added_fields: ClassVar[Mapping[str, Any]] = {"process": "flow"}

    process: Literal["flow"] = "flow"
    """Straight lines from data to noise (flow matching). Families that have it also train under
    `gaussian`.
    """
    time: TimeSampling = UniformTime()
    """Distribution of training times. Held-out metrics always use uniform times."""
    weights: VelocityWeights = VelocityWeights()
    """Weight of each loss component."""

    def check(self, model: ModelSpec) -> None:
        """Raise ValueError for a model whose output is not a velocity alone."""
        if isinstance(model, ImageModelSpec) and model.predicts_variance:
            raise ValueError(
                "model.variance_channels=predicted is read under objective.process=gaussian "
                "alone (it is flow); set model.variance_channels to none or unused."
            )

    def metric_settings(self, model: ModelSpec) -> MetricSettings:
        """Return {}: held-out errors are those of any network's velocity at uniform times."""
        return {}

    def input_laws(self, model: ModelSpec) -> tuple[InputLaw, ...]:
        return time_law(self.time)

    def least_losses(self, model: ModelSpec) -> Mapping[str, float]:
        return {"velocity": 0.0, "direction": 0.0}


class FlowSamplingSpec(SamplingSpec):
    """Integration of the velocity from t = 1 (noise) to t = 0 (data)."""

    takes_solvers: ClassVar = True
    solver: SolverName = "euler"
    """Network evaluations a step: euler 1, heun 2, midpoint 2, rk4 4."""
    steps: PositiveInt = 50
    """Equal steps from t = 1 to t = 0."""
    guidance: NonNegativeFloat = 1.0
    """Classifier-free guidance scale: 1 is the conditional model, more follows the class more
    closely.
    """
    guided_channels: PositiveInt | None = None
    """Channels that guidance changes, the first so many: 3 of 4 in the published DiT and SiT; null:
    all.
    """

    @field_validator("solver", mode="before")
    @classmethod
    def _solves_a_flow(cls, solver: Any) -> Any:
        if solver in GAUSSIAN_SOLVERS:
            raise wrong_solver(solver, "gaussian")
        return solver

    def evaluation_times(self, model: ModelSpec, objective: ObjectiveSpec) -> SamplingTimes | None:
        if self.solver not in SOLVER_NODES:
            return None
        nodes = SOLVER_NODES[self.solver]
        values = [1 - (step + node) / self.steps for step in range(self.steps) for node in nodes]
        return SamplingTimes("t", tuple(values), shift=-1.0)

    def guided_by(self, scale: float, model: ModelSpec) -> FlowSamplingSpec | None:
        if not is_guided(model):
            return None
        return self.model_copy(update={"guidance": scale, "guided_channels": None})

    def check(self, model: ModelSpec, objective: ObjectiveSpec) -> None:
        """Raise ValueError where the model has not learned what `solver` or `guidance` needs."""
        if isinstance(objective, GaussianSpec):
            raise wrong_solver(self.solver, "flow")
        check_guidance(self.guidance, self.guided_channels, model)


def is_guided(model: ModelSpec) -> bool:
    """Return True for a model of classes that has seen the null class in training."""
    assert isinstance(model, ImageModelSpec), f"{type(model).__name__} is no image model"
    return model.num_classes is not None and model.label_dropout > 0


def check_guidance(guidance: float, guided_channels: int | None, model: ModelSpec) -> None:
    """Raise ValueError where the model has not learned what guidance needs, or has fewer
    channels.
    """
    assert isinstance(model, ImageModelSpec), f"{type(model).__name__} is no image model"
    if guidance != 1 and model.num_classes is None:
        raise ValueError(
            f"sampling.guidance={guidance:g} needs a conditional model (model.num_classes is "
            "null); set sampling.guidance to 1, or train with model.num_classes."
        )
    if guidance != 1 and model.label_dropout == 0:
        raise ValueError(
            f"sampling.guidance={guidance:g} needs a null class seen in training "
            "(model.label_dropout=0); set sampling.guidance to 1, or train with "
            "model.label_dropout=0.1."
        )
    if guided_channels is not None and guided_channels > model.channels:
        raise ValueError(
            f"sampling.guided_channels={guided_channels} is more than "
            f"model.channels={model.channels}; set sampling.guided_channels to "
            f"{model.channels} or less, or null for all."
        )


def wrong_solver(solver: str, process: str) -> ValueError:
    """The refusal of a solver of this process under the other one."""
    other = "flow"
    own: tuple[str, ...] = FLOW_SOLVERS
    if process == "flow":
        other = "gaussian"
        own = GAUSSIAN_SOLVERS
    return ValueError(
        f"sampling.solver={solver} is for objective.process={process}, and "
        f"objective.process={other} here; set sampling.solver to one of {', '.join(own)}."
    )


class LinearBetas(Spec):
    """beta_t rises linearly over the timesteps (Ho et al. 2020, arXiv:2006.11239, section 4)."""

    steps: Annotated[int, Field(ge=2, le=100_000)] = 1000
    """Timesteps T; t runs from 0 (least noise) to T - 1."""
    beta_start: Beta = 1e-4
    """Share of variance that timestep 0 replaces by noise."""
    beta_end: Beta = 0.02
    """The same of timestep T - 1."""

    @model_validator(mode="after")
    def _rises(self) -> LinearBetas:
        if self.beta_end < self.beta_start:
            raise ValueError(
                f"objective.noise.beta_end={self.beta_end:g} is below "
                f"objective.noise.beta_start={self.beta_start:g}; set objective.noise.beta_end "
                f"to {self.beta_start:g} or more."
            )
        return self

    def check_ends_in_noise(self) -> None:
        """Raise ValueError where alpha_bar at the last timestep is above MOST_SIGNAL."""
        rise = (self.beta_end - self.beta_start) / (self.steps - 1)
        left = math.prod(1 - self.beta_start - rise * t for t in range(self.steps))
        if left <= MOST_SIGNAL:
            return
        # alpha_bar <= exp(-sum of betas) = exp(-T (beta_start + beta_end) / 2), which is 0.0498
        # where the sum is 3
        enough = 1.06 * (6 / self.steps - self.beta_start)  # 6% more, as two digits are shown
        remedy = ""
        if enough < 1:
            remedy = f"set objective.noise.beta_end to {enough:.2g} or more, or "
        raise ValueError(
            f"objective.noise.beta_end={self.beta_end:g} with "
            f"objective.noise.beta_start={self.beta_start:g} and "
            f"objective.noise.steps={self.steps} leaves alpha_bar={left:.3g} at the last "
            f"timestep, and sampling begins with pure noise there (at most {MOST_SIGNAL}); "
            f"{remedy}raise objective.noise.steps."
        )


class GaussianWeights(Spec):
    """One weight per loss component; a component with weight 0 is not computed in training."""

    noise: Weight = 1.0
    """Weight of the mean squared error of the noise, per pixel."""
    bound: Weight = 0.001
    """Weight of the variational bound, in bits per dimension, which trains the variance alone:
    0.001 is the hybrid loss (Nichol and Dhariwal 2021, arXiv:2102.09672, eq. 16), that of the
    published DiT."""

    @model_validator(mode="after")
    def _noise_is_trained(self) -> GaussianWeights:
        if not self.noise:
            raise ValueError(
                "objective.weights.noise=0 leaves the prediction of noise untrained, as the "
                "bound trains the variance alone; set objective.weights.noise to 1."
            )
        return self


class GaussianSpec(ObjectiveSpec):
    """Regression of the noise of x_t = sqrt(alpha_bar_t) x0 + sqrt(1 - alpha_bar_t) noise at whole
    timesteps t (Ho et al. 2020, arXiv:2006.11239), with a fixed or a learned variance of the
    reverse process."""

    quarters = (
        "t0 to t3: the held-out noise error by quarter of the timesteps, from t0 (nearly clean "
        "data) to t3 (nearly pure noise)."
    )

    process: Literal["gaussian"] = "gaussian"
    """Gaussian noise in whole timesteps, whose noise the network predicts."""
    noise: LinearBetas = LinearBetas()
    """Noise schedule."""
    variance: VarianceKind = "learned_range"
    """Variance of a reverse step: `learned_range`, whose logarithm the network interpolates between
    that of the other two (arXiv:2102.09672, eq. 15); `posterior`, that of q(x_(t-1) | x_t, x0);
    `beta`, that of the step itself."""
    weights: GaussianWeights = GaussianWeights()
    """Weight of each loss component."""

    def input_laws(self, model: ModelSpec) -> tuple[InputLaw, ...]:
        return timestep_law(self.noise.steps)

    def least_losses(self, model: ModelSpec) -> Mapping[str, float]:
        return {"noise": 0.0, "bound": 0.0}

    @model_validator(mode="after")
    def _bound_trains_something(self) -> GaussianSpec:
        if self.variance != "learned_range" and self.weights.bound:
            raise ValueError(
                f"objective.weights.bound={self.weights.bound:g} trains a learned variance, and "
                f"objective.variance={self.variance} is fixed; set objective.weights.bound to 0."
            )
        return self

    def check(self, model: ModelSpec) -> None:
        """Raise ValueError for a schedule that leaves data at its end, or a model without the
        variance that is read.
        """
        assert isinstance(model, ImageModelSpec), f"{type(model).__name__} is no image model"
        self.noise.check_ends_in_noise()
        if self.variance == "learned_range" and not model.predicts_variance:
            remedy = "objective.variance to posterior with objective.weights.bound=0"
            if "variance_channels" in type(model).model_fields:
                remedy = f"model.variance_channels to predicted, or {remedy}"
            raise ValueError(
                "objective.variance=learned_range needs channels for the variance, which this "
                f"model does not predict; set {remedy}."
            )
        if self.variance != "learned_range" and model.predicts_variance:
            raise ValueError(
                f"objective.variance={self.variance} is fixed and leaves "
                "model.variance_channels=predicted unread; set model.variance_channels to "
                "none, or objective.variance to learned_range."
            )


class GaussianSamplingSpec(SamplingSpec):
    """The reverse process over some of the timesteps, from the last one (noise) to 0."""

    solver: GaussianSolverName = "ddpm"
    """`ddpm`: ancestral sampling with the variance of the objective; `ddim`: Song et al. 2021
    (arXiv:2010.02502). One network evaluation a step."""
    steps: PositiveInt = 250
    """Timesteps taken, evenly spaced from the last one to 0; at most objective.noise.steps."""
    eta: Share = 0.0
    """Share of ancestral sampling's noise that `ddim` adds: 0 is deterministic. Unused by
    `ddpm`.
    """
    guidance: NonNegativeFloat = 1.0
    """Classifier-free guidance scale: 1 is the conditional model, more follows the class more
    closely.
    """
    guided_channels: PositiveInt | None = None
    """Channels that guidance changes, the first so many: 3 of 4 in the published DiT; null: all, as
    in diffusers.
    """

    @field_validator("solver", mode="before")
    @classmethod
    def _reverses_the_process(cls, solver: Any) -> Any:
        if solver in FLOW_SOLVERS:
            raise wrong_solver(solver, "flow")
        return solver

    def evaluation_times(self, model: ModelSpec, objective: ObjectiveSpec) -> SamplingTimes | None:
        assert isinstance(objective, GaussianSpec)
        return even_timesteps(objective.noise.steps, self.steps)

    def guided_by(self, scale: float, model: ModelSpec) -> GaussianSamplingSpec | None:
        if not is_guided(model):
            return None
        return self.model_copy(update={"guidance": scale, "guided_channels": None})

    def check(self, model: ModelSpec, objective: ObjectiveSpec) -> None:
        """Raise ValueError for a flow's objective, too many steps, or guidance that the model has
        not learned.
        """
        if not isinstance(objective, GaussianSpec):
            raise wrong_solver(self.solver, "gaussian")
        if self.steps > objective.noise.steps:
            raise ValueError(
                f"sampling.steps={self.steps} is more than "
                f"objective.noise.steps={objective.noise.steps}; set sampling.steps to "
                f"{objective.noise.steps} or less."
            )
        if self.eta and self.solver != "ddim":
            raise ValueError(
                f"sampling.eta={self.eta:g} is read by sampling.solver=ddim alone (it is "
                f"{self.solver}); set sampling.eta to 0, or sampling.solver to ddim."
            )
        check_guidance(self.guidance, self.guided_channels, model)


class TokenNoiseSchedule(Spec):
    """Noise sigma by time t, from 0 (least noise) to 1 (Lou et al. 2024, arXiv:2310.16834, section
    5.1).
    """

    kind: Literal["geometric", "loglinear"] = "geometric"
    """`geometric`: sigma(t) = sigma_min^(1 - t) sigma_max^t. `loglinear`: the share of tokens that
    have moved, 1 - e^-sigma(t), rises linearly."""
    sigma_min: PositiveFloat = 1e-3
    """Noise at t = 0: about this share of tokens is then replaced by random ones."""
    sigma_max: Annotated[float, Field(gt=0, le=30)] = 1.0
    """Noise at t = 1. e^-sigma_max of the tokens are still their own there: 37% at 1, none to speak
    of at 20. What the sampler's uniform start then has wrong is `prior_kl`, a part of every bound.
    """

    @model_validator(mode="after")
    def _rises(self) -> TokenNoiseSchedule:
        if self.sigma_max <= self.sigma_min:
            raise ValueError(
                f"objective.noise.sigma_max={self.sigma_max:g} is not above "
                f"objective.noise.sigma_min={self.sigma_min:g}; set objective.noise.sigma_max "
                "to 1 or more and objective.noise.sigma_min well below it."
            )
        return self

    def sigma(self, t: Tensor) -> Tensor:
        """Compute sigma at times t in [0, 1], in t's shape."""
        if self.kind == "geometric":
            return self.sigma_min * (t * self._log_span).exp()
        first, last = self._stay
        # 1 - share moved would lose the digits of a small share
        return -(first * (1 - t) + last * t).log()

    def rate_at(self, sigma: Tensor) -> Tensor:
        """Compute d sigma/dt at the given sigma, in its shape."""
        first, last = self._stay
        if self.kind == "geometric":
            return sigma * self._log_span
        return (first - last) * sigma.exp()

    def time(self, sigma: Tensor) -> Tensor:
        """Compute the time at which the noise is sigma, in its shape."""
        if self.kind == "geometric":
            return (sigma / self.sigma_min).log() / self._log_span
        first, last = self._stay
        return (first - (-sigma).exp()) / (first - last)

    def rate(self, t: Tensor) -> Tensor:
        """Compute d sigma/dt at times t, in t's shape."""
        return self.rate_at(self.sigma(t))

    def level(self, t: float) -> float:
        """Return sigma at one time, as its formula is written."""
        if self.kind == "geometric":
            return self.sigma_min ** (1 - t) * self.sigma_max**t
        return -math.log((1 - t) * math.exp(-self.sigma_min) + t * math.exp(-self.sigma_max))

    def time_of(self, sigma: float) -> float:
        """Return the time of a level, the inverse of `level`; within [0, 1]."""
        if sigma <= self.sigma_min:
            return 0.0
        if sigma >= self.sigma_max:
            return 1.0
        if self.kind == "geometric":
            return math.log(sigma / self.sigma_min) / math.log(self.sigma_max / self.sigma_min)
        stays = math.exp(-self.sigma_min)
        return (stays - math.exp(-sigma)) / (stays - math.exp(-self.sigma_max))

    def sigma_at(self, t: float) -> float:
        """Compute sigma at one time."""
        import torch

        return float(self.sigma(torch.tensor(t, dtype=torch.float64)))

    @property
    def _log_span(self) -> float:
        return math.log(self.sigma_max / self.sigma_min)

    @property
    def _stay(self) -> tuple[float, float]:
        """Shares of tokens that have not moved at t = 0 and at t = 1."""
        return math.exp(-self.sigma_min), math.exp(-self.sigma_max)
