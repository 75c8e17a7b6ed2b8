"""Features of captions: the last hidden states of a frozen causal language model (Qwen3,
arXiv:2505.09388).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ditlab.encoders.cache import FeatureCache, batch_slices
from ditlab.encoders.checkpoint import EncoderCheckpoint
from ditlab.errors import UserError

CAPTIONS_AT_A_TIME = 64
"""Captions in one pass on a GPU."""


class FrozenTextEncoder:
    """Frozen causal language model without its head, and its tokeniser."""

    def __init__(
        self,
        place: str,
        width: int | None,
        length: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        cache: int = 0,
        compile: bool = False,
        option: str = "encoders.text",
        downloads: Path | None = None,
    ) -> None:
        """Open the encoder at a folder, or of a name on the Hugging Face hub, of `width` features a
        token (None: any).

        Captions are cut to `length` tokens. The features of `cache` captions are kept. `option` is
        the setting that holds `place`. Raises UserError as `check` does.
        """
        checkpoint, self._tokenizer = self.check(place, width, option, downloads)
        self.network = checkpoint.network(dtype, device)
        if compile:
            self.network.compile(dynamic=True)  # captions have any length
        config: Any = self.network.config
        self.width: int = config.hidden_size
        """Features of a token."""
        self.length = length
        """Most tokens of a caption."""
        self.num_truncated = 0
        """Captions cut to `length` tokens so far."""
        self._cache = FeatureCache(cache)

    @staticmethod
    def check(
        place: str, width: int | None, option: str = "encoders.text", downloads: Path | None = None
    ) -> tuple[EncoderCheckpoint, Any]:
        """Return the checkpoint, without its weights, and its tokeniser. Raises UserError for one
        that does not fit.
        """
        checkpoint = EncoderCheckpoint.find(place, option, ("weights", "tokenizer"), downloads)
        size = getattr(checkpoint.config(), "hidden_size", None)
        if size is None:
            raise UserError(
                f"{checkpoint.name} is no language model: its config.json has no hidden_size; "
                "name one."
            )
        if width is not None and size != width:
            raise UserError(
                f"{checkpoint.name} gives {size} features a token, but model.width={width}; "
                f"set model.width to {size}, or name an encoder of that hidden size."
            )
        tokenizer = checkpoint.tokenizer()
        if tokenizer.padding_side != "right" or tokenizer.pad_token_id is None:
            raise UserError(
                f"{checkpoint.name} has a tokeniser that pads on the {tokenizer.padding_side} "
                f"with the token {tokenizer.pad_token}, and a caption is padded behind its "
                "end; set padding_side to right and a pad_token in its tokenizer_config.json."
            )
        return checkpoint, tokenizer

    def encode(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Encode captions, in the network's type, on its device.

        `text` (num, T, width), the last hidden state of each token, T the longest caption's tokens,
        zero behind a shorter one's; `text_mask` (num, T) bool, true for tokens; `text_pooled` (num,
        width), the last token's.
        """
        rows = self._cache.rows(
            texts, lambda places: self._features([texts[place] for place in places])
        )
        text = pad_sequence(rows, batch_first=True).to(self._device)  # (num, T, width)
        lengths = torch.tensor([len(row) for row in rows], device=self._device)
        mask = torch.arange(text.shape[1], device=self._device) < lengths[:, None]
        return {"text": text, "text_mask": mask, "text_pooled": last_token(text, mask)}

    def num_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each caption, at most `length`."""
        return [min(len(ids), self.length) for ids in self._ids(texts)]

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text; for one without any, the padding token, so that there is
        one to attend to.
        """
        # verbose=False: `num_truncated` counts the texts that are too long
        ids: list[list[int]] = self._tokenizer(list(texts), truncation=False, verbose=False)[
            "input_ids"
        ]
        return [each or [self._tokenizer.pad_token_id] for each in ids]

    @torch.no_grad()  # not inference_mode, whose tensors no backward pass may keep
    def _features(self, texts: Sequence[str]) -> list[Tensor]:
        """Return (tokens, width) of each text."""
        ids = self._ids(texts)
        self.num_truncated += sum(len(each) > self.length for each in ids)
        ids = [each[: self.length] for each in ids]
        rows: dict[int, Tensor] = {}
        by_length = sorted(range(len(ids)), key=lambda place: len(ids[place]))  # the least padding
        for part in batch_slices(len(ids), self._device, CAPTIONS_AT_A_TIME):
            places = by_length[part]
            padded = self._tokenizer.pad(
                {"input_ids": [ids[place] for place in places]}, return_tensors="pt"
            )
            states = self.network(**padded.to(self._device), use_cache=False).last_hidden_state
            rows.update(
                (place, states[number, : len(ids[place])]) for number, place in enumerate(places)
            )
        return [rows[place] for place in range(len(ids))]


def last_token(states: Tensor, mask: Tensor) -> Tensor:
    """Return the state of each row's last token, at mask sum - 1: (num, T, width), (num, T) ->
    (num, width).
    """
    return states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]
