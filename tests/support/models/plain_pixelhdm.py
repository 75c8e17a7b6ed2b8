"""PixelHDM written sample by sample and token by token with plain arithmetic, without a layer of
the project.
"""

import math

import torch
from torch.nn import functional


class PlainPixelHDM:
    """The network of a spec with frozen text features, on a trained network's weights."""

    def __init__(self, spec, weights):
        self.spec, self.weights = spec, weights

    def __call__(self, x, t, condition):
        """(B, 3, H, W), (B,) -> (B, 3, H, W)."""
        texts = zip(
            condition["text"], condition["text_mask"], condition["text_pooled"], strict=True
        )
        return torch.stack([self._one(x[i], t[i], *text) for i, text in enumerate(texts)])

    def _one(self, image, t, text, present, pooled):
        side, num_text, length = self.spec.patch_size, len(text), int(present.sum())
        rows, columns = image.shape[1] // side, image.shape[2] // side
        places = [(row, column) for row in range(rows) for column in range(columns)]
        cut = image.view(-1, rows, side, columns, side)
        patches = cut.permute(1, 3, 2, 4, 0).reshape(len(places), -1)  # row, column, channel
        time = self._time(t)
        tokens = self._linear(
            functional.silu(self._linear(patches, "patch_embedding.squeeze")),
            "patch_embedding.expand",
        )
        joint = [(n, 0, 0) for n in range(num_text)] + [(length, *place) for place in places]
        keys = torch.cat((present, torch.ones(len(places), dtype=torch.bool)))
        h = torch.cat((text, tokens))
        for block in range(self.spec.patch_depth):
            h = self._patch_block(h, f"patch_blocks.{block}", time, joint, keys)
        s_cond = h[num_text:] + time + pooled
        pixels = self._linear(patches.unflatten(1, (-1, 3)), "pixel_embedding")
        for block in range(self.spec.pixel_depth):
            pixels = self._pixel_block(
                pixels, f"pixel_blocks.{block}", s_cond, [(0, *place) for place in places]
            )
        colours = self._linear(self._norm(pixels, "output_norm"), "head")
        colours = colours.view(rows, columns, side, side, 3)
        return colours.permute(4, 0, 2, 1, 3).reshape(image.shape)

    def _time(self, t):
        half = self.spec.time_width // 2
        angles = 1000 * t * torch.exp(-math.log(10000) * torch.arange(half, dtype=t.dtype) / half)
        sinusoid = torch.cat((angles.sin(), angles.cos()))
        return self._linear(functional.silu(self._linear(sinusoid, "time.hidden")), "time.out")

    def _patch_block(self, h, name, time, positions, keys):
        six = self._linear(functional.silu(time), f"{name}.adaln.linear").split(self.spec.width)
        scale1, shift1, gate1, scale2, shift2, gate2 = six
        modulated = scale1 * self._norm(h, f"{name}.attention_norm") + shift1
        mixed = self._attention(modulated, f"{name}.attention", positions, keys)
        h = h + gate1 * self._norm(mixed, f"{name}.attention_post_norm")
        modulated = scale2 * self._norm(h, f"{name}.mlp_norm") + shift2
        return h + gate2 * self._norm(
            self._swiglu(modulated, f"{name}.mlp"), f"{name}.mlp_post_norm"
        )

    def _pixel_block(self, pixels, name, s_cond, positions):
        """(patches, pixels of a patch, width of a pixel) -> the same."""
        a_pixel = self._linear(s_cond, f"{name}.adaln.expand").view(pixels.shape)
        six = self._linear(functional.silu(a_pixel), f"{name}.adaln.six_way.linear").split(
            self.spec.pixel_width, -1
        )
        scale1, shift1, gate1, scale2, shift2, gate2 = six
        modulated = (1 + scale1) * self._norm(pixels, f"{name}.norm") + shift1
        compact = self._norm(
            self._linear(modulated.flatten(1), f"{name}.compaction.compress"),
            f"{name}.compaction.norm",
        )
        everywhere = torch.ones(len(pixels), dtype=torch.bool)
        mixed = self._attention(compact, f"{name}.compaction.attention", positions, everywhere)
        mixed = self._norm(mixed, f"{name}.compaction.post_norm")
        detail = self._linear(mixed, f"{name}.compaction.expand").view(pixels.shape)
        if self.spec.pixel_residual == "double":
            detail = detail + modulated
        pixels = pixels + gate1 * detail
        modulated = (1 + scale2) * self._norm(pixels, f"{name}.norm") + shift2
        return pixels + gate2 * self._swiglu(modulated, f"{name}.mlp")

    def _attention(self, x, name, positions, keys):
        spec = self.spec
        width = spec.width // spec.num_heads
        q = self._linear(x, f"{name}.query").view(len(x), spec.num_heads, width)
        k, v = (
            self._linear(x, f"{name}.{each}").view(len(x), spec.num_kv_heads, width)
            for each in ("key", "value")
        )
        q, k = (each / each.norm(dim=-1, keepdim=True) for each in (q, k))
        q, k = (
            torch.stack([self._turned(*pair) for pair in zip(each, positions, strict=True)])
            for each in (q, k)
        )
        heads = []
        for head in range(spec.num_heads):
            shared = head // (spec.num_heads // spec.num_kv_heads)
            scores = q[:, head] @ k[:, shared].T * self.weights[f"{name}.temperature"]
            heads.append(scores.masked_fill(~keys, -math.inf).softmax(-1) @ v[:, shared])
        gates = torch.sigmoid(self._linear(x, f"{name}.gate"))  # one a head, or one a number
        gated = torch.stack(heads, 1) * gates.view(len(x), spec.num_heads, -1)
        return self._linear(gated.flatten(1), f"{name}.out")

    def _turned(self, heads, position):
        """A token's heads (H, K): on each axis, entries 2j and 2j + 1, as one complex number, turn
        by position times base^(-2j / width).
        """
        angles = []
        for width, place in zip(self.spec.mrope_widths, position, strict=True):
            for first in range(0, width, 2):
                angles.append(place * self.spec.rope_base ** (-first / width))
        turns = torch.exp(1j * torch.tensor(angles, dtype=torch.float64))
        pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turns).flatten(-2)

    def _swiglu(self, x, name):
        opened = functional.silu(self._linear(x, f"{name}.gate")) * self._linear(x, f"{name}.up")
        return self._linear(opened, f"{name}.down")

    def _norm(self, x, name):
        return functional.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], eps=1e-6)

    def _linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0)
