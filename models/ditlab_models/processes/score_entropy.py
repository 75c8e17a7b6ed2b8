"""Denoising score entropy on the uniform graph (Lou et al. 2024, arXiv:2310.16834, algorithm 1).

The chunked form computes it from hidden states: the gradient of a chunk overwrites the network's
output.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ditlab_models.processes.uniform_graph import log_ratio, ratio
from ditlab_models.tensors import product_dtype, without_autocast

ScoreName = Literal["log", "softmax"]
"""Interpretation of a network's output l: `log`, log scores; `softmax`, softmax(l) in place of both
e^l and l, as in one published description: that loss is no divergence, goes below 0 and is not
least at the true scores."""
CHUNK_BYTES = {"cpu": 2**27, "cuda": 2**31}
"""Memory of a chunk's matrices by type of device: 667 tokens of 50,257 in float32 on a CPU, 5,340
in bfloat16 on a GPU. Less is slower: matrices get thin, and each chunk adds to the weight's whole
gradient."""
COLUMNS = {"cpu": 1, "cuda": 64}
"""A chunk's rows are a multiple of so many numbers apart: where a GPU's are not at multiples of 16
bytes, as 50,257 of two bytes each, its products take the slow way."""
ExpMinus = Callable[[Tensor, Tensor, bool], Tensor]


def log_scores(output: Tensor, x: Tensor, score: ScoreName) -> Tensor:
    """Log scores (..., V), 0 at x (...), of the network's output: itself, or the log of its
    softmax.
    """
    if score == "log":
        return output
    return output.log_softmax(-1).scatter(-1, x[..., None], 0.0)


class NoisyTokens(NamedTuple):
    """Noisy tokens and clean ones, and coefficients of a token's loss, p - (every n + clean n_{x0})
    + constant, each in the tokens' shape.

    p and n are sums over y != x, divided by V; n_{x0} is not divided.
    """

    x: Tensor
    x0: Tensor
    every: Tensor
    """r where the token has not moved, else 1."""
    clean: Tensor
    """0 where the token has not moved, else 1/(e^sigma - 1)."""
    constant: Tensor
    weight: Tensor
    """Weight of each token's loss in the sum."""


def noisy_tokens(
    x: Tensor, x0: Tensor, sigma: Tensor, weight: Tensor, vocabulary: int
) -> NoisyTokens:
    """Compute the coefficients of noisy tokens x and clean tokens x0 at noise sigma, which
    broadcasts against them.
    """
    sigma = sigma.expand(x.shape)
    r = ratio(sigma, vocabulary)
    log_r = log_ratio(sigma, vocabulary)
    grown = torch.expm1(sigma)
    stays = x == x0
    # for the token that has moved, ((-ln r - 1)/r - (V - 2))/V; 1/r = 1 + V/grown
    unmoved = (vocabulary - 1) / vocabulary * r * (log_r - 1)
    moved = (-log_r - 1) / grown + (-log_r - (vocabulary - 1)) / vocabulary
    every = torch.where(stays, r, 1.0)
    clean = torch.where(stays, 0.0, 1 / grown)
    return NoisyTokens(x, x0, every, clean, torch.where(stays, unmoved, moved), weight)


def expected_zero_score_entropy(sigma: Tensor, vocabulary: int) -> Tensor:
    """Mean over x of the losses of log scores that are all 0, (V - 1)/V e^-sigma ln(1/r): -d/d
    sigma of `kl_from_uniform`."""
    return -(vocabulary - 1) / vocabulary * torch.exp(-sigma) * log_ratio(sigma, vocabulary)


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


