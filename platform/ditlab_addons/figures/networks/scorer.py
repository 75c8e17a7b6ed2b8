"""Log likelihood of drawn text under a frozen causal language model, for generative perplexity.

Sequences of text are decoded and encoded again with the scorer's own tokeniser, as Lou et al. 2024
(arXiv:2310.16834, section 5) and Sahoo et al. 2024 (arXiv:2406.07524) do; where a document ends,
the scorer's own end token stands. Tokens without a tokeniser are given to the scorer as they are. A
window's first token is not scored: nothing is before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from ditlab.data.splits import DataSplits
from ditlab.encoders.checkpoint import FETCHED, EncoderCheckpoint
from ditlab.errors import UserError
from ditlab.home import Home, resolve_user_path
from ditlab.quality.figures import ComparedSamples, QualityFigures
from ditlab.quality.text import GROUP, draws_text
from ditlab.spec.encoders import Scorer
from ditlab.spec.experiment import Experiment
from ditlab.weights.files import WeightFiles
from ditlab_models.contract import TextCodec
from ditlab_models.intervals import DF, Estimate, ratio_estimate

OPTION = "evaluation.scorer.model"
PERPLEXITY = f"{GROUP}generative_perplexity"
"""Perplexity of drawn text under a scorer."""
LOGITS_AT_ONCE = 2**27
"""Logits of one pass: 512 MiB in float32, two windows of 1024 tokens out of GPT-2's 50,257."""
CONTEXT = 1024
"""Tokens of a window of a scorer whose configuration names no longest sequence."""


