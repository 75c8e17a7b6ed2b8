"""The language model's sampler: tokens from noise, around prompts if there are any, at once or
block by block.

Steps of the reverse process are those of Lou et al. 2024 (arXiv:2310.16834, section 4). In block
sampling each block is drawn given the finished ones (Arriola et al. 2025, arXiv:2503.09573, section
3). B batch, T or L tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ditlab_models.checks import check_no_label
from ditlab_models.contract import (
    DEFAULT_REQUEST,
    Conditions,
    Prompt,
    Sampler,
    SampleRequest,
    Samples,
    TextCodec,
)
from ditlab_models.dlm.spec import (
    LAST_TIME,
    BlockSampling,
    DLMObjectiveSpec,
    DLMSamplingSpec,
    DLMSpec,
)
from ditlab_models.figures import Figure, Text, evenly_spaced
from ditlab_models.layers.attention import KVCache
from ditlab_models.processes.draws import SampleDraws, check_noise_shape, state_dtype
from ditlab_models.processes.score_entropy import ScoreName, log_scores
from ditlab_models.processes.uniform_graph import posterior, reverse_rate
from ditlab_models.tensors import widened

CHUNK_ENTRIES = 2**21
"""Probabilities that are computed at once: 8 MiB of float32 a tensor, of which a few live at a
time.
"""
MAX_OUTPUT_VALUES = 2**29
"""Values of the network's output for one batch: 2 GiB in float32, ten sequences of 1024 tokens out
of 50257.
"""
NUM_FRAMES = 8
"""Frames of the first sample."""
FRAME_FIELDS = ("frames", "noise", "written")
EXCERPT = 1200
"""Characters shown of a frame: about twelve lines, so that eight frames fit a panel."""
NAME_LENGTH = 40
"""Characters of a prompt that messages show."""
TransitionProbabilities = Callable[[Tensor, Tensor], Tensor]
"""Weights of every next token, (N, V), with any positive sum, from the network's output (N, V) and
tokens (N,).
"""


def _place(
    prompt: Prompt, text: TextCodec | None, size: int, length: str
) -> tuple[int, list[int], str]:
    """Return a prompt's first position in a sample of `size` tokens, its tokens, and its name in
    messages.
    """
    shown = prompt.text
    if len(shown) > NAME_LENGTH:
        shown = f"{shown[: NAME_LENGTH - 3]}..."
    name = f"prompt={shown!r}"
    if text is None:
        raise ValueError(
            f"{name} cannot be read, as no tokeniser came with the data (tokenizer.json); "
            "import the data again with one, or leave the prompt out."
        )
    tokens = text.encode(prompt.text)
    if not tokens:
        raise ValueError(f"{name} holds no token; give it text, or leave it out.")
    if not -size <= prompt.position < size:
        raise ValueError(
            f"position={prompt.position} of {name} lies outside a sample ({length}); "
            f"set it to a number from {-size} to {size - 1}."
        )
    first = prompt.position % size
    if len(tokens) > size:
        raise ValueError(
            f"{name} has {len(tokens)} tokens, more than a sample ({length}); shorten it to {size}."
        )
    if first + len(tokens) > size:
        raise ValueError(
            f"{name} has {len(tokens)} tokens, and from position={prompt.position} a sample "
            f"has {size - first} left ({length}); set its position to {size - len(tokens)} (or "
            f"{-len(tokens)}, from the end), or shorten it."
        )
    return first, tokens, name


class ReverseStep(NamedTuple):
    """One evaluation of the network, and the draw of tokens from its output."""

    sigma: float
    """Noise level of the network's evaluation."""
    sigma_after: float
    """Noise level of the drawn tokens."""
    probabilities: TransitionProbabilities


