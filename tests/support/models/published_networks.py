"""Published networks written plainly, on tensors by their published names: shapes, random weights,
forward passes.

From the public descriptions: Lou et al. 2024 (arXiv:2310.16834, section 5.1 and appendix), and GET
(Fu et al. 2025).
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from support.models.draws import seeded

Weights = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


def random_weights(shapes, seed=0, dtype=torch.float64):
    """Weights around 0, those of norms around 1."""
    generator = seeded(seed)
    found = {}
    for name, shape in shapes.items():
        values = 0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
        found[name] = (values + ("norm" in name and name.endswith("weight"))).to(dtype)
    return found


def sedd_shapes(vocabulary, width, depth, num_heads, condition=128):
    """Of SEDD: 4 times as wide MLPs, sinusoids of width 256, no biases of attention, norms with a
    weight alone.
    """
    found: Shapes = {
        "vocab_embed.embedding": (vocabulary, width),
        "sigma_map.mlp.0.weight": (condition, 256),
        "sigma_map.mlp.0.bias": (condition,),
        "sigma_map.mlp.2.weight": (condition, condition),
        "sigma_map.mlp.2.bias": (condition,),
        "rotary_emb.inv_freq": (width // num_heads // 2,),
    }
    for block in (f"blocks.{number}." for number in range(depth)):
        found |= {
            f"{block}norm1.weight": (width,),
            f"{block}attn_qkv.weight": (3 * width, width),
            f"{block}attn_out.weight": (width, width),
            f"{block}norm2.weight": (width,),
            f"{block}mlp.0.weight": (4 * width, width),
            f"{block}mlp.0.bias": (4 * width,),
            f"{block}mlp.2.weight": (width, 4 * width),
            f"{block}mlp.2.bias": (width,),
            f"{block}adaLN_modulation.weight": (6 * width, condition),
            f"{block}adaLN_modulation.bias": (6 * width,),
        }
    return found | {
        "output_layer.norm_final.weight": (width,),
        "output_layer.linear.weight": (vocabulary, width),
        "output_layer.linear.bias": (vocabulary,),
        "output_layer.adaLN_modulation.weight": (2 * width, condition),
        "output_layer.adaLN_modulation.bias": (2 * width,),
    }


def sedd_weights(vocabulary, width, depth, num_heads, dtype):
    """Random ones, with the buffer of rotary frequencies that a published file has."""
    found, head = (
        random_weights(sedd_shapes(vocabulary, width, depth, num_heads), dtype=dtype),
        width // num_heads,
    )
    return {**found, "rotary_emb.inv_freq": 1 / 10000 ** (torch.arange(0, head, 2).float() / head)}


def sedd_forward(weights, x, sigma, num_heads):
    """Log scores (B, T, V) of the uniform graph: x (B, T), sigma (B,)."""
    condition = functional.silu(time_embedding(weights, "sigma_map.mlp", sigma, 256))[:, None]
    h = weights["vocab_embed.embedding"][x]
    width, length = h.shape[-1], x.shape[1]
    head = width // num_heads
    omega = 10000 ** (-2 * torch.arange(head // 2, dtype=torch.float64) / head)
    angles = torch.arange(length)[:, None] * omega

    def turned(each):
        first, second = each.chunk(2, dim=-1)
        cos, sin = angles.cos().to(each.dtype), angles.sin().to(each.dtype)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def normed(each, name, shift, scale):
        return functional.layer_norm(each, (width,), eps=1e-5) * weights[name] * (1 + scale) + shift

    for block in (f"blocks.{number}." for number in range(count_blocks(weights, "blocks."))):
        six = linear(weights, f"{block}adaLN_modulation", condition).chunk(6, dim=-1)
        q, k, v = linear(
            weights, f"{block}attn_qkv", normed(h, f"{block}norm1.weight", *six[:2])
        ).chunk(3, dim=-1)
        q, k, v = (each.unflatten(-1, (num_heads, head)).transpose(1, 2) for each in (q, k, v))
        scores = turned(q) @ turned(k).transpose(-1, -2) / math.sqrt(head)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        h = h + six[2] * linear(weights, f"{block}attn_out", mixed)
        hidden = linear(weights, f"{block}mlp.0", normed(h, f"{block}norm2.weight", *six[3:5]))
        h = h + six[5] * linear(
            weights, f"{block}mlp.2", functional.gelu(hidden, approximate="tanh")
        )
    shift, scale = linear(weights, "output_layer.adaLN_modulation", condition).chunk(2, dim=-1)
    scores = linear(
        weights, "output_layer.linear", normed(h, "output_layer.norm_final.weight", shift, scale)
    )
    return scores.masked_fill(functional.one_hot(x, scores.shape[-1]).bool(), 0.0)


def get_shapes(num_features, width, depth):
    """Of GET's region pretraining: biases of queries and values, none of keys."""
    found: Shapes = {
        "mask_token": (1, 1, width),
        "cls_token": (1, 1, width),
        "region_embed.embed.weight": (width, num_features),
        "region_embed.embed.bias": (width,),
    }
    for block in (f"encoder.blocks.{number}." for number in range(depth)):
        found |= {
            f"{block}norm1.weight": (width,),
            f"{block}norm1.bias": (width,),
            f"{block}attn.q_bias": (width,),
            f"{block}attn.v_bias": (width,),
            f"{block}attn.qkv.weight": (3 * width, width),
            f"{block}attn.proj.weight": (width, width),
            f"{block}attn.proj.bias": (width,),
            f"{block}norm2.weight": (width,),
            f"{block}norm2.bias": (width,),
            f"{block}mlp.fc1.weight": (4 * width, width),
            f"{block}mlp.fc1.bias": (4 * width,),
            f"{block}mlp.fc2.weight": (width, 4 * width),
            f"{block}mlp.fc2.bias": (width,),
        }
    return found | {
        "encoder.norm.weight": (width,),
        "encoder.norm.bias": (width,),
        "head_mask.weight": (num_features, width),
        "head_mask.bias": (num_features,),
    }


