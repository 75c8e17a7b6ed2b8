"""Inception v3 of FID (Szegedy et al. 2015, arXiv:1512.00567), as ported from TensorFlow's graph of 2015-12-05.

Names and shapes are those of the published weights (`pt_inception-2015-12-05-6726825d.pth`, which pytorch-fid and
torch-fidelity read). It differs from torchvision's: average pools count no padding, the last block's pool takes the
largest value, and images are resized as TensorFlow 1 did.
"""

from __future__ import annotations

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

    def __init__(self, inputs: int, outputs: int, kernel: Size, stride: int = 1, padding: Size | None = None) -> None:
        super().__init__()
        if padding is None:
            height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
            padding = (height // 2, width // 2) if stride == 1 else 0
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.bn(self.conv(x)))


class Block(nn.Module):
    """Branches side by side, joined along channels. A branch names the convolutions that follow each other; one that
    ends in a pair splits in two."""

    def __init__(self, pool: str, branches: dict[str, BasicConv2d], paths: tuple[str, ...]) -> None:
        super().__init__()
        for name, layer in branches.items():
            self.add_module(name, layer)
        self.pool = pool
        self.paths = tuple(path.split() for path in paths)

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for path in self.paths:
            y = x
            for name in path:
                if name == "pool":
                    y = self._pooled(y)
                elif "|" in name:
                    y = torch.cat([self.get_submodule(each)(y) for each in name.split("|")], 1)
                else:
                    y = self.get_submodule(name)(y)
            found.append(y)
        return torch.cat(found, 1)

    def _pooled(self, x: Tensor) -> Tensor:
        if self.pool == "mean":
            return avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
        return max_pool2d(x, 3, stride=1, padding=1) if self.pool == "max" else max_pool2d(x, 3, stride=2)


def block_a(inputs: int, pooled: int) -> Block:
    """Block of 35 x 35 pixels."""
    layers = {
        "branch1x1": BasicConv2d(inputs, 64, 1), "branch5x5_1": BasicConv2d(inputs, 48, 1),
        "branch5x5_2": BasicConv2d(48, 64, 5), "branch3x3dbl_1": BasicConv2d(inputs, 64, 1),
        "branch3x3dbl_2": BasicConv2d(64, 96, 3), "branch3x3dbl_3": BasicConv2d(96, 96, 3),
        "branch_pool": BasicConv2d(inputs, pooled, 1),
    }  # fmt: skip
    dbl = "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3"
    return Block("mean", layers, ("branch1x1", "branch5x5_1 branch5x5_2", dbl, "pool branch_pool"))


def block_b(inputs: int) -> Block:
    """Halving from 35 to 17 pixels a side."""
    layers = {
        "branch3x3": BasicConv2d(inputs, 384, 3, 2), "branch3x3dbl_1": BasicConv2d(inputs, 64, 1),
        "branch3x3dbl_2": BasicConv2d(64, 96, 3), "branch3x3dbl_3": BasicConv2d(96, 96, 3, 2),
    }  # fmt: skip
    return Block("half", layers, ("branch3x3", "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3", "pool"))


def block_c(inputs: int, inner: int) -> Block:
    """Block of 17 x 17 pixels, by convolutions of 1 x 7 and 7 x 1."""
    layers = {
        "branch1x1": BasicConv2d(inputs, 192, 1), "branch7x7_1": BasicConv2d(inputs, inner, 1),
        "branch7x7_2": BasicConv2d(inner, inner, (1, 7)), "branch7x7_3": BasicConv2d(inner, 192, (7, 1)),
        "branch7x7dbl_1": BasicConv2d(inputs, inner, 1), "branch7x7dbl_2": BasicConv2d(inner, inner, (7, 1)),
        "branch7x7dbl_3": BasicConv2d(inner, inner, (1, 7)), "branch7x7dbl_4": BasicConv2d(inner, inner, (7, 1)),
        "branch7x7dbl_5": BasicConv2d(inner, 192, (1, 7)), "branch_pool": BasicConv2d(inputs, 192, 1),
    }  # fmt: skip
    dbl = " ".join(f"branch7x7dbl_{number}" for number in range(1, 6))
    return Block("mean", layers, ("branch1x1", "branch7x7_1 branch7x7_2 branch7x7_3", dbl, "pool branch_pool"))