class CausalScorer(QualityFigures):
    """Perplexity of drawn text under a scorer, and of held-out rows; its weights are opened by
    `score` and freed after.

    Perplexity alone rewards text that repeats itself (Zheng et al. 2024, arXiv:2409.02908, section
    5): a family's entropy and distinct n-grams stand beside it always.
    """

    def __init__(self, spec: Scorer, text: TextCodec | None, vocabulary: int) -> None:
        """Take a scorer of sequences of `text`, or of bare tokens below `vocabulary` where there is
        no codec.
        """
        self._spec = spec
        self._text = text
        self._vocabulary = vocabulary
        self._of_real: dict[str, float] = {}

    @classmethod
    def of(cls, experiment: Experiment, data: DataSplits, home: Home | None) -> list[CausalScorer]:
        """Return the scorer of drawn text where one is named."""
        spec = experiment.evaluation.scorer
        if spec is None or not draws_text(experiment):
            return []
        model: Any = experiment.model
        return [cls(spec, data.text, model.vocabulary)]

    @cached_property
    def checkpoint(self) -> EncoderCheckpoint:
        """The scorer's folder. Raises UserError for one that is none or no whole checkpoint."""
        if not resolve_user_path(self._spec.model).is_dir():
            raise UserError(
                f"{OPTION}={self._spec.model} is no folder here, and no scorer is downloaded "
                "on the way; fetch it with `hf download NAME --local-dir FOLDER` and name that "
                "folder."
            )
        needed: tuple[Literal["weights", "tokenizer"], ...] = ("weights",)
        if self._text:
            needed = ("weights", "tokenizer")
        return EncoderCheckpoint.find(self._spec.model, OPTION, needed)

    @cached_property
    def config(self) -> Any:
        """The scorer's configuration."""
        return self.checkpoint.config()

    def check(self) -> None:
        """Raise UserError for a folder that is no checkpoint, files of another hash, and bare
        tokens that are not the scorer's own."""
        name = f"{OPTION}={self._spec.model}"
        size = getattr(self.config, "vocab_size", None)
        if self._text is None and size != self._vocabulary:
            raise UserError(
                f"{name} has a vocabulary of {size} tokens and the data one of "
                f"{self._vocabulary}, without a tokeniser that would turn them into text; "
                "import the data with a tokeniser, or name a scorer of these very tokens."
            )
        if self._spec.sha256 is not None and self._spec.sha256 != self.sha256:
            raise UserError(
                f"{name} has the SHA-256 {self.sha256}, and "
                f"evaluation.scorer.sha256={self._spec.sha256}; name the folder with these "
                "files, or correct the hash."
            )

    def names(self, has_captions: bool = False) -> tuple[str, ...]:
        """Return the names of the samples' perplexity, the ends of its 95 % interval, and held-out
        rows' perplexity.
        """
        of_samples = [f"{PERPLEXITY}{end}" for end in ("", "_low", "_high", DF)]
        return (*of_samples, f"{PERPLEXITY}_held_out")

    def measure(self, samples: ComparedSamples) -> dict[str, float]:
        """Return the perplexities; that of the same held-out rows is computed once. Raises
        UserError as `check`.
        """
        self.check()

        def perplexity(batches: Iterable[Tensor]) -> Estimate:
            nats, counts = self.score(
                torch.cat(list(batches)).numpy(), samples.device, samples.tick
            )
            if counts.sum():
                return ratio_estimate(nats, counts).exp()
            return Estimate(np.nan, np.nan, np.nan)

        found = perplexity(samples.values)
        key = samples.real_key
        if key not in self._of_real:
            self._of_real[key] = perplexity(samples.real()).value
        name, *_, of_real = self.names()
        return {**found.named(name), of_real: self._of_real[key]}

    def digest(self) -> str:
        """Return the hash of the scorer's files."""
        return self.sha256

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the lines that `sha256sum` prints of the configuration, tokeniser and weights,
        sorted by name.
        """
        paths = {path for pattern in FETCHED for path in self.checkpoint.folder.glob(pattern)}
        return WeightFiles(OPTION, tuple(paths)).sha256

    @torch.no_grad()
    def score(
        self, tokens: np.ndarray, device: torch.device, tick: Callable[[], None] = lambda: None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Score sequences of the data's tokens (num, T): return the negative log likelihood of each
        in nats, and its number of scored tokens, (num,) float64 each. Calls `tick` after each pass.
        """
        network = self.checkpoint.network(torch.float32, device, "AutoModelForCausalLM")
        nats = np.zeros(len(tokens))
        counts = np.zeros(len(tokens))
        for rows, windows in self._batches(tokens):
            ids = pad_sequence(windows, batch_first=True, padding_value=-1).to(device)  # (B, T)
            logits = network(input_ids=ids.clamp(min=0), use_cache=False).logits[:, :-1].float()
            # (B, T - 1)
            losses = cross_entropy(logits.mT, ids[:, 1:], ignore_index=-1, reduction="none")
            np.add.at(nats, rows, losses.double().sum(1).cpu().numpy())
            np.add.at(counts, rows, [len(each) - 1 for each in windows])
            tick()
        return nats, counts

    def _batches(self, tokens: np.ndarray) -> Iterator[tuple[list[int], list[Tensor]]]:
        """Yield rows and their windows of at least two tokens, those of about one length
        together.
        """
        tokenizer = self.checkpoint.tokenizer() if self._text else None
        context = getattr(self.config, "max_position_embeddings", None) or CONTEXT
        vocabulary = getattr(self.config, "vocab_size", None) or self._vocabulary
        windows = []
        for row, each in enumerate(tokens):
            ids = torch.tensor(self._ids(each, tokenizer), dtype=torch.int64)
            windows += [(row, part) for part in ids.split(context) if len(part) > 1]
        windows.sort(key=lambda each: len(each[1]))
        while windows:
            size = max(1, LOGITS_AT_ONCE // (len(windows[-1][1]) * vocabulary))
            rows, parts = zip(*windows[-size:], strict=True)
            del windows[-size:]
            yield list(rows), list(parts)

    def _ids(self, row: np.ndarray, tokenizer: Any) -> list[int]:
        """Return the scorer's tokens of a sequence."""
        if self._text is None:
            return list(row.tolist())
        found: list[int] = []
        for number, document in enumerate(np.split(row, np.flatnonzero(row == self._text.end))):
            if number and tokenizer.eos_token_id is not None:
                found.append(tokenizer.eos_token_id)
            text = self._text.decode(document[bool(number) :].tolist())
            if text:
                found += tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return found
