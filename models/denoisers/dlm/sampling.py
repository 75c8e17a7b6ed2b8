"""The language model's sampler: tokens from noise, around prompts if there are any, at once or block by block.

In block sampling each block is drawn given the finished ones (Arriola et al. 2025, arXiv:2503.09573, section 3). Frames
keep the tokens after each denoising step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from denoisers.checks import check_no_label
from denoisers.contract import DEFAULT_REQUEST, SampleRequest, Samples, TextCodec
from denoisers.dlm.figures import sample_figure
from denoisers.dlm.prompts import Clamp, clamp_prompts, place_prompts
from denoisers.dlm.reverse_process import (
    Predict,
    ReverseStep,
    constant_sigma,
    denoise,
    reverse_steps,
    starting_tokens,
    uniform_tokens,
)
from denoisers.dlm.spec import DLMObjectiveSpec, DLMSamplingSpec, DLMSpec
from denoisers.figures import Figure
from denoisers.layers.attention import KVCache
from denoisers.processes.draws import SampleDraws

MAX_OUTPUT_VALUES = 2**29
"""Values of the network's output for one batch: 2 GiB in float32, ten sequences of 1024 tokens out of 50257."""
BlockCallback = Callable[[Tensor, float, int], None]
"""Called after each denoising step with all tokens (B, L), the active block's sigma, and that block's end."""
NUM_FRAMES = 8
"""Frames of the first sample."""


class DLMSampler:
    """Sampler of token sequences (num, L) int64, all tokens of one at once or block by block."""

    takes_rows: Literal["none", "conditions", "completed"] = "none"
    draws_per_prompt = False

    def __init__(
        self, spec: DLMSamplingSpec, model: DLMSpec, objective: DLMObjectiveSpec, text: TextCodec | None
    ) -> None:
        """`text` encodes prompts and decodes samples."""
        self._steps = reverse_steps(spec, objective)
        self._length = spec.length or model.length
        self._length_option = "sampling.length" if spec.length else "model.length"
        self._vocabulary = model.vocabulary
        self._text = text
        self._blocks: BlockSampler | None = None
        if spec.block is not None:
            assert model.block_size is not None
            sigma_min = objective.noise.sigma_min
            self._blocks = BlockSampler(self._steps, model.block_size, model.depth, sigma_min, spec.block.cache)
        self.max_batch_size: int | None = max(1, MAX_OUTPUT_VALUES // (self._length * model.vocabulary))

    def conditions(self, num: int, request: SampleRequest = DEFAULT_REQUEST) -> dict[str, Tensor]:
        """Return `tokens` (num, L) int64 and `given` (num, L) bool, true for prompts' tokens; {} without prompts.

        Raises ValueError for a label, and for prompts that cannot be read, do not fit or overlap.
        """
        check_no_label(request)
        if not request.prompts:
            return {}
        placed = place_prompts(request.prompts, self._text, self._length, self._length_option)
        clamp = clamp_prompts(placed, num, self._length)
        return {"tokens": clamp.tokens, "given": clamp.mask}

    @torch.no_grad()
    def sample(
        self,
        network: nn.Module,
        conditions: Mapping[str, Tensor],
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
        noise: Tensor | None = None,
    ) -> Samples:
        """Draw tokens (num, L) int64. Frames begin with uniform tokens around the prompts, then there is one a step.

        Every sample has its own generator, seeded from `generator`, for its noise and one draw a token and step.
        `noise` (num, L) int64, tokens in place of the uniform ones, stands around the prompts.
        `fields` hold at most eight frames of the first sample, evenly spaced over all steps: see `Frames.fields`.

        A prompt's tokens stand among noisy ones, and the network is evaluated at the noise level of these: its scores
        are those of noisy sequences that hold the prompt, and only towards sigma = 0 those of sequences that began with
        it (as in arXiv:2310.16834). In finished blocks, whose noise level is sigma_min, they are exact.
        """
        device = next(network.parameters()).device
        draws = SampleDraws(num, generator, device)
        x = uniform_tokens(draws, num, self._length, self._vocabulary)
        if noise is not None:
            x = starting_tokens(noise, x, self._vocabulary)
        clamp = Clamp(torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool))
        if conditions:
            clamp = Clamp(conditions["tokens"].to(device), conditions["given"].to(device))
        x = clamp.apply(x)
        length, blocks = x.shape[1], self._blocks
        frames = Frames(len(self._steps) if blocks is None else blocks.num_steps(clamp), trajectory)
        frames.add(x, self._steps[0].sigma, length)
        if blocks is None:

            def predict(tokens: Tensor, sigma: float) -> Tensor:
                output: Tensor = network(tokens, constant_sigma(network, num, sigma))
                return output

            x = denoise(predict, x, self._steps, clamp, draws, partial(frames.add, num_written=length))
        else:
            x = blocks.sample(network, x, clamp, draws, frames.add)
        on_device = {name: values.to(device) for name, values in conditions.items()}
        return Samples(x, on_device, frames.trajectory(), dict(frames.fields()))

    def show(self, samples: Samples) -> Figure:
        """Show the samples as text, and the frames of the first one."""
        return sample_figure(samples, self._text, in_blocks=self._blocks is not None)