def get_forward(weights, x, mask, num_heads):
    """Features (B, R, F) of all regions: x (B, R, F), mask (B, R) bool."""
    h = linear(weights, "region_embed.embed", x)
    width = h.shape[-1]
    h = torch.where(mask[..., None], weights["mask_token"], h)
    h = torch.cat((weights["cls_token"].expand(len(h), 1, width), h), dim=1)

    def normed(each, name):
        return functional.layer_norm(
            each, (width,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-6
        )

    for block in (
        f"encoder.blocks.{number}." for number in range(count_blocks(weights, "encoder.blocks."))
    ):
        own = {
            name.removeprefix(block): each
            for name, each in weights.items()
            if name.startswith(block)
        }
        heads = []
        for number, bias in enumerate((own["attn.q_bias"], None, own["attn.v_bias"])):
            rows = own["attn.qkv.weight"][number * width : (number + 1) * width]
            heads.append(
                functional.linear(normed(h, f"{block}norm1"), rows, bias).unflatten(
                    -1, (num_heads, -1)
                )
            )
        q, k, v = (each.transpose(1, 2) for each in heads)
        mixed = (q @ k.transpose(-1, -2) / math.sqrt(width // num_heads)).softmax(-1) @ v
        h = h + linear(own, "attn.proj", mixed.transpose(1, 2).flatten(2))
        h = h + linear(
            own, "mlp.fc2", functional.gelu(linear(own, "mlp.fc1", normed(h, f"{block}norm2")))
        )
    return linear(weights, "head_mask", normed(h, "encoder.norm")[:, 1:])


def linear(weights, name, x):
    return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def time_embedding(weights, name, t, width):
    """Cosines, then sines, of frequencies 10000^(-2j / width), and two layers."""
    omega = 10000 ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
    angles = t.double()[:, None] * omega
    waves = torch.cat((angles.cos(), angles.sin()), dim=-1).to(weights[f"{name}.0.weight"].dtype)
    return linear(weights, f"{name}.2", functional.silu(linear(weights, f"{name}.0", waves)))


def count_blocks(weights, prefix):
    return 1 + max(
        int(name.removeprefix(prefix).split(".")[0]) for name in weights if name.startswith(prefix)
    )
