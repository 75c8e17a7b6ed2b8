"""The U-Net that DiT is compared with (after Ronneberger et al. 2015, arXiv:1505.04597, and Ho et
al. 2020).

B batch, C channels, S image size, W width, E width of the time embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ditlab_models.contract import ModuleGroups, ModulesByRole
from ditlab_models.layers.embeddings import LabelEmbedding, TimeEmbedding, add_label
from ditlab_models.unet.spec import NUM_GROUPS, UNetSpec


def conv3(channels_in: int, channels_out: int, stride: int = 1) -> nn.Conv2d:
    """Build a 3x3 convolution that keeps the resolution, or divides it by `stride`."""
    return nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=stride, padding=1)


def upsample(channels: int) -> nn.ConvTranspose2d:
    """Build a transposed convolution that doubles the resolution."""
    return nn.ConvTranspose2d(channels, channels, kernel_size=4, stride=2, padding=1)


class ResidualBlock(nn.Module):
    """Two normalised convolutions with a shift by the condition in between, and a shortcut around
    them.
    """

    def __init__(self, channels_in: int, channels_out: int, time_width: int) -> None:
        super().__init__()
        self.conv1 = conv3(channels_in, channels_out)
        self.norm1 = nn.GroupNorm(NUM_GROUPS, channels_out)
        self.shift = nn.Linear(time_width, channels_out)
        self.conv2 = conv3(channels_out, channels_out)
        self.norm2 = nn.GroupNorm(NUM_GROUPS, channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if channels_in != channels_out:
            self.shortcut = nn.Conv2d(channels_in, channels_out, kernel_size=1)

    def time_shift(self, condition: Tensor) -> Tensor:
        """Compute the shift of each channel: (B, E) -> (B, channels)."""
        return self.shift(functional.silu(condition))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Transform (B, channels_in, height, width) under (B, E) to (B, channels_out, height,
        width).
        """
        if torch.compiler.is_compiling():
            # Convolutions take a quarter less time so, but round to other bits than eager steps.
            # The layout stays with the result, so that what follows the first block has it,
            # compiled or not.
            x = x.contiguous(memory_format=torch.channels_last)
        h = self.norm1(self.conv1(x)) + self.time_shift(condition)[..., None, None]
        h = self.norm2(self.conv2(functional.silu(h)))
        return functional.silu(h + self.shortcut(x))


class UNet(nn.Module):
    """Network that predicts the velocity at (x, t), of the class `label` if it has classes."""

    def __init__(self, spec: UNetSpec) -> None:
        super().__init__()
        self.spec = spec
        fine = spec.width
        coarse = 2 * spec.width
        time_width = spec.time_width
        self.time = TimeEmbedding(time_width, time_width, spec.time_scale)
        if spec.num_classes is None:
            self.label = None
        else:
            self.label = LabelEmbedding(spec.num_classes, time_width)
        self.conv_in = conv3(spec.channels, fine)
        self.down1 = ResidualBlock(fine, fine, time_width)
        self.halve1 = conv3(fine, fine, stride=2)
        self.down2 = ResidualBlock(fine, coarse, time_width)
        self.halve2 = conv3(coarse, coarse, stride=2)
        self.middle1 = ResidualBlock(coarse, coarse, time_width)
        self.middle2 = ResidualBlock(coarse, coarse, time_width)
        self.double2 = upsample(coarse)
        self.up2 = ResidualBlock(2 * coarse, fine, time_width)
        self.double1 = upsample(fine)
        self.up1 = ResidualBlock(2 * fine, fine, time_width)
        self.norm_out = nn.GroupNorm(NUM_GROUPS, fine)
        self.conv_out = conv3(fine, spec.channels)

    def condition(self, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Embed t (B,) and label (B,): (B, E). Without a label, a conditional network gets the null
        class.
        """
        return add_label(self.time(t), self.label, label)

    def forward(self, x: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Predict the velocity (B, C, S, S) of x (B, C, S, S) at times t (B,) in [0, 1], label (B,)
        int64.
        """
        condition = self.condition(t, label)
        skip1 = self.down1(self.conv_in(x), condition)  # (B, W, S, S)
        skip2 = self.down2(self.halve1(skip1), condition)  # (B, 2 W, S / 2, S / 2)
        h = self.middle1(self.halve2(skip2), condition)  # (B, 2 W, S / 4, S / 4)
        h = self.middle2(h, condition)
        h = self.up2(torch.cat((self.double2(h), skip2), dim=1), condition)  # (B, W, S / 2, S / 2)
        h = self.up1(torch.cat((self.double1(h), skip1), dim=1), condition)  # (B, W, S, S)
        return self.conv_out(functional.silu(self.norm_out(h)))

    def blocks(self) -> dict[str, ResidualBlock]:
        """Return the residual blocks by name, in the order of the forward pass."""
        return {
            name: module
            for name, module in self.named_children()
            if isinstance(module, ResidualBlock)
        }

    def components(self) -> ModuleGroups:
        label = {} if self.label is None else {"label": [self.label]}
        return {
            "time": [self.time],
            **label,
            "conv_in": [self.conv_in],
            "down": [self.down1, self.halve1, self.down2, self.halve2],
            "middle": [self.middle1, self.middle2],
            "up": [self.double2, self.up2, self.double1, self.up1],
            "head": [self.norm_out, self.conv_out],
        }

    def role_modules(self) -> ModulesByRole:
        return {"input": [self.conv_in], "head": [self.conv_out]}

    def checkpointed_modules(self) -> Sequence[nn.Module]:
        return list(self.blocks().values())

    def compiled_modules(self) -> ModuleGroups:
        # Two thirds of all activations are theirs, and each of the other blocks would be a kind of
        # its own to compile.
        return {"first_block": [self.down1], "last_block": [self.up1]}
