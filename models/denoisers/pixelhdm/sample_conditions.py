"""Conditions of samples as tensors: texts, sizes, seeds, an image to start from.

Every tensor has a row for each sample, so that samples can be drawn in batches. Texts are held twice: as the network's
batch fields, and as bytes (`prompt`, `negative_prompt`) for people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from denoisers.contract import RealRows, SampleRequest
from denoisers.pixelhdm.model_spec import PixelHDMSpec
from denoisers.pixelhdm.text_encoder import caption_bytes

NEGATIVE = "negative_"
"""Prefix of the batch fields of the negative prompt."""
TEXT_FIELDS = {"learned": ("caption",), "frozen": ("text", "text_mask", "text_pooled")}
"""Batch fields of a text, by `model.text_encoder`."""
TOKENWISE = ("caption", "text", "text_mask")
"""Batch fields with an axis of tokens, behind that of samples. Its padding is 0."""


class TextConditions:
    """Conversion of texts to a model's conditions."""

    def __init__(self, model: PixelHDMSpec) -> None:
        self._model = model
        self.fields = TEXT_FIELDS[model.text_encoder]

    def encode(self, texts: Sequence[str], request: SampleRequest) -> dict[str, Tensor]:
        """Return the batch fields of texts, (number of texts, ...) each.

        Raises ValueError if a frozen encoder is needed and the request has none.
        """
        if self._model.text_encoder == "learned":
            return {"caption": caption_bytes(texts, self._model.text_length).tokens}
        if request.encode is None:
            raise ValueError(
                f"prompt={texts[0]!r} needs the frozen text encoder that the model was trained with, and none is "
                "named; set encoders.text to its folder or name."
            )
        encoded = request.encode(texts)
        return {name: encoded[name] for name in self.fields}

    def of_prompts(self, prompts: Sequence[str], which: Tensor, request: SampleRequest) -> dict[str, Tensor]:
        """Return the texts of samples: sample i shows prompt `which[i]`; `which` (num,)."""
        conditions = {name: values[which] for name, values in self.encode(prompts, request).items()}
        return conditions | {"prompt": to_bytes(prompts)[which]}

    def of_rows(self, rows: RealRows, num: int) -> dict[str, Tensor]:
        """Return the texts of the first `num` rows."""
        conditions = {name: rows.batch[name][:num] for name in self.fields}
        if "caption" in conditions:
            return conditions | {"prompt": conditions["caption"]}
        captions = rows.columns.get("caption")
        return conditions if captions is None else conditions | {"prompt": torch.from_numpy(captions[:num]).long()}

    def with_negative(self, conditions: Mapping[str, Tensor], text: str, request: SampleRequest) -> dict[str, Tensor]:
        """Add the batch fields of a negative prompt to conditions, both padded to the same number of tokens."""
        both = dict(conditions)
        for name, negative in self.encode([text], request).items():
            values = conditions[name]
            if name in TOKENWISE:
                length = max(values.shape[1], negative.shape[1])
                values, negative = _padded(values, length), _padded(negative, length)
            both |= {name: values, NEGATIVE + name: negative.to(values).expand_as(values)}
        return both | {"negative_prompt": to_bytes([text]).expand(len(values), -1)}


def to_bytes(texts: Sequence[str]) -> Tensor:
    """Encode whole texts as UTF-8: (number of texts, longest) int64, 0 behind the end."""
    return caption_bytes(texts, max(len(text.encode()) for text in texts)).tokens


def to_texts(tokens: Tensor) -> list[str]:
    """Decode the bytes of `to_bytes`."""
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in tokens.tolist()]


def seeds_from(first: int, index: Tensor) -> Tensor:
    """Seeds (num,) int64 of samples: `first` plus each one's index among its prompt's samples."""
    if not 0 <= first < 2**62:
        raise ValueError(f"seed={first} must lie between 0 and 2^62 - 1; name another.")
    return first + index


def start_image(request: SampleRequest, size: tuple[int, int], num: int) -> dict[str, Tensor]:
    """Return `start` (num, 3, height, width) and `strength` (num,) float64; {} if samples start from noise."""
    if not 0 < request.strength <= 1:
        raise ValueError(
            f"strength={request.strength:g} must lie above 0 and be at most 1: the share of the way from noise that "
            "is gone anew; name another, such as 0.6."
        )
    if request.start is None:
        if request.strength != 1:
            raise ValueError(f"strength={request.strength:g} needs an image to start from; name one, or leave it out.")
        return {}
    if tuple(request.start.shape) != (3, *size):
        raise ValueError(
            f"start has the shape {tuple(request.start.shape)}, and samples of size {size[0]}x{size[1]} start from "
            f"{(3, *size)}; resize the image, or name its size."
        )
    strength = torch.full((num,), request.strength, dtype=torch.float64)
    return {"start": request.start.expand(num, -1, -1, -1), "strength": strength}


def _padded(values: Tensor, length: int) -> Tensor:
    """Pad (num, tokens, ...) with zeros to `length` tokens."""
    return functional.pad(values, (*(0, 0) * (values.ndim - 2), 0, length - values.shape[1]))