@dataclass(frozen=True)
class BlockSampler:
    """Denoising of one block after another; finished blocks are clean, at noise `sigma_min`."""

    steps: Sequence[ReverseStep]
    """Denoising steps of each block."""
    block_size: int
    depth: int
    """Blocks of the network."""
    sigma_min: float
    cached: bool
    """True if keys and values of finished blocks are kept, not computed again at every step."""

    def num_steps(self, clamp: Clamp) -> int:
        """Number of denoising steps over all blocks that are not wholly clamped."""
        firsts = range(0, clamp.mask.shape[1], self.block_size)
        return len(self.steps) * sum(not clamp.part(first, first + self.block_size).whole for first in firsts)

    def sample(self, network: nn.Module, x: Tensor, clamp: Clamp, draws: SampleDraws, record: BlockCallback) -> Tensor:
        """Denoise tokens (B, L) around clamped ones. A wholly clamped block is only added to the cache."""
        length = x.shape[1]
        cache = KVCache(self.depth, length)
        for first in range(0, length, self.block_size):
            end = first + self.block_size
            before, behind, block_clamp = x[:, :first], x[:, end:], clamp.part(first, end)
            block = x[:, first:end]
            if not block_clamp.whole:
                predict = self._predict(network, before, cache)
                record_whole = partial(_record_whole, record, before, behind)
                block = denoise(predict, block, self.steps, block_clamp, draws, record_whole)
                x = torch.cat((before, block, behind), dim=1)
            if self.cached and end < length:
                self._commit(network, block, cache)
        return x

    def _predict(self, network: nn.Module, before: Tensor, cache: KVCache) -> Predict:
        """Evaluation of a block behind finished blocks `before` (B, ...)."""
        num = len(before)
        if self.cached:
            return lambda block, sigma: network(block, constant_sigma(network, num, sigma), cache=cache)

        def predict(block: Tensor, sigma: float) -> Tensor:
            fresh = KVCache(self.depth, before.shape[1] + self.block_size)
            if before.shape[1]:
                self._commit(network, before, fresh)
            output: Tensor = network(block, constant_sigma(network, num, sigma), cache=fresh)
            return output

        return predict

    def _commit(self, network: nn.Module, finished: Tensor, cache: KVCache) -> None:
        """Add keys and values of finished tokens to the cache."""
        network(finished, constant_sigma(network, len(finished), self.sigma_min), cache=cache, commit=True)


def _record_whole(record: BlockCallback, before: Tensor, behind: Tensor, block: Tensor, sigma: float) -> None:
    record(torch.cat((before, block, behind), dim=1), sigma, before.shape[1] + block.shape[1])


class Frames:
    """Recorder of the initial noise and of the tokens after every step."""

    def __init__(self, num_steps: int, trajectory: bool) -> None:
        last = NUM_FRAMES - 1
        self._recorded_steps = {round(number * num_steps / last) for number in range(NUM_FRAMES)}
        self._step = 0
        self._all: list[Tensor] | None = [] if trajectory else None
        self._first: list[Tensor] = []
        self._sigma: list[float] = []
        self._num_written: list[int] = []

    def add(self, x: Tensor, sigma: float, num_written: int) -> None:
        """Record tokens (num, L), the sigma of the active ones, and the number of active and finished tokens."""
        if self._all is not None:
            self._all.append(x)
        if self._step in self._recorded_steps:
            self._first.append(x[0].clone())  # on its device: a copy to the host would wait for it
            self._sigma.append(sigma)
            self._num_written.append(num_written)
        self._step += 1

    def trajectory(self) -> Tensor | None:
        """Return all frames (frames, num, L) int64, if they were requested."""
        return None if self._all is None else torch.stack(self._all)

    def fields(self) -> dict[str, Tensor]:
        """Return the first sample's arguments of `add`: `frames` (F, L), `noise` (F,) and `written` (F,), F <= 8."""
        noise = torch.tensor(self._sigma, dtype=torch.float64)
        return {"frames": torch.stack(self._first).cpu(), "noise": noise, "written": torch.tensor(self._num_written)}
