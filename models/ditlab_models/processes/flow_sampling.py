"""Samples by integration of a network's velocity from noise at t = 1 to data at t = 0, and guidance
(arXiv:2207.12598)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ditlab_models.checks import check_no_prompts
from ditlab_models.contract import DEFAULT_REQUEST, Conditions, Sampler, SampleRequest, Samples
from ditlab_models.figures import WANTED_COLUMNS, Figure, ImageGrid, grid_columns
from ditlab_models.processes.draws import starting_noise, state_dtype
from ditlab_models.processes.flow import repeat_time
from ditlab_models.processes.flow_figures import class_name, to_pictures
from ditlab_models.processes.gaussian import Draw
from ditlab_models.processes.solvers import SOLVERS, StepCallback, ignore
from ditlab_models.processes.specs import FlowSamplingSpec

Predict = Callable[[Tensor, Tensor, Conditions], Tensor]
"""(x (batch, ...), t (batch,), conditions) -> prediction in x's shape."""
Guided = Callable[[Tensor, "Tensor | float"], Tensor]
"""(x (batch, ...), one time) -> guided prediction in x's shape."""
MAX_CLASS_COLUMNS = 16
"""Columns that fewer classes are repeated in."""


class ImageSampler(Sampler):
    """Base of samplers of images of one shape, conditioned on a class where the model has
    classes.
    """

    guidance: float
    guided_channels: int | None
    """Channels that guidance changes, the first so many; None: all."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int | None) -> None:
        self.image_shape = image_shape
        self.num_classes = num_classes
        self.class_names: Sequence[str] = ()

    def conditions(self, num: int, request: SampleRequest = DEFAULT_REQUEST) -> dict[str, Tensor]:
        """Return `label` (num,) int64, the requested class or each of the data's in turn; {}
        without classes.
        """
        check_no_prompts(request)
        label = request.label
        if self.num_classes is None:
            if label is not None:
                raise ValueError(
                    f"label={label} was given to an unconditional model (model.num_classes is "
                    "null); leave the label out, or train with model.num_classes."
                )
            return {}
        if label is None:
            classes = torch.tensor(
                [each for each in request.classes if each < self.num_classes]
                or range(self.num_classes)
            )
            return {"label": classes[torch.arange(num) % len(classes)]}
        if not 0 <= label < self.num_classes:
            raise ValueError(
                f"label={label} is no class of this model (model.num_classes={self.num_classes}); "
                f"choose a label from 0 to {self.num_classes - 1}."
            )
        return {"label": torch.full((num,), label)}

    def guided(self, network: nn.Module, conditions: Conditions) -> Guided:
        """Return the guided prediction as a function of x (num, ...) and one time."""
        dtype = next(network.parameters()).dtype

        def predict(x: Tensor, t: Tensor, conditions: Conditions) -> Tensor:
            output: Tensor = network(x.to(dtype), t, *conditions.values())
            return output.to(x.dtype)

        def plain(x: Tensor, t: Tensor | float) -> Tensor:
            return predict(x, repeat_time(t, x), {})

        if self.num_classes is None or "label" not in conditions:
            return plain
        labels = {"label": conditions["label"]}
        null = self.unconditioned(conditions)

        def at_time(x: Tensor, t: Tensor | float) -> Tensor:
            return guided_prediction(
                predict,
                x,
                repeat_time(t, x),
                labels,
                null,
                self.guidance,
                num_channels=self.guided_channels,
            )

        return at_time

    def unconditioned(self, conditions: Conditions) -> Conditions:
        """Return the null class in place of each label."""
        return {"label": torch.full_like(conditions["label"], self.num_classes or 0)}

    @torch.no_grad()
    def sample(
        self,
        network: nn.Module,
        conditions: Conditions,
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
        noise: Tensor | None = None,
    ) -> Samples:
        """Draw `num` images (num, channels, height, width), in float32 or better, on the network's
        device; steps + 1 frames."""
        device = next(network.parameters()).device
        draw = self._draws(num, generator, device)
        x = draw(torch.empty(num, *self.image_shape, device="meta")).to(state_dtype(network))
        if noise is not None:
            x = starting_noise(noise, x.shape, x)
        conditions = {name: values.to(device) for name, values in conditions.items()}
        frames = [x]
        x = self._solve(
            self.guided(network, conditions), x, draw, frames.append if trajectory else ignore
        )
        return Samples(x, dict(conditions), torch.stack(frames) if trajectory else None)

    def _draws(self, num: int, generator: torch.Generator, device: torch.device) -> Draw:
        """Return the source of noise for `num` images, on a device."""
        raise NotImplementedError

    def _solve(self, predict: Guided, x: Tensor, draw: Draw, record: StepCallback) -> Tensor:
        """Return the images that the noise x becomes, by the guided prediction."""
        raise NotImplementedError

    def show(self, samples: Samples) -> Figure:
        """Draw a grid of images with their classes."""
        label = samples.conditions.get("label")
        labels = [] if label is None else label.tolist()
        captions = [class_name(number, self.class_names) for number in labels]
        num = len(samples.values)
        classes = list(dict.fromkeys(captions))
        columns = class_columns(num, len(set(labels)))
        named = ""
        if classes:
            more = ""
            if len(classes) > MAX_CLASS_COLUMNS:
                more = f" and {len(classes) - MAX_CLASS_COLUMNS} more"
            in_turn = ", in turn" if len(classes) > 1 else ""
            named = f" of {', '.join(classes[:MAX_CLASS_COLUMNS])}{more}{in_turn}"
        grid = ImageGrid(to_pictures(samples.values), captions, columns)
        return Figure([grid], columns=1, alt=f"{num} samples{named}, {columns} in a row")


def class_columns(num: int, num_classes: int) -> int:
    """Choose how many of `num` images of classes in turn stand in a row: a column holds one class,
    unless the last row would be left mostly empty."""
    if 1 < num_classes <= MAX_CLASS_COLUMNS:
        columns = num_classes * max(1, WANTED_COLUMNS // num_classes)
        if num >= columns and -num % columns <= columns / 4:
            return columns
    return grid_columns(num)


class FlowSampler(ImageSampler):
    """Sampler by integration of the velocity from t = 1 to t = 0."""

    def __init__(
        self, spec: FlowSamplingSpec, image_shape: tuple[int, int, int], num_classes: int | None
    ) -> None:
        super().__init__(image_shape, num_classes)
        self.spec = spec
        self.guidance = spec.guidance
        self.guided_channels = spec.guided_channels

    def _draws(self, num: int, generator: torch.Generator, device: torch.device) -> Draw:
        def draw(like: Tensor) -> Tensor:
            draws = [
                torch.randn(each.shape, generator=generator, device=generator.device)
                for each in like
            ]
            return torch.stack(draws).to(device)

        return draw

    def _solve(self, predict: Guided, x: Tensor, draw: Draw, record: StepCallback) -> Tensor:
        times = torch.linspace(1, 0, self.spec.steps + 1, dtype=torch.float64)
        return self.spec.find_solver(SOLVERS)(predict, x, times, record)


def guided_prediction(
    predict: Predict,
    x: Tensor,
    t: Tensor,
    conditions: Conditions,
    negative: Conditions,
    scale: float,
    rescale: float = 0.0,
    num_channels: int | None = None,
) -> Tensor:
    """Predict v_negative + scale (v - v_negative) in one pass; at scale 1 it is v, at no extra
    cost.

    `negative`, in the shapes of `conditions`, are those that guidance leads away from. `rescale`,
    phi in [0, 1], is the share to which the guided prediction gets each sample's standard deviation
    of v (Lin et al. 2023, arXiv:2305.08891, 3.4). `num_channels`: the first channels that are
    guided, the others being those of v; None: all.
    """
    if scale == 1:
        return predict(x, t, conditions)
    both = {name: torch.cat((values, negative[name])) for name, values in conditions.items()}
    v, v_negative = predict(torch.cat((x, x)), torch.cat((t, t)), both).chunk(2)
    guided = v_negative + scale * (v - v_negative)
    if num_channels is not None:
        guided = torch.cat((guided[:, :num_channels], v[:, num_channels:]), dim=1)
    if rescale == 0:
        return guided
    axes = tuple(range(1, v.ndim))
    ratio = v.std(axes, keepdim=True) / guided.std(axes, keepdim=True)
    return (rescale * ratio + (1 - rescale)) * guided
