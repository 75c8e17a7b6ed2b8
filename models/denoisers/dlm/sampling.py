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
from denoisers.dlm.block_sampling import BlockWriter
from denoisers.dlm.figures import sample_figure
from denoisers.dlm.frames import Frames
from denoisers.dlm.prompts import Given, Room, given_tokens, place_prompts
from denoisers.dlm.reverse_process import Pass, noise_tokens, reverse_passes, take_noise_away, told
from denoisers.dlm.spec import DLMObjectiveSpec, DLMSamplingSpec, DLMSpec
from denoisers.figures import Figure
from denoisers.processes.sample_draws import SampleDraws

OUTPUT_NUMBERS = 2**29
"""Of the network's output for samples drawn at once: 2 GiB in float32, ten sequences of 1024 tokens out of 50257."""


def build_sampler(
    spec: DLMSamplingSpec, model: DLMSpec, objective: DLMObjectiveSpec, text: TextCodec | None
) -> DLMSampler:
    """The sampler of a model trained by this objective. `text` reads prompts and writes samples."""
    passes = reverse_passes(spec, objective)
    room = Room("model.length", model.length) if spec.length is None else Room("sampling.length", spec.length)
    writer = None
    if spec.block is not None:
        assert model.block_size is not None
        sigma_min = objective.noise.sigma_min
        writer = BlockWriter(passes, model.block_size, model.depth, sigma_min, cached=spec.block.cache)
    return DLMSampler(passes, room, model.vocabulary, writer, text)


class DLMSampler:
    """Sequences of tokens (num, L) int64, all tokens of one at once or block by block."""

    takes_rows: Literal["none", "conditions", "completed"] = "none"
    draws_per_prompt = False

    def __init__(
        self, passes: tuple[Pass, ...], room: Room, vocabulary: int, writer: BlockWriter | None, text: TextCodec | None
    ) -> None:
        self._passes = passes
        self._room = room
        self._vocabulary = vocabulary
        self._writer = writer
        self._text = text
        self.max_batch_size: int | None = max(1, OUTPUT_NUMBERS // (room.length * vocabulary))

    def conditions(self, num: int, request: SampleRequest = DEFAULT_REQUEST) -> dict[str, Tensor]:
        """`tokens` (num, L) int64 and `given` (num, L) bool, true where a prompt gives the token; {} without prompts.

        Raises ValueError for a label, and for prompts that cannot be read, do not fit or overlap.
        """
        check_no_label(request)
        if not request.prompts:
            return {}
        placed = place_prompts(request.prompts, self._text, self._room)
        given = given_tokens(placed, num, self._room.length)
        return {"tokens": given.tokens, "given": given.mask}

    @torch.no_grad()
    def sample(
        self,
        network: nn.Module,
        conditions: Mapping[str, Tensor],
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
    ) -> Samples:
        """Tokens (num, L) int64. Frames begin with uniform tokens around the prompts, then there is one a pass.

        Every sample has its own generator, seeded from `generator`, for its noise and one draw a token and pass.
        `fields` hold at most eight frames of the first sample, spread over all passes: see `Frames.fields`.

        A prompt's tokens stand among noisy ones, and the network is told the noise of these: its scores are those of
        noisy sequences that hold the prompt, and only towards sigma = 0 those of sequences that began with it
        (as in arXiv:2310.16834). In finished blocks, which the network is told to be clean, they are exact.
        """
        device = next(network.parameters()).device
        draws = SampleDraws(num, generator, device)
        x = noise_tokens(draws, num, self._room.length, self._vocabulary)
        given = Given(torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool))
        if conditions:
            given = Given(conditions["tokens"].to(device), conditions["given"].to(device))
        x = given.put_into(x)
        length, writer = x.shape[1], self._writer
        frames = Frames(len(self._passes) if writer is None else writer.num_passes(given), trajectory)
        frames.add(x, self._passes[0].sigma, length)
        if writer is None:

            def ask(tokens: Tensor, sigma: float) -> Tensor:
                output: Tensor = network(tokens, told(network, num, sigma))
                return output

            x = take_noise_away(ask, x, self._passes, given, draws, partial(frames.add, written=length))
        else:
            x = writer.write(network, x, given, draws, frames.add)
        kept = {name: values.to(device) for name, values in conditions.items()}
        return Samples(x, kept, frames.trajectory(), dict(frames.fields()))

    def show(self, samples: Samples) -> Figure:
        """The samples as text, and how the first one came about."""
        return sample_figure(samples, self._text, in_blocks=self._writer is not None)
