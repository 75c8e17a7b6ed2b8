"""PixelHDM: a transformer over patches and text, and one over pixels (after PixelDiT,
arXiv:2511.20645), by hand.

B batch, N patches, M pixels of a patch, T text tokens, D width, W width of a pixel, K width of a
head.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-6
# fmt: off
LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61), (12, 12, 14, 19, 26, 58, 60, 55), (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62), (18, 22, 37, 56, 68, 109, 103, 77), (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101), (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99), (18, 21, 26, 66, 99, 99, 99, 99), (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99), *((99,) * 8,) * 4,
)
# fmt: on
YCBCR = (
    (0.299, 0.587, 0.114),
    (-0.299 / 1.772, -0.587 / 1.772, 0.5),
    (0.5, -0.587 / 1.402, -0.114 / 1.402),
)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn neighbouring entries of x (B, heads, T, K) by angles whose cosines and sines are (B, 1,
    T, K / 2).
    """
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class HandGatedAttention(nn.Module):
    def __init__(self, width: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        head_width = width // num_heads
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.temperature = nn.Parameter(torch.full((1,), head_width**0.5))
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, num_kv_heads * head_width, bias=False)
        self.value = nn.Linear(width, num_kv_heads * head_width, bias=False)
        self.gate = nn.Linear(width, num_heads, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        q = self.query(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k = self.key(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2)
        v = self.value(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2)
        q = rotate_pairs(functional.normalize(q, dim=-1), cos, sin) * self.temperature
        k = rotate_pairs(functional.normalize(k, dim=-1), cos, sin)
        shared = self.num_heads // self.num_kv_heads
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
        return self.out((mixed.transpose(1, 2) * self.gate(x).sigmoid()[..., None]).flatten(2))


class HandSwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class HandPatchBlock(nn.Module):
    def __init__(self, width: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.modulation = nn.Linear(width, 6 * width)
        self.norm1 = nn.RMSNorm(width, eps=EPS)
        self.attention = HandGatedAttention(width, num_heads, num_kv_heads)
        self.post_norm1 = nn.RMSNorm(width, eps=EPS)
        self.norm2 = nn.RMSNorm(width, eps=EPS)
        self.mlp = HandSwiGLU(width, 3 * width)
        self.post_norm2 = nn.RMSNorm(width, eps=EPS)

    def forward(self, x: Tensor, time: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        values = self.modulation(functional.silu(time))[:, None].chunk(6, dim=-1)
        scale, shift, gate, mlp_scale, mlp_shift, mlp_gate = values
        h = self.attention(scale * self.norm1(x) + shift, cos, sin, mask)
        x = x + gate * self.post_norm1(h)
        return x + mlp_gate * self.post_norm2(self.mlp(mlp_scale * self.norm2(x) + mlp_shift))


class HandPixelBlock(nn.Module):
    def __init__(
        self, width: int, pixel_width: int, patch_size: int, num_heads: int, num_kv_heads: int
    ) -> None:
        super().__init__()
        patch_width = patch_size**2 * pixel_width
        self.condition = nn.Linear(width, patch_width, bias=False)
        self.modulation = nn.Linear(pixel_width, 6 * pixel_width)
        self.norm = nn.RMSNorm(pixel_width, eps=EPS)
        self.compress = nn.Linear(patch_width, width, bias=False)
        self.compact_norm = nn.RMSNorm(width, eps=EPS)
        self.attention = HandGatedAttention(width, num_heads, num_kv_heads)
        self.post_norm = nn.RMSNorm(width, eps=EPS)
        self.expand = nn.Linear(width, patch_width, bias=False)
        self.mlp = HandSwiGLU(pixel_width, 3 * pixel_width)

    def forward(self, x: Tensor, s_cond: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        by_pixel = self.condition(s_cond).view_as(x)
        values = self.modulation(functional.silu(by_pixel)).chunk(6, dim=-1)
        scale, shift, gate, mlp_scale, mlp_shift, mlp_gate = values
        h = ((1 + scale) * self.norm(x) + shift).flatten(2)
        h = self.post_norm(self.attention(self.compact_norm(self.compress(h)), cos, sin))
        x = x + gate * self.expand(h).view_as(x)
        return x + mlp_gate * self.mlp((1 + mlp_scale) * self.norm(x) + mlp_shift)


class HandPixelHDM(nn.Module):
    def __init__(
        self,
        *,
        width: int,
        pixel_width: int,
        patch_size: int,
        patch_depth: int,
        pixel_depth: int,
        num_heads: int,
        num_kv_heads: int,
        bottleneck_width: int,
        time_width: int,
        rotated: tuple[int, int, int],
    ) -> None:
        super().__init__()
        self.patch_size, self.time_width, self.rotated = patch_size, time_width, rotated
        self.squeeze = nn.Linear(patch_size**2 * 3, bottleneck_width, bias=False)
        self.widen = nn.Linear(bottleneck_width, width, bias=False)
        self.pixels = nn.Linear(3, pixel_width)
        self.time = nn.Sequential(nn.Linear(time_width, width), nn.SiLU(), nn.Linear(width, width))
        self.patch_blocks = nn.ModuleList(
            HandPatchBlock(width, num_heads, num_kv_heads) for _ in range(patch_depth)
        )
        self.pixel_blocks = nn.ModuleList(
            HandPixelBlock(width, pixel_width, patch_size, num_heads, num_kv_heads)
            for _ in range(pixel_depth)
        )
        self.norm = nn.RMSNorm(pixel_width, eps=EPS)
        self.head = nn.Linear(pixel_width, 3)

    def angles(self, positions: Tensor) -> Tensor:
        """Angles (B, 1, T, K / 2) of tokens at positions (B, T, 3): text, row, column."""
        parts = []
        for axis, dim in enumerate(self.rotated):
            omega = 10000.0 ** (-torch.arange(0, dim, 2, device=positions.device) / dim)
            parts.append(positions[..., axis, None] * omega)
        return torch.cat(parts, dim=-1)[:, None]

    def forward(
        self, x: Tensor, t: Tensor, text: Tensor, text_mask: Tensor, pooled: Tensor
    ) -> Tensor:
        size, batch, length = self.patch_size, len(x), text.shape[1]
        rows = x.shape[2] // size
        patches = x.unflatten(3, (-1, size)).unflatten(2, (-1, size)).permute(0, 2, 4, 3, 5, 1)
        patches = patches.reshape(batch, rows * rows, size**2, 3)
        tokens = torch.cat(
            (text, self.widen(functional.silu(self.squeeze(patches.flatten(2))))), dim=1
        )
        grid = torch.cartesian_prod(*[torch.arange(rows, device=x.device)] * 2)[None].expand(
            batch, -1, -1
        )
        lengths = text_mask.sum(1)[:, None, None].expand(-1, rows * rows, 1)
        number = torch.arange(length, device=x.device)[:, None]
        words = functional.pad(number, (0, 2))[None].expand(batch, -1, -1)
        joint = self.angles(torch.cat((words, torch.cat((lengths, grid), dim=-1)), dim=1))
        image = self.angles(functional.pad(grid[:1], (1, 0)))
        mask = functional.pad(text_mask, (0, rows * rows), value=True)[:, None, None]
        half = self.time_width // 2
        omega = torch.exp(-math.log(10000.0) * torch.arange(half, device=x.device) / half)
        turned = 1000 * t[:, None] * omega
        time = self.time(torch.cat((turned.sin(), turned.cos()), dim=-1))
        cos, sin = joint.cos(), joint.sin()
        for block in self.patch_blocks:
            tokens = block(tokens, time, cos, sin, mask)
        s_cond = tokens[:, length:] + (time + pooled)[:, None]
        pixels, cos, sin = self.pixels(patches), image.cos(), image.sin()  # (B, N, M, W)
        for block in self.pixel_blocks:
            pixels = block(pixels, s_cond, cos, sin)
        out = self.head(self.norm(pixels)).view(batch, rows, rows, size, size, 3)
        return out.permute(0, 5, 1, 3, 2, 4).reshape(x.shape)


class HandFrequencyLoss(nn.Module):
    """Squared error of 8x8 blocks' DCT in YCbCr, with the inverse JPEG tables at quality 90 as
    weights.
    """

    def __init__(self) -> None:
        super().__init__()
        tables = [
            ((torch.tensor(table) * 20 + 50) // 100).clamp(1, 255).float()
            for table in (LUMA, CHROMA, CHROMA)
        ]
        inverse = 1 / torch.stack(tables)
        n, k = torch.arange(8), torch.arange(8)[:, None]
        dct = 0.5 * torch.cos(math.pi / 8 * (n + 0.5) * k)
        dct[0] /= math.sqrt(2)
        self.register_buffer("weights", inverse / inverse.mean((1, 2), keepdim=True))
        self.register_buffer("dct", dct)
        self.register_buffer("ycbcr", torch.tensor(YCBCR))

    def forward(self, error: Tensor) -> Tensor:
        colours = torch.einsum("yc,bchw->byhw", self.ycbcr, error)
        blocks = colours.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)
        return (self.weights[:, None, None] * (self.dct @ blocks @ self.dct.T).square()).mean()


def velocity_and_frequency_loss(
    network: nn.Module,
    image: Tensor,
    text: Tensor,
    text_mask: Tensor,
    pooled: Tensor,
    frequency: HandFrequencyLoss,
) -> Tensor:
    """Squared error of the velocity, plain and by frequency, for square images (B, 3, S, S); a
    tenth of the texts is dropped."""
    keep = torch.rand(len(image), device=image.device) >= 0.1
    first = torch.arange(text.shape[1], device=image.device) == 0
    mask = torch.where(keep[:, None], text_mask, first)
    noise = torch.randn_like(image)
    t = 0.05 + 0.9 * torch.randn(len(image), device=image.device).sigmoid()
    at = t[:, None, None, None]
    predicted = network(
        at * image + (1 - at) * noise, t, text * keep[:, None, None], mask, pooled * keep[:, None]
    )
    error = predicted - (image - noise)
    return error.square().mean() + frequency(error)