def block_d(inputs: int) -> Block:
    """Halving from 17 to 8 pixels a side."""
    layers = {
        "branch3x3_1": BasicConv2d(inputs, 192, 1), "branch3x3_2": BasicConv2d(192, 320, 3, 2),
        "branch7x7x3_1": BasicConv2d(inputs, 192, 1), "branch7x7x3_2": BasicConv2d(192, 192, (1, 7)),
        "branch7x7x3_3": BasicConv2d(192, 192, (7, 1)), "branch7x7x3_4": BasicConv2d(192, 192, 3, 2),
    }  # fmt: skip
    last = " ".join(f"branch7x7x3_{number}" for number in range(1, 5))
    return Block("half", layers, ("branch3x3_1 branch3x3_2", last, "pool"))


def block_e(inputs: int, pool: str) -> Block:
    """Block of 8 x 8 pixels, two of whose branches split in two."""
    layers = {
        "branch1x1": BasicConv2d(inputs, 320, 1), "branch3x3_1": BasicConv2d(inputs, 384, 1),
        "branch3x3_2a": BasicConv2d(384, 384, (1, 3)), "branch3x3_2b": BasicConv2d(384, 384, (3, 1)),
        "branch3x3dbl_1": BasicConv2d(inputs, 448, 1), "branch3x3dbl_2": BasicConv2d(448, 384, 3),
        "branch3x3dbl_3a": BasicConv2d(384, 384, (1, 3)), "branch3x3dbl_3b": BasicConv2d(384, 384, (3, 1)),
        "branch_pool": BasicConv2d(inputs, 192, 1),
    }  # fmt: skip
    split = "branch3x3_1 branch3x3_2a|branch3x3_2b"
    dbl = "branch3x3dbl_1 branch3x3dbl_2 "
    return Block(pool, layers, ("branch1x1", split, dbl + "branch3x3dbl_3a|branch3x3dbl_3b", "pool branch_pool"))


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
        self.Mixed_6a = block_b(288)
        self.Mixed_6b = block_c(768, 128)
        self.Mixed_6c = block_c(768, 160)
        self.Mixed_6d = block_c(768, 160)
        self.Mixed_6e = block_c(768, 192)
        self.Mixed_7a = block_d(768)
        self.Mixed_7b = block_e(1280, "mean")
        self.Mixed_7c = block_e(2048, "max")
        self.fc = nn.Linear(WIDTH, 1008)  # of the published weights; no feature passes it

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (num, 2048) behind the last average pool of images (num, 3, H, W), uint8."""
        x = (resize_like_tensorflow(images.float(), SIZE) - 128) / 128
        x = max_pool2d(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x))), 3, stride=2)
        x = max_pool2d(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)), 3, stride=2)  # (num, 192, 35, 35)
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))  # (num, 768, 17, 17)
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))  # (num, 2048, 8, 8)
        features: Tensor = nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return features


def resize_like_tensorflow(images: Tensor, size: int) -> Tensor:
    """Resize (num, channels, H, W) to `size` pixels a side, bilinear as TensorFlow 1 did it: corners of pixels and not
    their centres are aligned, and nothing is smoothed before."""
    for axis in (3, 2):
        length = images.shape[axis]
        places = torch.arange(size, dtype=images.dtype, device=images.device) * torch.tensor(length / size)
        lower = places.long()
        upper = (lower + 1).clamp(max=length - 1)
        shares = (places - lower).view(-1, *([1] * (3 - axis)))
        low = images.index_select(axis, lower)
        images = low + (images.index_select(axis, upper) - low) * shares
    return images