@torch.compiler.disable
def chunked_score_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor, x: Tensor, targets: LossTargets
) -> TokenLosses:
    """Compute the losses of the output `hidden @ weight.T + bias`, whose entry at the token itself
    counts as 0.

    hidden: (B, T, D); weight: (V, D); bias: (V,); x: noisy tokens, (B, T) int64. Matrices multiply
    in the weight's dtype, or autocast's; all else is float32 or better. Differentiable once.
    """
    dtype = product_dtype(weight)
    wide = torch.promote_types(dtype, torch.float32)
    vocabulary = len(weight)
    flat_x = x.flatten()
    flat_x0 = targets.x0.flatten()
    sigma, weights = (
        each.expand(x.shape).flatten().to(wide) for each in (targets.sigma, targets.weight)
    )
    tokens = noisy_tokens(flat_x, flat_x0, sigma, weights, vocabulary)
    inputs = (hidden.flatten(0, -2), weight, bias)
    with without_autocast(hidden):
        if torch.is_grad_enabled() and any(each.requires_grad for each in inputs):
            total, per_token = _ChunkedScoreEntropy.apply(*inputs, tokens, targets.score, dtype)
        else:
            per_token, _ = _sum_chunks(*inputs, tokens, targets.score, dtype, (False, False, False))
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
    ) -> tuple[Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[:3]
        per_token, gradients = _sum_chunks(hidden, weight, bias, tokens, score, dtype, needs_grad)
        ctx.save_for_backward(*gradients)
        ctx.dtypes = (hidden.dtype, weight.dtype, bias.dtype)
        ctx.mark_non_differentiable(per_token)
        return per_token @ tokens.weight, per_token

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_total: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        parts = [None if part is None else (part * by_total).to(dtype) for part, dtype in pairs]
        return (*parts, None, None, None)


def _sum_chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    tokens: NoisyTokens,
    score: ScoreName,
    dtype: torch.dtype,
    needs_grad: tuple[bool, bool, bool],
) -> tuple[Tensor, list[Tensor | None]]:
    """Compute each token's loss, (N,), and the needed gradients of the weighted sum, in float32 or
    better.
    """
    hidden = hidden.to(dtype)
    weight = weight.to(dtype)
    bias = bias.to(dtype)
    wide = tokens.weight.dtype
    vocabulary = len(weight)
    sums = None
    if score == "log":
        # sum_v l_v without a pass over log scores
        sums = torch.addmv(bias.sum(dtype=wide), hidden.to(wide), weight.sum(0, dtype=wide))
    # columns of log scores of -infinity
    spare = -vocabulary % COLUMNS.get(hidden.device.type, 1)
    if spare:
        weight = functional.pad(weight, (0, 0, 0, spare))
        bias = functional.pad(bias, (0, spare), value=-torch.inf)
    # one matrix that changes in place; or log scores, their wide copy and the gradient
    width = wide.itemsize if dtype == wide else 2 * dtype.itemsize + wide.itemsize
    chunk_bytes = CHUNK_BYTES.get(hidden.device.type, CHUNK_BYTES["cpu"])
    size = max(1, chunk_bytes // (vocabulary * width))
    per_token = torch.empty_like(tokens.weight)
    gradients = [
        torch.zeros_like(each, dtype=wide) if needed else None
        for each, needed in zip((hidden, weight, bias), needs_grad, strict=True)
    ]
    by_hidden, by_weight, by_bias = gradients
    buffer = hidden.new_empty(min(size, len(hidden)), len(weight))
    for start in range(0, len(hidden), size):
        rows = slice(start, start + size)
        h = hidden[rows]
        part = NoisyTokens(*(each[rows] for each in tokens))
        output = torch.addmm(bias, h, weight.t(), out=buffer[: len(h)])
        if sums is not None:
            per_token[rows] = log_chunk(output, vocabulary, part, sums[rows], any(needs_grad))
        else:
            per_token[rows] = softmax_chunk(output, vocabulary, part, any(needs_grad))
        scale = (part.weight / vocabulary)[:, None]
        if by_hidden is not None:
            by_hidden[rows] = (output @ weight).to(wide) * scale
        if by_weight is not None:
            scaled = (h.to(wide) * scale).to(dtype)
            if dtype == wide:
                by_weight.addmm_(output.t(), scaled)
            else:
                by_weight.add_(output.t() @ scaled)
        if by_bias is not None:
            by_bias.add_((scale.t().to(dtype) @ output)[0])
    return per_token, [
        by_hidden,
        *(None if each is None else each[:vocabulary] for each in (by_weight, by_bias)),
    ]


def log_chunk(
    output: Tensor, vocabulary: int, tokens: NoisyTokens, sums: Tensor, with_gradient: bool
) -> Tensor:
    """Compute losses (n,) of the output (n, V or more columns, of -infinity), whose rows sum to
    `sums` (n,); V times their gradients by the output, if `with_gradient`, take its place."""
    wide = tokens.weight.dtype
    x, x0, every, clean, constant, _ = (each[:, None] for each in tokens)
    at_x = output.gather(1, x).to(wide)
    at_x0 = output.gather(1, x0).to(wide)
    output.scatter_(1, x, -torch.inf)
    sum_exp = _on_gpu if output.is_cuda else exp_minus
    total = sum_exp(output, every, with_gradient)
    negative = every / vocabulary * (sums[:, None] - at_x) + clean * at_x0.masked_fill(x == x0, 0)
    if with_gradient:
        at_clean = at_x0.exp() - every - vocabulary * clean
        output.scatter_(1, x0, at_clean.to(output.dtype)).scatter_(1, x, 0)
        output[:, vocabulary:] = 0
    return (total / vocabulary - negative + constant)[:, 0]


def softmax_chunk(
    output: Tensor, vocabulary: int, tokens: NoisyTokens, with_gradient: bool
) -> Tensor:
    """Do the same for s = softmax(l): p = (1 - s_x)/V, n = every p + clean s_{x0}; ds_k/dl_v = s_k
    ([k = v] - s_v).
    """
    x, x0, every, clean, constant, _ = (each[:, None] for each in tokens)
    s = output.scatter_(1, x, 0).to(tokens.weight.dtype)
    s.sub_(s.amax(1, keepdim=True)).exp_()
    s.div_(s.sum(1, keepdim=True))
    at_x = s.gather(1, x)
    at_x0 = s.gather(1, x0)
    if with_gradient:
        by_clean = vocabulary * clean * at_x0
        s.mul_((1 - every) * at_x + by_clean)
        output.copy_(s.scatter_add_(1, x0, -by_clean).scatter_(1, x, 0))
    return ((1 - every) * (1 - at_x) / vocabulary - clean * at_x0 + constant)[:, 0]


def exp_minus(values: Tensor, shift: Tensor, with_shifted: bool) -> Tensor:
    """Row sums of e^values, (n, 1); if `with_shifted`, e^values - shift takes the place of the
    values.

    values: (n, V), without `with_shifted` overwritten where that is faster; shift: (n, 1), float32
    or better, the dtype of the computation.
    """
    e = values.to(shift.dtype).exp_()
    total = e.sum(1, keepdim=True)
    if with_shifted:
        values.copy_(e.sub_(shift))
    return total


class CompiledExpMinus:
    """`exp_minus` fused by torch.compile, or as it is where compilation fails (no Triton, no
    compiler).
    """

    def __init__(self) -> None:
        self._function: ExpMinus | None = None

    def __call__(self, values: Tensor, shift: Tensor, with_shifted: bool) -> Tensor:
        if self._function is None:  # at the first call: torch.compile imports 3 s of modules
            # Sizes are constants until others come: it is known then that rows begin and end at
            # multiples of 16 bytes, so that eight numbers are read at once.
            self._function = torch.compile(exp_minus) if find_spec("triton") else exp_minus
        try:
            return self._function(values, shift, with_shifted)
        except torch._dynamo.exc.TorchDynamoException:
            # compilation comes before the first run, so `values` are unchanged
            self._function = exp_minus
            return exp_minus(values, shift, with_shifted)


_on_gpu = CompiledExpMinus()