def reverse_steps(spec: DLMSamplingSpec, objective: DLMObjectiveSpec) -> tuple[ReverseStep, ...]:
    """Build the steps from t = 1 on, at even times: `spec.num_steps`, and the denoising one if
    `spec.denoise`.

    `euler` and `analytic` evaluate the network where each step begins; `categorical` at t = 1e-5
    too, and denoises nothing.
    """
    schedule = objective.noise
    score = objective.score
    num_steps = spec.num_steps
    if spec.solver == "categorical":
        levels = schedule.sigma(
            torch.linspace(1, LAST_TIME, num_steps, dtype=torch.float64)
        ).tolist()
        return tuple(ReverseStep(sigma, sigma, categorical_probabilities) for sigma in levels)
    times = torch.linspace(1, LAST_TIME, num_steps + 1, dtype=torch.float64)
    sigma = schedule.sigma(times).tolist()
    rate = schedule.rate(times).tolist()
    steps = []
    for now, after, slope in zip(sigma[:-1], sigma[1:], rate[:-1], strict=True):
        if spec.solver == "euler":
            probabilities = euler_probabilities(slope * (1 - LAST_TIME) / num_steps, score)
        else:
            probabilities = analytic_probabilities(now - after, score)
        steps.append(ReverseStep(now, after, probabilities))
    if spec.denoise:
        steps.append(ReverseStep(sigma[-1], 0.0, analytic_probabilities(sigma[-1], score)))
    return tuple(steps)


def euler_probabilities(step: float, score: ScoreName) -> TransitionProbabilities:
    """One-hot + step times the reverse rate, 0 where that is negative; step = dt d sigma/dt."""

    def probabilities(output: Tensor, x: Tensor) -> Tensor:
        change = step * reverse_rate(log_scores(output, x, score), x)
        return change.scatter_add(-1, x[..., None], torch.ones_like(change[..., :1])).clamp(min=0)

    return probabilities


def analytic_probabilities(step: float, score: ScoreName) -> TransitionProbabilities:
    """Staggered scores times the transposed transition, from one noise level to the one `step`
    below.
    """
    return lambda output, x: posterior(log_scores(output, x, score), x, output.new_full((), step))


def categorical_probabilities(output: Tensor, x: Tensor) -> Tensor:
    """softmax(output), whatever x: a heuristic, no reverse process; no step removes its noise."""
    return output.softmax(-1)


def tempered(probabilities: TransitionProbabilities, temperature: float) -> TransitionProbabilities:
    """The same of the network's output divided by `temperature`."""
    return lambda output, x: probabilities(output / temperature, x)


