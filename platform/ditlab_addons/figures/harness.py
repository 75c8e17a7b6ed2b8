"""A run's language model for lm-evaluation-harness (Gao et al. 2024, doi:10.5281/zenodo.12608602):
`LM` of three kinds of requests.

A discrete diffusion model has no exact likelihood. What is returned for a continuation is a lower
bound on its log likelihood under the process that the sampler uses with prompts: the context stands
clean and the continuation's tokens alone are noised, so that the variational bound of
`ditlab_models.dlm.objective`, summed over these tokens, is one of theirs given the context.
Training noised all tokens alike, so a bound given a clean context may be loose. It is a mean over
keyed draws of noise (`errors` holds their standard errors); the options of one question share times
and context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ditlab.analysis.opened_run import SavedRun, default_device, open_found
from ditlab.api.run import Run, open_run
from ditlab.errors import UserError
from ditlab.inputs.noise import RowNoise, derived_seed
from ditlab.tracking.records import find_training_run
from ditlab_models.processes.score_entropy import LossTargets, TokenLosses

MAX_NEW_TOKENS = 256
"""Tokens of a generated text where a task names no number."""


@dataclass(frozen=True)
class ClampedNoise(RowNoise):
    """Random numbers of rows, of which tokens outside `scored` (T,) bool are never moved."""

    scored: Tensor

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw U[0, 1), and 1 for the moves of tokens that stay."""
        drawn = super().uniform(name, shape)
        if name.startswith("move"):
            return drawn.masked_fill(~self.scored, 1.0)
        return drawn


