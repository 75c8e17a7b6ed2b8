"""The region network written plainly: every token everywhere, the attention matrix in memory."""

import torch
from torch import Tensor
from torch.nn import functional


def plain_forward(
    network,
    x: Tensor,
    mask: Tensor,
    t: Tensor,
    present: Tensor | None = None,
    condition: Tensor | None = None,
) -> Tensor:
    """(B, R, F) -> predictions of all regions, (B, R, F), from the weights of a `RegionNetwork`.

    `condition` (B, D) replaces the embedding of t, whose float32 sinusoid depends on how it is
    written.
    """
    spec = network.spec
    batch, num_regions, _ = x.shape
    h = functional.linear(x, network.embedding.weight, network.embedding.bias)
    w = mask[..., None].to(h)
    token = network.tokens.mask.expand_as(h)
    h = h * (1 - w) + token * w if spec.corruption == "mask" else h + token * w
    if spec.positions == "sinusoidal":
        h = h + interleaved_table(num_regions, spec.width).to(h)
    h = torch.cat((network.tokens.cls.expand(batch, 1, -1), h), dim=1)
    condition = plain_condition(network, t) if condition is None else condition
    key_mask = (
        None if present is None else torch.cat((torch.ones_like(present[:, :1]), present), dim=1)
    )
    for block in network.blocks:
        h = plain_block(block, h, condition, spec.num_heads, key_mask)
    h = functional.layer_norm(
        h, (spec.width,), network.final_norm.weight, network.final_norm.bias, eps=1e-6
    )
    return functional.linear(h[:, 1:], network.head.weight, network.head.bias)


def plain_condition(network, t: Tensor) -> Tensor:
    half = network.spec.time_width // 2
    omega = torch.exp(-torch.log(torch.tensor(10000.0)) * torch.arange(half) / half)
    angles = t[:, None].float() * omega
    sinusoid = torch.cat((angles.cos(), angles.sin()), dim=-1).to(network.time.hidden.weight.dtype)
    return network.time.out(functional.silu(network.time.hidden(sinusoid)))


def plain_block(
    block, h: Tensor, condition: Tensor, num_heads: int, key_mask: Tensor | None
) -> Tensor:
    width = h.shape[-1]
    tokens = h.shape[1]
    # modulation by token, as if every token had a timestep of its own
    six = functional.linear(
        functional.silu(condition)[:, None].expand(-1, tokens, -1),
        block.adaln.modulation.weight,
        block.adaln.modulation.bias,
    )
    shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = six.chunk(6, dim=-1)
    normed = functional.layer_norm(h, (width,), eps=1e-6) * (1 + scale) + shift
    q, k, v = functional.linear(normed, block.attention.qkv.weight, block.attention.qkv.bias).chunk(
        3, dim=-1
    )
    q, k, v = (each.unflatten(-1, (num_heads, -1)).transpose(1, 2) for each in (q, k, v))
    scores = q @ k.transpose(-2, -1) / (width // num_heads) ** 0.5
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask[:, None, None], float("-inf"))
    mixed = (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
    h = h + gate * block.attention.out(mixed)
    normed = functional.layer_norm(h, (width,), eps=1e-6) * (1 + mlp_scale) + mlp_shift
    return h + mlp_gate * block.mlp.out(functional.gelu(block.mlp.hidden(normed)))


def interleaved_table(length: int, width: int) -> Tensor:
    """[sin, cos, sin, cos, ...] of position / 10000^(2i / width), float64."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    angles = position / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    table = torch.empty(length, width, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table
