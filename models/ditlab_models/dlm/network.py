"""The discrete diffusion language model (Lou et al. 2024, arXiv:2310.16834, section 5.1),
optionally block-causal.

Its blocks have rotary attention and an MLP, each modulated and gated by the noise level; the output
layer gives log scores, or their loss. B batch, T tokens, V vocabulary, N noise levels of a
sequence: 1, or its blocks in a block-causal network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ditlab_models.contract import ModuleGroups, ModulesByRole
from ditlab_models.dlm.spec import DLMSpec
from ditlab_models.layers.adaln import (
    GatedModulation,
    Modulation,
    add_gated,
    modulate,
    split_six,
    zero_linear,
)
from ditlab_models.layers.attention import (
    MLP,
    AttentionMask,
    KVCache,
    LayerCache,
    SelfAttention,
    SwiGLU,
    TiledMask,
    attention_backend,
    tiled_mask,
)
from ditlab_models.layers.embeddings import TimeEmbedding
from ditlab_models.layers.rope import Rotation, rotation
from ditlab_models.processes.score_entropy import (
    LossTargets,
    ScoreName,
    TokenLosses,
    chunked_score_entropy,
)
from ditlab_models.processes.specs import TokenNoiseSchedule
from ditlab_models.processes.uniform_graph import corrupt
from ditlab_models.tensors import child_groups, product_dtype, wide_dtype

RMS_EPS = 1e-6
LAYER_EPS = 1e-5


def build_norm(spec: DLMSpec) -> nn.Module:
    """Build the norm of the model's tokens: a weight, and no bias."""
    if spec.norm == "layer":
        return nn.LayerNorm(spec.width, eps=LAYER_EPS, bias=False)
    return nn.RMSNorm(spec.width, eps=RMS_EPS)


def attends_to_all(length: int, block_size: int | None, first: int = 0) -> bool:
    """Return True if tokens first .. first + length - 1 lie in one block: none of those before them
    is hidden.
    """
    return block_size is None or first // block_size == (first + length - 1) // block_size


def document_numbers(tokens: Tensor, end: int) -> Tensor:
    """Number each token's document within its row, from 0, shape (B, T); the token `end` belongs to
    the document it ends."""
    ends = (tokens == end).long()
    return ends.cumsum(1) - ends


def dense_mask(
    length: int,
    block_size: int | None,
    copies: int,
    documents: Tensor | None,
    device: torch.device,
    first: int = 0,
) -> Tensor | None:
    """Make the bool mask of one copy of a row behind `first` cached tokens, or of two; None: all
    true.

    Queries by keys: by blocks, (copies length, first + copies length), by documents (B, T), (B, 1,
    copies T, copies T), or by both. Of one copy a token attends to its own block and all earlier
    ones. Of a clean copy followed by a noisy one, clean block b attends to clean blocks <= b, noisy
    block b to clean blocks < b and itself (Arriola et al. 2025, arXiv:2503.09573, section 3).
    """
    mask = None
    if block_size is not None and not (copies == 1 and attends_to_all(length, block_size, first)):
        block, last = _reach(first + length, block_size, copies, device)
        mask = (block <= last[first:, None]) | (block == block[first:, None])
    if documents is None:
        return mask
    documents = documents.repeat(1, copies)
    same = documents[:, :, None] == documents[:, None]
    if mask is not None:
        same = same & mask
    return same[:, None]