def draw_tokens(
    probabilities: TransitionProbabilities, output: Tensor, x: Tensor, uniform: Tensor
) -> Tensor:
    """Draw tokens (B, T) from outputs (B, T, V), tokens x and U[0, 1), (B, T), by inverse
    cumulative sums in float64."""
    size = max(1, CHUNK_ENTRIES // output.shape[-1])
    drawn = []
    for part, tokens, at in zip(
        *(each.flatten(0, 1).split(size) for each in (output, x, uniform)), strict=True
    ):
        weights = probabilities(widened(part), tokens)
        summed = weights.cumsum(-1, dtype=torch.float64)
        token = torch.searchsorted(summed, (at * summed[:, -1])[:, None], right=True)[:, 0]
        drawn.append(token.clamp(max=weights.shape[-1] - 1))  # NaN lies above nothing
    return torch.cat(drawn).view_as(x)


class FinishedTokens:
    """Tokens before the block that is drawn, for a network: their keys and values are kept, or
    computed each time.
    """

    def __init__(
        self, network: nn.Module, depth: int, block: BlockSampling | None, sigma: float, length: int
    ) -> None:
        """Sample `length` tokens; `block` None: all at once. `sigma`: noise level at which the
        network sees them.
        """
        self._network = network
        self._depth = depth
        self._block = block
        self._sigma = sigma
        self._length = length
        if block is not None:
            self._cache = KVCache(depth, length)

    def output(self, x: Tensor, first: int, end: int, sigma: float) -> Tensor:
        """Return the network's output at the tokens from `first` to `end`, of this noise level."""
        block = x[:, first:end]
        levels = self._levels(x, sigma)
        found: Tensor
        if self._block is None:
            found = self._network(block, levels)
        else:
            found = self._network(block, levels, cache=self._before(x, first, end))
        return found

    def _before(self, x: Tensor, first: int, end: int) -> KVCache:
        """Return the keys and values of the tokens before a block, with room for its own."""
        if self._block is None or self._block.cache:
            return self._cache
        cache = KVCache(self._depth, end)
        if first:
            self._network(x[:, :first], self._levels(x, self._sigma), cache=cache, commit=True)
        return cache

    def finish(self, x: Tensor, first: int, end: int) -> None:
        """Take the tokens of a block as finished."""
        if self._block is not None and self._block.cache and end < self._length:
            self._network(
                x[:, first:end], self._levels(x, self._sigma), cache=self._cache, commit=True
            )

    def _levels(self, x: Tensor, sigma: float) -> Tensor:
        return torch.full((len(x),), sigma, dtype=state_dtype(self._network), device=x.device)


class DLMSampler(Sampler):
    """Sampler of token sequences (num, L) int64, all tokens of one at once or block by block."""

    def __init__(
        self,
        spec: DLMSamplingSpec,
        model: DLMSpec,
        objective: DLMObjectiveSpec,
        text: TextCodec | None,
    ) -> None:
        """`text` encodes prompts and decodes samples."""
        self._spec = spec
        self._model = model
        self._text = text
        self._steps = reverse_steps(spec, objective)
        if spec.temperature != 1:
            self._steps = tuple(
                step._replace(probabilities=tempered(step.probabilities, spec.temperature))
                for step in self._steps
            )
        self._sigma_min = objective.noise.sigma_min
        self._length = spec.length or model.length
        self.max_batch_size = max(1, MAX_OUTPUT_VALUES // (self._length * model.vocabulary))

    def conditions(self, num: int, request: SampleRequest = DEFAULT_REQUEST) -> dict[str, Tensor]:
        """Return `tokens` (num, L) int64 and `given` (num, L) bool, true for prompts' tokens; {}
        without prompts.

        Raises ValueError for a label, and for prompts that cannot be read, do not fit or overlap.
        """
        check_no_label(request)
        if not request.prompts:
            return {}
        size = self._length
        option = "sampling.length" if self._spec.length else "model.length"
        length = f"{option}={size}"
        placed = sorted(
            (_place(each, self._text, size, length) for each in request.prompts),
            key=lambda each: each[0],
        )
        tokens = torch.zeros(size, dtype=torch.int64)
        given = torch.zeros(size, dtype=torch.bool)
        for first, prompt, _ in placed:
            tokens[first : first + len(prompt)] = torch.tensor(prompt)
            given[first : first + len(prompt)] = True
        for (first, prompt, name), (next_first, next_prompt, next_name) in pairwise(placed):
            end = first + len(prompt)
            if next_first < end:
                raise ValueError(
                    f"{name} (tokens {first} to {end - 1}) and {next_name} (tokens "
                    f"{next_first} to {next_first + len(next_prompt) - 1}) overlap; set the "
                    f"position of the second to {end} or more."
                )
        return {"tokens": tokens.repeat(num, 1), "given": given.repeat(num, 1)}

    @torch.no_grad()
    def sample(
        self,
        network: nn.Module,
        conditions: Conditions,
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
        noise: Tensor | None = None,
    ) -> Samples:
        """Draw tokens (num, L) int64. Frames begin with uniform tokens around the prompts, then
        there is one a step.

        Every sample has its own generator, seeded from `generator`, for its noise and one draw a
        token and step. `noise` (num, L) int64, tokens in place of the uniform ones, stands around
        the prompts. `fields` hold at most eight frames of the first sample, evenly spaced over all
        steps: `frames` (F, L), the sigma of the active tokens `noise` (F,), and the number of
        active and finished tokens `written` (F,).
        """
        device = next(network.parameters()).device
        draws = SampleDraws(num, generator, device)
        x = (draws.uniform((num, self._length), torch.float64) * self._model.vocabulary).long()
        if noise is not None:
            x = starting_tokens(noise, x, self._model.vocabulary)
        conditions = {name: values.to(device) for name, values in conditions.items()}
        tokens = conditions.get("tokens", x)
        given = conditions.get("given", torch.zeros_like(x, dtype=torch.bool))
        x = torch.where(given, tokens, x)
        size = self._length if self._spec.block is None else self._model.block_size
        assert size is not None, "a model without blocks is not sampled block by block"
        is_drawn = [
            self._spec.block is None or not bool(part.all()) for part in given.split(size, dim=1)
        ]
        shown_steps = evenly_spaced(len(self._steps) * sum(is_drawn), NUM_FRAMES)
        frames = [x]
        shown = [(x[0].clone(), self._steps[0].sigma, self._length)]
        step_number = 0
        context = FinishedTokens(
            network, self._model.depth, self._spec.block, self._sigma_min, self._length
        )
        for first, drawn in zip(range(0, self._length, size), is_drawn, strict=True):
            end = first + size
            steps = self._steps if drawn else ()
            for step in steps:
                block = x[:, first:end]
                fixed = given[:, first:end]
                uniform = draws.uniform(block.shape, torch.float64)
                output = context.output(x, first, end, step.sigma)
                block = tokens[:, first:end].where(
                    fixed, draw_tokens(step.probabilities, output, block, uniform)
                )
                del output  # (B, T, V): nothing holds it when the next one is computed
                x = torch.cat((x[:, :first], block, x[:, end:]), dim=1)
                step_number += 1
                if trajectory:
                    frames.append(x)
                # on its device: a copy to the host would wait for it
                if step_number in shown_steps:
                    shown.append((x[0].clone(), step.sigma_after, end))
            context.finish(x, first, end)
        of_first, sigmas, written = zip(*shown, strict=True)
        noise_levels = torch.tensor(sigmas, dtype=torch.float64)
        fields = {
            "frames": torch.stack(of_first).cpu(),
            "noise": noise_levels,
            "written": torch.tensor(written),
        }
        return Samples(x, conditions, torch.stack(frames) if trajectory else None, fields)

    def show(self, samples: Samples) -> Figure:
        """Show the samples as text (token ids without a tokeniser), and the frames of the first
        one, cut where they are long."""

        def read(tokens: Tensor) -> str:
            ids = tokens.tolist()
            if self._text is None:
                return " ".join(map(str, ids))
            return self._text.decode(ids)

        panels = [Text([read(tokens) for tokens in samples.values], title="Samples")]
        if samples.fields:
            passages = []
            for tokens, noise, written in zip(
                *(samples.fields[key] for key in FRAME_FIELDS), strict=True
            ):
                passage = read(tokens[: int(written)])
                if len(passage) > EXCERPT and self._spec.block is not None:
                    passage = f"... {passage[-EXCERPT:]}"
                elif len(passage) > EXCERPT:
                    passage = f"{passage[:EXCERPT]} ..."
                passages.append(f"[sigma {float(noise):.3g}] {passage}")
            panels.append(Text(passages, title="How noise becomes the first sample"))
        return Figure(panels, columns=1)


def starting_tokens(noise: Tensor, like: Tensor, vocabulary: int) -> Tensor:
    """Return given tokens on the device of `like`. Raises ValueError for another shape, and for
    tokens that do not exist."""
    check_noise_shape(noise, like.shape)
    if noise.dtype != torch.int64 or not bool(((noise >= 0) & (noise < vocabulary)).all()):
        held = f"{noise.dtype}".removeprefix("torch.")
        raise ValueError(
            f"noise must hold tokens from 0 to {vocabulary - 1} as int64 "
            f"(model.vocabulary={vocabulary}), and holds {held} from {noise.min().item():g} to "
            f"{noise.max().item():g}; draw it with torch.randint."
        )
    return noise.to(like.device)
