"""Inception v3 of FID (Szegedy et al. 2015, arXiv:1512.00567), as ported from TensorFlow's graph of
2015-12-05.

Names and shapes are those of the published weights (`pt_inception-2015-12-05-6726825d.pth`, which
pytorch-fid and torch-fidelity read). It differs from torchvision's: average pools count no padding,
the last block's pool takes the largest value, and images are resized as TensorFlow 1 did.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d, relu

SIZE = 299
"""Pixels of a side to which images are resized."""
WIDTH = 2048
"""Features of an image."""
Size = int | tuple[int, int]


class BasicConv2d(nn.Module):
    """Convolution that keeps the size at stride 1 (unless `padding` is given), batch norm, ReLU."""

    def __init__(
        self, inputs: int, outputs: int, kernel: Size, stride: int = 1, padding: Size | None = None
    ) -> None:
        super().__init__()
        if padding is None:
            height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
            padding = (height // 2, width // 2) if stride == 1 else 0
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.bn(self.conv(x)))


Layer = tuple[int, Size] | tuple[int, Size, int]
"""Outputs, kernel and, where it is not 1, stride of a convolution."""
PAIR: list[Layer] = [(384, (1, 3)), (384, (3, 1))]


class Block(nn.Module):
    """Branches side by side, joined along channels.

    The convolutions of a branch follow each other as `BRANCH_1`, `BRANCH_2` and so on; a single one
    is `BRANCH`, and two in a list are side by side, with `a` and `b` behind the name. `branch_pool`
    begins with the pool.
    """

    def __init__(self, inputs: int, pool: str, **branches: Sequence[Layer | list[Layer]]) -> None:
        super().__init__()
        self.pool = pool
        self.branches: dict[str, list[list[str]]] = {}
        for branch, steps in branches.items():
            names = self.branches[branch] = []
            width = inputs
            for number, step in enumerate(steps, start=1):
                name = f"{branch}_{number}" if len(steps) > 1 else branch
                if isinstance(step, list):
                    layers = {f"{name}a": step[0], f"{name}b": step[1]}
                else:
                    layers = {name: step}
                for each, layer in layers.items():
                    self.add_module(each, BasicConv2d(width, *layer))
                names.append([*layers])
                width = layer[0]

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for branch, steps in self.branches.items():
            y = self._pooled(x) if branch == "branch_pool" else x
            for names in steps:
                sides = [self.get_submodule(name)(y) for name in names]
                y = sides[0] if len(sides) == 1 else torch.cat(sides, 1)
            found.append(y)
        return torch.cat(found, 1)

    def _pooled(self, x: Tensor) -> Tensor:
        if self.pool == "mean":
            return avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
        if self.pool == "max":
            return max_pool2d(x, 3, stride=1, padding=1)
        return max_pool2d(x, 3, stride=2)


def block_a(inputs: int, pooled: int) -> Block:
    """Block of 35 x 35 pixels."""
    return Block(
        inputs,
        "mean",
        branch1x1=((64, 1),),
        branch5x5=((48, 1), (64, 5)),
        branch3x3dbl=((64, 1), (96, 3), (96, 3)),
        branch_pool=((pooled, 1),),
    )


def block_c(inner: int) -> Block:
    """Block of 17 x 17 pixels, by convolutions of 1 x 7 and 7 x 1."""
    wide = (inner, (1, 7))
    high = (inner, (7, 1))
    return Block(
        768,
        "mean",
        branch1x1=((192, 1),),
        branch7x7=((inner, 1), wide, (192, (7, 1))),
        branch7x7dbl=((inner, 1), high, wide, high, (192, (1, 7))),
        branch_pool=((192, 1),),
    )


def block_e(inputs: int, pool: str) -> Block:
    """Block of 8 x 8 pixels, two of whose branches split in two."""
    return Block(
        inputs,
        pool,
        branch1x1=((320, 1),),
        branch3x3=((384, 1), PAIR),
        branch3x3dbl=((448, 1), (384, 3), PAIR),
        branch_pool=((192, 1),),
    )


class Inception(nn.Module):
    """FID's Inception v3; weights are whatever torch draws until a state dict is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = BasicConv2d(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = BasicConv2d(32, 32, 3, padding=0)
        self.Conv2d_2b_3x3 = BasicConv2d(32, 64, 3)
        self.Conv2d_3b_1x1 = BasicConv2d(64, 80, 1)
        self.Conv2d_4a_3x3 = BasicConv2d(80, 192, 3, padding=0)
        self.Mixed_5b = block_a(192, 32)
        self.Mixed_5c = block_a(256, 64)
        self.Mixed_5d = block_a(288, 64)
        double = ((64, 1), (96, 3), (96, 3, 2))
        self.Mixed_6a = Block(
            288, "half", branch3x3=((384, 3, 2),), branch3x3dbl=double, branch_pool=()
        )
        self.Mixed_6b = block_c(128)
        self.Mixed_6c = block_c(160)
        self.Mixed_6d = block_c(160)
        self.Mixed_6e = block_c(192)
        seven = ((192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2))
        self.Mixed_7a = Block(
            768, "half", branch3x3=((192, 1), (320, 3, 2)), branch7x7x3=seven, branch_pool=()
        )
        self.Mixed_7b = block_e(1280, "mean")
        self.Mixed_7c = block_e(2048, "max")
        self.fc = nn.Linear(WIDTH, 1008)  # of the published weights; no feature passes it

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (num, 2048) behind the last average pool of images (num, 3, H, W),
        uint8.
        """
        x = (resize_like_tensorflow(images.float(), SIZE) - 128) / 128
        x = max_pool2d(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x))), 3, stride=2)
        x = max_pool2d(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)), 3, stride=2)  # (num, 192, 35, 35)
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))
        # (num, 768, 17, 17)
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))  # (num, 2048, 8, 8)
        features: Tensor = nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return features


def resize_like_tensorflow(images: Tensor, size: int) -> Tensor:
    """Resize (num, channels, H, W) to `size` pixels a side, bilinear as TensorFlow 1 did it:
    corners of pixels and not their centres are aligned, and nothing is smoothed before."""
    for axis in (3, 2):
        length = images.shape[axis]
        places = torch.arange(size, dtype=images.dtype, device=images.device) * torch.tensor(
            length / size
        )
        lower = places.long()
        upper = (lower + 1).clamp(max=length - 1)
        shares = (places - lower).view(-1, *([1] * (3 - axis)))
        low = images.index_select(axis, lower)
        images = low + (images.index_select(axis, upper) - low) * shares
    return images