class BoundedTexts:
    """Answers of a run to the harness' requests."""

    def __init__(self, saved: SavedRun, draws: int, seed: int = 0) -> None:
        """Open the run's weights. Raises UserError for a run that writes no text, or has no bound
        for continuations.
        """
        spec = saved.experiment
        text = saved.text()
        run_id = saved.folder.run_id
        model: Any = spec.model
        if text is None or not model.masks_documents:
            raise UserError(
                f"run {run_id} (model.family={spec.model.family}) has no tokeniser, so it "
                "reads no tasks of text; name a run that was trained on text."
            )
        if model.block_size is not None or getattr(spec.objective, "score", "log") != "log":
            raise UserError(
                f"run {run_id} has model.block_size={model.block_size} and "
                f"objective.score={getattr(spec.objective, 'score', '')}, for which no bound "
                "of a continuation is computed; name a run with model.block_size=null and "
                "objective.score=log."
            )
        self._device = default_device()
        self._spec = spec
        self._text = text
        self._seed = seed
        self._network = saved.network(self._device)
        self._objective = saved.objective(self._device, text)
        self.length: int = model.length
        """Tokens of the longest window, context included."""
        self.draws = draws
        self.errors: list[float] = []
        """Standard errors over draws, in nats, of the answers of the last call; NaN with one
        draw.
        """

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return a lower bound on each continuation's log likelihood in nats, and False: none is
        decoded greedily.
        """
        return [
            (each, False)
            for each in self._bounds([self._pair(*request.args) for request in requests])
        ]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return a lower bound on the log likelihood of each whole text, in nats, window by
        window.
        """
        return self._bounds(
            [([self._text.end], self._text.encode(request.args[0])) for request in requests]
        )

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Draw one text behind each context under the run's `sampling`, up to the first of the
        stops `until`.

        Of the arguments of generation `until` and `max_gen_toks` are used; temperature and solver
        are the run's.
        """
        return [self._generated(*request.args) for request in requests]

    def _bounds(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        found = []
        self.errors = []
        for context, continuation in pairs:
            draws = [self._nats(*window) for window in self._windows(context, continuation)]
            nats = torch.stack(draws).sum(0) if draws else torch.zeros(self.draws)
            found.append(-float(nats.mean()))
            error = math.nan
            if self.draws > 1:
                error = float(nats.std()) / math.sqrt(self.draws)
            self.errors.append(error)
        return found

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the tokens of both, cut where the context's own end; blanks at its end belong to
        the continuation.
        """
        before = self._text.encode(context.rstrip())
        whole = self._text.encode(context + continuation)
        return [self._text.end, *before], whole[len(before) :]

    def _windows(
        self, context: list[int], continuation: list[int]
    ) -> Iterator[tuple[list[int], list[int]]]:
        """Cut a continuation into windows of the model's length, each with as much before it as
        fits.
        """
        while continuation:
            part = continuation[: self.length - 1]
            continuation = continuation[self.length - 1 :]
            yield context[-(self.length - len(part)) :], part
            context = [*context, *part]

    @torch.no_grad()
    def _nats(self, context: list[int], continuation: list[int]) -> Tensor:
        """Compute the bound on the continuation's nats, (draws,) float64."""
        tokens = torch.tensor([*context, *continuation], device=self._device)
        scored = torch.arange(len(tokens), device=self._device) >= len(context)

        def of_scored(
            x: Tensor, sigma: Tensor, targets: LossTargets, documents: Tensor | None
        ) -> TokenLosses:
            losses: TokenLosses = self._network(x, sigma, targets, documents=documents)
            return losses._replace(per_token=losses.per_token * scored)

        seed = derived_seed("harness", self._seed, *context)
        noise = ClampedNoise(seed, "harness", 0, self._device, scored)
        batch = {"tokens": tokens.repeat(self.draws, 1)}
        integral = (
            self._objective.metrics(cast(nn.Module, of_scored), batch, noise)["score_entropy"]
            .double()
            .cpu()
        )
        return len(tokens) * integral + len(continuation) * self._objective.bound_constant

    def _generated(self, context: str, options: Mapping[str, Any]) -> str:
        until = options.get("until") or []
        room = min(int(options.get("max_gen_toks") or MAX_NEW_TOKENS), self.length - 1)
        given = [self._text.end, *self._text.encode(context)][-(self.length - room) :]
        spec = self._spec
        sampling = spec.sampling.model_copy(update={"length": len(given) + room})
        sampler: Any = spec.family.build_sampler(sampling, spec.model, spec.objective, self._text)
        tokens = torch.tensor([[*given, *[0] * room]])
        conditions = {"tokens": tokens, "given": torch.arange(tokens.shape[1])[None] < len(given)}
        generator = torch.Generator(self._device).manual_seed(
            derived_seed("harness", self._seed, "text", *given)
        )
        drawn = (
            sampler.sample(self._network, conditions, 1, generator).values[0, len(given) :].tolist()
        )
        if self._text.end in drawn:
            drawn = drawn[: drawn.index(self._text.end)]
        text = self._text.decode(drawn)
        stops = [until] if isinstance(until, str) else until
        for stop in stops:
            if stop:
                text = text.split(stop)[0]
        return text


def harness_model(
    run: str | Run, *, draws: int = 8, seed: int = 0, warn: Callable[[str], None] | None = None
) -> Any:
    """Open a run on text as a model of lm-evaluation-harness (`lm_eval.api.model.LM`).

    Log likelihoods are lower bounds, means over `draws` of noise that `seed` and the context key;
    `errors` of the model holds their standard errors. Raises UserError for a run that writes no
    text, and where lm_eval is not installed.
    """
    opened = run if isinstance(run, Run) else open_run(run, warn=warn)
    saved = open_found(find_training_run(opened.home, opened.id), opened.home, opened.warn).saved()
    try:
        from lm_eval.api.model import LM
    except ImportError as error:
        raise UserError(
            "tasks of lm-evaluation-harness need the library lm_eval, which is not installed; "
            "`pip install lm_eval` brings it."
        ) from error

    class HarnessModel(BoundedTexts, LM):
        """The run, with what the harness asks of every model."""

        def __init__(self) -> None:
            LM.__init__(self)
            BoundedTexts.__init__(self, saved, draws, seed)

    return HarnessModel()
