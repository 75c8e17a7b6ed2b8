"""The language model's sampler: tokens from noise, around prompts if there are any.

B batch, L tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from denoisers.checks import check_no_label
from denoisers.contract import DEFAULT_REQUEST, SampleRequest, Samples, TextCodec
from denoisers.dlm.block_sampling import BlockSampler
from denoisers.dlm.figures import sample_figure
from denoisers.dlm.frames import Frames
from denoisers.dlm.prompts import Clamp, SampleLength, clamp_prompts, place_prompts
from denoisers.dlm.reverse_process import constant_sigma, denoise, reverse_steps, starting_tokens, uniform_tokens
from denoisers.dlm.spec import DLMObjectiveSpec, DLMSamplingSpec, DLMSpec
from denoisers.figures import Figure
from denoisers.processes.sample_draws import SampleDraws

MAX_OUTPUT_VALUES = 2**29
"""Values of the network's output for one batch: 2 GiB in float32, ten sequences of 1024 tokens out of 50257."""


class DLMSampler:
    """Sampler of token sequences (num, L) int64, all tokens of one at once or block by block."""

    takes_rows: Literal["none", "conditions", "completed"] = "none"
    draws_per_prompt = False

    def __init__(
        self, spec: DLMSamplingSpec, model: DLMSpec, objective: DLMObjectiveSpec, text: TextCodec | None
    ) -> None:
        """`text` encodes prompts and decodes samples."""
        self._steps = reverse_steps(spec, objective)
        self._length = SampleLength("model.length", model.length)
        if spec.length is not None:
            self._length = SampleLength("sampling.length", spec.length)
        self._vocabulary = model.vocabulary
        self._text = text
        self._blocks: BlockSampler | None = None
        if spec.block is not None:
            assert model.block_size is not None
            sigma_min = objective.noise.sigma_min
            self._blocks = BlockSampler(self._steps, model.block_size, model.depth, sigma_min, spec.block.cache)
        self.max_batch_size: int | None = max(1, MAX_OUTPUT_VALUES // (self._length.tokens * model.vocabulary))

    def conditions(self, num: int, request: SampleRequest = DEFAULT_REQUEST) -> dict[str, Tensor]:
        """Return `tokens` (num, L) int64 and `given` (num, L) bool, true for prompts' tokens; {} without prompts.

        Raises ValueError for a label, and for prompts that cannot be read, do not fit or overlap.
        """
        check_no_label(request)
        if not request.prompts:
            return {}
        placed = place_prompts(request.prompts, self._text, self._length)
        clamp = clamp_prompts(placed, num, self._length.tokens)
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
        x = uniform_tokens(draws, num, self._length.tokens, self._vocabulary)
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
