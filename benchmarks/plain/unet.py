"""A U-Net of three resolutions by hand (after Ronneberger et al. 2015, arXiv:1505.04597, and Ho et
al. 2020).

B batch, C channels, S image size, W width, E width of the time embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.plain.dit import sinusoid

GROUPS = 8


class HandResidualBlock(nn.Module):
    """Two normalised convolutions, shifted by the time in between, and a shortcut around them."""

    def __init__(self, channels_in: int, channels_out: int, time_width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.norm1 = nn.GroupNorm(GROUPS, channels_out)
        self.shift = nn.Sequential(nn.SiLU(), nn.Linear(time_width, channels_out))
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.norm2 = nn.GroupNorm(GROUPS, channels_out)
        same = channels_in == channels_out
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels_in, channels_out, 1)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Transform (B, channels_in, height, width) under (B, E) to (B, channels_out, height,
        width).
        """
        h = self.norm1(self.conv1(x)) + self.shift(condition)[..., None, None]
        h = self.norm2(self.conv2(functional.silu(h)))
        return functional.silu(h + self.shortcut(x))


class HandUNet(nn.Module):
    """Network that predicts the velocity at (x, t)."""

    def __init__(self, *, channels: int, width: int, time_width: int) -> None:
        super().__init__()
        fine, coarse, self.time_width = width, 2 * width, time_width
        self.time = nn.Sequential(
            nn.Linear(time_width, time_width), nn.SiLU(), nn.Linear(time_width, time_width)
        )
        self.conv_in = nn.Conv2d(channels, fine, 3, padding=1)
        self.down1 = HandResidualBlock(fine, fine, time_width)
        self.halve1 = nn.Conv2d(fine, fine, 3, stride=2, padding=1)
        self.down2 = HandResidualBlock(fine, coarse, time_width)
        self.halve2 = nn.Conv2d(coarse, coarse, 3, stride=2, padding=1)
        self.middle1 = HandResidualBlock(coarse, coarse, time_width)
        self.middle2 = HandResidualBlock(coarse, coarse, time_width)
        self.double2 = nn.ConvTranspose2d(coarse, coarse, 4, stride=2, padding=1)
        self.up2 = HandResidualBlock(2 * coarse, fine, time_width)
        self.double1 = nn.ConvTranspose2d(fine, fine, 4, stride=2, padding=1)
        self.up1 = HandResidualBlock(2 * fine, fine, time_width)
        self.norm = nn.GroupNorm(GROUPS, fine)
        self.conv_out = nn.Conv2d(fine, channels, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Predict the velocity (B, C, S, S) of x (B, C, S, S) at times t (B,)."""
        condition = self.time(sinusoid(t, self.time_width))
        skip1 = self.down1(self.conv_in(x), condition)
        skip2 = self.down2(self.halve1(skip1), condition)
        h = self.middle2(self.middle1(self.halve2(skip2), condition), condition)
        h = self.up2(torch.cat((self.double2(h), skip2), dim=1), condition)
        h = self.up1(torch.cat((self.double1(h), skip1), dim=1), condition)
        return self.conv_out(functional.silu(self.norm(h)))
