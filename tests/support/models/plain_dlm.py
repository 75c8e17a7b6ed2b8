"""The language model written plainly: conditions by token, complex rotations, whole matrices."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint


def recompute(network):
    """Recompute the activations of a network's checkpointed modules in its backward pass."""
    for module in network.checkpointed_modules():
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)


def plain_forward(network, x, sigma, mask=None, positions=None):
    """Log scores (B, T, V) from the weights of a `DLM`: x (B, T), sigma (B, T), mask (T, T) bool,
    positions (T,).
    """
    spec = network.spec
    positions = torch.arange(x.shape[1]) if positions is None else positions
    condition = plain_condition(network, sigma)
    h = network.embedding.weight[x]
    for block in network.blocks:
        h = plain_block(block, h, condition, spec.num_heads, positions, mask)
    h = rms_norm(h, network.norm.weight)
    shift, scale = (
        condition @ network.output.modulation.weight.T + network.output.modulation.bias
    ).chunk(2, dim=-1)
    h = rms_norm(h, network.output.norm.weight) * (1 + scale) + shift
    scores = h @ network.output.log_scores.weight.T + network.output.log_scores.bias
    return scores * (x[..., None] != torch.arange(spec.vocabulary))


def plain_condition(network, sigma):
    """SiLU(W2 SiLU(W1 [cos, sin] + b1) + b2), (B, T) -> (B, T, C)."""
    half = network.spec.time_width // 2
    omega = torch.tensor([10000.0 ** (-i / half) for i in range(half)], dtype=torch.float64)
    angles = sigma.double()[..., None] * omega
    hidden, out = network.sigma_map.hidden, network.sigma_map.out
    h = silu(torch.cat((angles.cos(), angles.sin()), dim=-1) @ hidden.weight.T + hidden.bias)
    return silu(h @ out.weight.T + out.bias)


def plain_block(block, h, condition, num_heads, positions, mask):
    six = condition @ block.modulation.weight.T + block.modulation.bias
    shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = six.chunk(6, dim=-1)
    normed = rms_norm(h, block.attention_norm.weight) * (1 + scale) + shift
    width = h.shape[-1] // num_heads
    heads = []
    for wq, wk, wv in zip(
        *(w.split(width) for w in block.attention.qkv.weight.chunk(3)), strict=True
    ):
        q, k, v = turn(normed @ wq.T, positions), turn(normed @ wk.T, positions), normed @ wv.T
        scores = q @ k.transpose(-2, -1) / width**0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        heads.append(scores.softmax(dim=-1) @ v)
    h = h + gate * (torch.cat(heads, dim=-1) @ block.attention.out.weight.T)
    normed = rms_norm(h, block.mlp_norm.weight) * (1 + mlp_scale) + mlp_shift
    mlp = block.mlp
    return h + mlp_gate * (
        (silu(normed @ mlp.gate.weight.T) * (normed @ mlp.up.weight.T)) @ mlp.down.weight.T
    )


def turn(x, positions):
    """Entries j and j + K / 2 of (..., T, K) as one complex number, times e^(i m theta_j)."""
    half = x.shape[-1] // 2
    theta = torch.tensor(
        [10000.0 ** (-2 * j / x.shape[-1]) for j in range(half)], dtype=torch.float64
    )
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.exp(
        1j * positions[:, None] * theta
    )
    return torch.cat((turned.real, turned.imag), dim=-1)


def rms_norm(x, weight):
    return weight * x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()


def silu(x):
    return x / (1 + (-x).exp())
