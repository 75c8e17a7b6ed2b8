"""Uniform-graph score entropy from hidden states, without ever holding all log scores (see `score_entropy`).

B batch, T tokens, N = B T, D width, V vocabulary. Tokens are taken in chunks of n. A chunk's log scores (n, V) turn in
place into the loss' gradient by them and, in the same pass, into gradients by hidden states, weight and bias; the
backward pass only multiplies these by the incoming scalar. It needs neither log scores nor the weight, which ZeRO-3 has
released by then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from denoisers.layers.autocast import product_dtype, without_autocast
from denoisers.processes.discrete.chunk_gradients import NoisyTokens, log_chunk, softmax_chunk
from denoisers.processes.discrete.score_entropy import ScoreName, coefficients

CHUNK_BYTES = 2**27
"""Memory of a chunk's matrices: 667 tokens of 50,257 in float32. Less is slower: matrices get thin, and each chunk
adds to the weight's whole gradient."""


class LossTargets(NamedTuple):
    """Inputs of an output layer that returns its loss in place of its log scores."""

    x0: Tensor
    """Clean tokens, (B, T) int64. A block-causal network's clean copy."""
    sigma: Tensor
    """Noise level of each token of the noisy copy, (B, T) float32."""
    weight: Tensor
    """Weight of each token's loss in the sum, (B, T) float32."""
    score: ScoreName = "log"
    """Interpretation of the output."""
    clean_sigma: float = 0.0
    """Noise level of a block-causal network's clean copy; unused by other networks."""


class TokenLosses(NamedTuple):
    """Loss of a batch of tokens."""

    total: Tensor
    """Sum over tokens of weight times loss, a scalar that gradients flow from."""
    per_token: Tensor
    """Loss of each token, unweighted and detached, (B, T) float32 or better."""


class _Gradients(NamedTuple):
    """Gradients of the weighted sum; None where not needed."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


@torch.compiler.disable
def chunked_score_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor, x: Tensor, targets: LossTargets, chunk_bytes: int = CHUNK_BYTES
) -> TokenLosses:
    """Compute the losses of the output `hidden @ weight.T + bias`, whose entry at the token itself counts as 0.

    hidden: (B, T, D); weight: (V, D); bias: (V,); x: noisy tokens, (B, T) int64. Matrices multiply in the weight's
    dtype, or autocast's; all else, the gradients' sums included, is float32 or better. Without gradients (evaluation)
    nothing is computed or kept for them. Differentiable once.
    """
    dtype = product_dtype(weight)
    wide = torch.promote_types(dtype, torch.float32)
    vocabulary = len(weight)
    flat_x, flat_x0 = x.flatten(), targets.x0.flatten()
    terms = coefficients(flat_x, flat_x0, targets.sigma.expand(x.shape).flatten().to(wide), vocabulary)
    tokens = NoisyTokens(flat_x, flat_x0, terms, targets.weight.expand(x.shape).flatten().to(wide))
    inputs = (hidden.flatten(0, -2), weight, bias)
    with without_autocast(hidden):
        if torch.is_grad_enabled() and any(each.requires_grad for each in inputs):
            total, per_token = _ChunkedScoreEntropy.apply(*inputs, tokens, targets.score, dtype, chunk_bytes)
        else:
            per_token, _ = _sum_chunks(*inputs, tokens, targets.score, dtype, chunk_bytes, (False, False, False))
            total = per_token @ tokens.weight
    return TokenLosses(total, per_token.view(x.shape))


class _ChunkedScoreEntropy(torch.autograd.Function):
    """The weighted sum, whose gradients are computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        tokens: NoisyTokens,
        score: ScoreName,
        dtype: torch.dtype,
        chunk_bytes: int,
    ) -> tuple[Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[:3]
        per_token, gradients = _sum_chunks(hidden, weight, bias, tokens, score, dtype, chunk_bytes, needs_grad)
        ctx.save_for_backward(*gradients)
        ctx.dtypes = (hidden.dtype, weight.dtype, bias.dtype)
        ctx.mark_non_differentiable(per_token)
        return per_token @ tokens.weight, per_token

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_total: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        parts = [None if part is None else (part * by_total).to(dtype) for part, dtype in pairs]
        return (*parts, None, None, None, None)


def _sum_chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    tokens: NoisyTokens,
    score: ScoreName,
    dtype: torch.dtype,
    chunk_bytes: int,
    needs_grad: tuple[bool, bool, bool],
) -> tuple[Tensor, _Gradients]:
    """Compute each token's loss, (N,), and the needed gradients of the weighted sum, in float32 or better."""
    hidden, weight, bias = hidden.to(dtype), weight.to(dtype), bias.to(dtype)
    wide = tokens.weight.dtype
    vocabulary = len(weight)
    sums = None
    if score == "log":
        # sum_v l_v without a pass over log scores
        sums = torch.addmv(bias.sum(dtype=wide), hidden.to(wide), weight.sum(0, dtype=wide))
    # one matrix that changes in place; or log scores, their wide copy and the gradient
    width = wide.itemsize if dtype == wide else 2 * dtype.itemsize + wide.itemsize
    size = max(1, chunk_bytes // (vocabulary * width))
    per_token = torch.empty_like(tokens.weight)
    gradients = _Gradients(
        *(
            torch.zeros_like(each, dtype=wide) if needed else None
            for each, needed in zip((hidden, weight, bias), needs_grad, strict=True)
        )
    )
    buffer = hidden.new_empty(min(size, len(hidden)), vocabulary)
    for start in range(0, len(hidden), size):
        rows = slice(start, start + size)
        h, part = hidden[rows], tokens.chunk(rows)
        output = torch.addmm(bias, h, weight.t(), out=buffer[: len(h)])
        if sums is not None:
            per_token[rows], by_output = log_chunk(output, part, sums[rows], any(needs_grad))
        else:
            per_token[rows], by_output = softmax_chunk(output, part, any(needs_grad))
        if by_output is not None:
            _accumulate(gradients, rows, by_output, h, weight, (part.weight / vocabulary)[:, None])
    return per_token, gradients


def _accumulate(
    gradients: _Gradients, rows: slice, by_output: Tensor, hidden: Tensor, weight: Tensor, scale: Tensor
) -> None:
    """Add a chunk's gradients: by_output (n, V) and hidden (n, D) in the matrices' dtype, scale (n, 1) wide."""
    dtype = by_output.dtype
    if gradients.hidden is not None:
        gradients.hidden[rows] = (by_output @ weight).to(scale.dtype) * scale
    if gradients.weight is not None:
        scaled = (hidden.to(scale.dtype) * scale).to(dtype)
        if dtype == gradients.weight.dtype:
            gradients.weight.addmm_(by_output.t(), scaled)
        else:
            gradients.weight.add_(by_output.t() @ scaled)
    if gradients.bias is not None:
        gradients.bias.add_((scale.t().to(dtype) @ by_output)[0])