def tiled_mask_of(
    length: int, block_size: int | None, copies: int, documents: Tensor | None, device: torch.device
) -> TiledMask:
    """Make the tiles of the same mask, of tokens behind no cached ones."""
    block, last = _reach(length, block_size or length, copies, device)
    batch_size = None
    if documents is not None:
        documents = documents.repeat(1, copies)
        batch_size = len(documents)

    def in_reach(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = (block[key] <= last[query]) | (block[key] == block[query])
        if documents is None:
            return near
        return (documents[sample, query] == documents[sample, key]) & near

    return tiled_mask(in_reach, copies * length, device, batch_size)


@lru_cache(maxsize=8)
def _tiles_of_blocks(
    length: int, block_size: int | None, copies: int, device: torch.device
) -> TiledMask:
    """Make tiles that do not depend on a batch, once a length."""
    with torch.inference_mode(False), torch.no_grad():
        return tiled_mask_of(length, block_size, copies, None, device)


def _reach(
    length: int, block_size: int, copies: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Number each token's block as a key, and the last block that it attends to beside its own:
    (copies T,) each.

    Blocks of the noisy copy are numbered behind all of the clean one, so that none but themselves
    reach them.
    """
    block = torch.arange(length, dtype=torch.int32, device=device) // block_size
    if copies == 1:
        return block, block
    return torch.cat((block, block + length)), torch.cat((block, block - 1))


class TokenEmbedding(nn.Embedding):
    """A learned vector per token, Kaiming uniform with a = sqrt 5: within 1 / sqrt(D) of 0."""

    def reset_parameters(self) -> None:
        """Draw the vectors."""
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)


class DLM(nn.Module):
    """Network that predicts log scores: log p(y) - log p(x) under noise, for every y that differs
    from x in one token.

    With `spec.block_size` a token attends to its own block and all earlier ones. Predicts 0 until
    it is trained.
    """

    def __init__(self, spec: DLMSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = TokenEmbedding(spec.vocabulary, spec.width)
        self.sigma_map = TimeEmbedding(
            spec.time_width, spec.condition_width, layout="cos_sin", denominator="half"
        )
        self.blocks = cast(
            "Sequence[DLMBlock]", nn.ModuleList(DLMBlock(spec) for _ in range(spec.depth))
        )
        self.norm = build_norm(spec) if spec.final_norm else nn.Identity()
        self.output = DLMOutput(spec)

    def condition(self, sigma: Tensor) -> Tensor:
        """Embed noise levels (B, N): (B, N, C)."""
        return functional.silu(self.sigma_map(sigma))  # the second SiLU; adaLN has none

    def mask(
        self, length: int, first: int, copies: int, documents: Tensor | None, device: torch.device
    ) -> AttentionMask | None:
        """Make the mask of tokens behind `first` cached ones (never tiles), or of two copies; None:
        all true.
        """
        block_size = self.spec.block_size
        if documents is None and copies == 1 and attends_to_all(length, block_size, first):
            return None
        backend = attention_backend(
            device.type,
            product_dtype(self.embedding.weight),
            self.spec.head_width,
            copies * length,
        )
        if first > 0 or backend == "dense":
            return dense_mask(length, block_size, copies, documents, device, first)
        if documents is None:
            return _tiles_of_blocks(length, block_size, copies, device)
        return tiled_mask_of(length, block_size, copies, documents, device)

    def forward(
        self,
        x: Tensor,
        sigma: Tensor,
        targets: LossTargets | None = None,
        cache: KVCache | None = None,
        commit: bool = False,
        documents: Tensor | None = None,
    ) -> Tensor | TokenLosses | None:
        """Predict log scores (B, T, V), 0 at the tokens of x, for x (B, T) int64 at sigma (B,) or
        (B, N).

        With `targets`, return their losses instead; with `block_size` too, each block of x attends
        to the earlier blocks of `targets.x0`, at noise level `targets.clean_sigma`. With `cache`, x
        follows the tokens committed there; `commit` keeps the keys and values of x, a finished
        block at its noise level sigma, and stops before the output layer. With `documents` (B, T)
        numbers, a token attends within its document alone.
        """
        if sigma.ndim == 1:
            sigma = sigma[:, None]
        length = x.shape[1]
        num_segments = sigma.shape[1]
        assert length % num_segments == 0, (
            f"{length} tokens do not fall into {num_segments} segments"
        )
        first = 0
        layers: Sequence[LayerCache | None] = [None] * self.spec.depth
        if cache is not None:
            self._check_cache(cache, targets, documents)
            first = cache.length
            layers = cache.layers
        tokens = x
        positions = torch.arange(first, first + length, device=x.device)
        copies = 1
        if targets is not None and self.spec.block_size is not None:
            copies = 2
            tokens = torch.cat((targets.x0, x), dim=1)
            positions = positions.repeat(2)
            sigma = torch.cat((torch.full_like(sigma, targets.clean_sigma), sigma), dim=1)
        mask = self.mask(length, first, copies, documents, x.device)
        condition = self.condition(sigma)
        h = self.embedding(tokens)
        rope = rotation(positions, self.spec.head_width, dtype=wide_dtype(h))
        for block, layer in zip(self.blocks, layers, strict=True):
            h = block(h, condition, rope, mask, layer)
        if cache is not None and commit:
            cache.commit(length)
            return None
        if copies == 2:
            h = h[:, length:]
            condition = condition[:, num_segments:]
        return self.output(self.norm(h), condition, x, targets)

    def _check_cache(
        self, cache: KVCache, targets: LossTargets | None, documents: Tensor | None
    ) -> None:
        """Assert what a cache needs of a forward pass."""
        block_size = self.spec.block_size
        assert block_size and cache.length % block_size == 0, "a cache holds whole blocks"
        assert targets is None, "losses are not computed block by block"
        assert documents is None, "a cache holds one document"

    def components(self) -> ModuleGroups:
        return child_groups(self)

    def role_modules(self) -> ModulesByRole:
        return {"head": [self.output.log_scores]}

    def checkpointed_modules(self) -> Sequence[nn.Module]:
        return self.blocks

    def compiled_modules(self) -> ModuleGroups:
        return {"block": self.blocks}


def modulate_segments(x: Tensor, modulation: Modulation | GatedModulation) -> Tensor:
    """Modulate by segment: x (B, T, D), scale and shift (B, N, D) -> (B, T, D)."""
    return modulate(x.unflatten(1, (modulation.scale.shape[1], -1)), modulation).flatten(1, 2)


def add_gated_segments(x: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
    """Add a branch gated by segment: x and branch (B, T, D), gate (B, N, D) -> (B, T, D)."""
    x, branch = (each.unflatten(1, (gate.shape[1], -1)) for each in (x, branch))
    return add_gated(x, branch, gate).flatten(1, 2)


class DLMBlock(nn.Module):
    """x + gate attention(modulated norm), then x + gate MLP(modulated norm): the identity until it
    is trained.
    """

    def __init__(self, spec: DLMSpec) -> None:
        super().__init__()
        self.modulation = zero_linear(spec.condition_width, 6 * spec.width, 6)
        self.attention_norm = build_norm(spec)
        self.attention = SelfAttention(spec.width, spec.num_heads, bias=False)
        self.mlp_norm = build_norm(spec)
        sizes = (spec.width, spec.mlp_width)
        self.mlp = SwiGLU(*sizes) if spec.mlp == "swiglu" else MLP(*sizes, gelu="tanh")

    def forward(
        self,
        x: Tensor,
        condition: Tensor,
        rope: Rotation,
        mask: AttentionMask | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Transform x (B, T, D) under (B, N, C), which has passed a SiLU. `mask` is that of
        `SelfAttention.forward`, broadcast to (B, H, T, S): S counts the `cache`'s committed tokens
        too, and tiles go with none of them."""
        before_attention, before_mlp = split_six(self.modulation(condition))
        normed = modulate_segments(self.attention_norm(x), before_attention)
        x = add_gated_segments(
            x, self.attention(normed, mask=mask, rope=rope, cache=cache), before_attention.gate
        )
        branch = self.mlp(modulate_segments(self.mlp_norm(x), before_mlp))
        return add_gated_segments(x, branch, before_mlp.gate)


class LogScores(nn.Linear):
    """A Linear to the vocabulary, zero-initialised; the log score of the token itself is 0."""

    def reset_parameters(self) -> None:
        """Set weight and bias to 0."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(  # type: ignore[override]
        self, h: Tensor, x: Tensor, targets: LossTargets | None = None
    ) -> Tensor | TokenLosses:
        """Compute log scores (B, T, V) of h (B, T, D) at x (B, T) int64; with targets their losses,
        chunk by chunk.
        """
        if targets is not None:
            # Here, not in the objective: ZeRO-3 gathers a weight for the forward pass of the module
            # that owns it.
            return chunked_score_entropy(h, self.weight, self.bias, x, targets)
        # in place: (B, T, V) is held once
        return super().forward(h).scatter_(-1, x[..., None], 0.0)


class DLMOutput(nn.Module):
    """A norm, scale and shift by the noise level, then the log scores: 0 until it is trained."""

    def __init__(self, spec: DLMSpec) -> None:
        super().__init__()
        self.norm = build_norm(spec)
        self.modulation = zero_linear(spec.condition_width, 2 * spec.width, 2)
        self.log_scores = LogScores(spec.width, spec.vocabulary)

    def forward(
        self, h: Tensor, condition: Tensor, x: Tensor, targets: LossTargets | None = None
    ) -> Tensor | TokenLosses:
        """Compute log scores (B, T, V), or with targets their losses, of h (B, T, D) under (B, N,
        C) at x (B, T).
        """
        shift, scale = self.modulation(condition).chunk(2, dim=-1)
        return self.log_scores(
            modulate_segments(self.norm(h), Modulation(scale, shift)), x, targets
        )


@dataclass(frozen=True)
class NoiseLevels:
    """Noise levels and the weights of their losses, (B, N) float32 each."""

    sigma: Tensor
    rate: Tensor
    """d sigma/dt."""
    weight: Tensor
    """The mean over draws of weight times loss is the mean over time of d sigma/dt times loss."""


@dataclass(frozen=True)
class TokenNoise:
    """Noise process of one model's tokens."""

    schedule: TokenNoiseSchedule
    vocabulary: int
    block_size: int | None
    """Tokens that share a time; None: all of a sequence."""
    score: ScoreName
    document_end: int | None = None
    """Token that ends a document, where attention stays within documents; None: it crosses them."""

    def time_shape(self, x0: Tensor) -> tuple[int, int]:
        """Return the shape (B, N) of the times of tokens (B, T)."""
        if self.block_size is None:
            return len(x0), 1
        return len(x0), x0.shape[1] // self.block_size

    def at_time(self, t: Tensor, weight: Tensor | None = None) -> NoiseLevels:
        """Compute the levels at times (B, N), drawn uniformly, or such that they count by `weight`
        (B, N).
        """
        sigma = self.schedule.sigma(t)
        rate = self.schedule.rate_at(sigma)
        if weight is None:
            return NoiseLevels(sigma, rate, rate)
        return NoiseLevels(sigma, rate, rate * weight)

    def within(self, start: float, end: float, uniform: Tensor) -> NoiseLevels:
        """Draw levels between two times such that u = arctan(sqrt(sigma)) is uniform; `uniform`
        U[0, 1), (B, N).
        """
        first, last = (math.atan(math.sqrt(self.schedule.sigma_at(t))) for t in (start, end))
        root = torch.tan(first + (last - first) * uniform)
        sigma = root.square()
        by_u = 2 * root * (1 + sigma)  # d sigma/du
        return NoiseLevels(
            sigma, self.schedule.rate_at(sigma), by_u * (last - first) / (end - start)
        )

    def losses(
        self, network: nn.Module, x0: Tensor, levels: NoiseLevels, move: Tensor, jump: Tensor
    ) -> TokenLosses:
        """Compute losses of noised tokens x0 (B, T), `total` a mean by the levels' weight; move and
        jump U[0, 1), (B, T)."""
        sigma, weight = (by_token(each, x0) for each in (levels.sigma, levels.weight))
        x = corrupt(x0, sigma, move, jump, self.vocabulary)
        targets = LossTargets(x0, sigma, weight / x0.numel(), self.score, self.schedule.sigma_min)
        return network(x, levels.sigma, targets, documents=self.documents(x0))

    def documents(self, x0: Tensor) -> Tensor | None:
        """Number the documents of clean tokens (B, T), where attention stays within them."""
        if self.document_end is None:
            return None
        return document_numbers(x0, self.document_end)


def by_token(values: Tensor, x0: Tensor) -> Tensor:
    """Repeat the blocks' values (B, N) for each of the tokens x0 (B, T)."""
    return values.repeat_interleave(x0.shape[1] // values.shape[1], 1)
