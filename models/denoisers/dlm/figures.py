"""Samples of text, for reading: `Samples` of the language model's sampler as panels."""

from __future__ import annotations

from torch import Tensor

from denoisers.contract import Samples, TextCodec
from denoisers.figures import Figure, Text

EXCERPT = 1200
"""Characters shown of a frame: twelve lines or so, so that eight frames fit a panel."""


def sample_figure(samples: Samples, text: TextCodec | None, in_blocks: bool) -> Figure:
    """All samples, and where there are `frames` (see `Frames.fields`) the first one's; token ids where text is None.

    Of a frame `in_blocks`, what is yet to come is left out; of a long one its end is shown, else its beginning.
    """
    panels = [Text([_read(tokens, text) for tokens in samples.values], title="Samples")]
    if "frames" in samples.fields:
        kept = zip(*(samples.fields[name] for name in ("frames", "noise", "written")), strict=True)
        passages = []
        for tokens, noise, written in kept:
            passage = _read(tokens[: int(written)], text)
            if len(passage) > EXCERPT:
                passage = f"... {passage[-EXCERPT:]}" if in_blocks else f"{passage[:EXCERPT]} ..."
            passages.append(f"[sigma {float(noise):.3g}] {passage}")
        panels.append(Text(passages, title="How noise becomes the first sample"))
    return Figure(panels, columns=1)


def _read(tokens: Tensor, text: TextCodec | None) -> str:
    ids = tokens.tolist()
    return " ".join(map(str, ids)) if text is None else text.decode(ids)
