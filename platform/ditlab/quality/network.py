"""Small convolutional classifier whose features images are compared by."""

import torch
from torch import Tensor, nn

FEATURES = 64
"""Features of an image."""
WIDTHS = (16, 32, 64, 64, 64)
"""Channels after each halving of the image."""
SMALLEST = 4  # pixels; halving stops there


class SmallClassifier(nn.Module):
    """Convolutions that halve the image down to 4 pixels a side, a layer of features, a layer of class scores.

    Weights are drawn from `generator`: torch's global one belongs to the training that may be going on.
    """

    scale: Tensor

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, generator: torch.Generator) -> None:
        super().__init__()
        channels, height, width = image_shape
        layers, number = [*_convolution(channels, WIDTHS[0], stride=1)], 0
        while min(height, width) > SMALLEST:
            layers += _convolution(WIDTHS[number], WIDTHS[number + 1], stride=2)
            height, width, number = -(-height // 2), -(-width // 2), number + 1
        self.body = nn.Sequential(
            *layers, nn.Flatten(), nn.utils.skip_init(nn.Linear, WIDTHS[number] * height * width, FEATURES)
        )
        self.head = nn.utils.skip_init(nn.Linear, FEATURES, num_classes)
        self.register_buffer("scale", torch.ones(()))
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def features(self, images: Tensor) -> Tensor:
        """Return features, (num, 64), whose mean square over real images is 1."""
        return nn.functional.silu(self.body(images)) * self.scale

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, (num, classes)."""
        return self.head(nn.functional.silu(self.body(images)))


def _convolution(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    convolution = nn.utils.skip_init(nn.Conv2d, inputs, outputs, 3, stride=stride, padding=1)
    return [convolution, nn.GroupNorm(8, outputs), nn.SiLU()]
