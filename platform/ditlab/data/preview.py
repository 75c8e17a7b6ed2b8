"""Rows of a view as text: caption or tokens, class, chromosome."""

from __future__ import annotations

import numpy as np

from ditlab.data.images.captions import decode_captions
from ditlab.data.stores.row_changes import CAPTION
from ditlab.data.stores.view import View
from ditlab_models.contract import TextCodec

LONGEST_TEXT = 60
"""Characters of a row's text that are shown."""


def row_texts(view: View, indices: np.ndarray, text: TextCodec | None) -> list[str]:
    """Return a line about each row: its text or caption, its class, its chromosome; empty where it has none."""
    if not len(indices):
        return []
    parts: list[list[str]] = []
    if text is not None and "tokens" in view.columns:
        tokens = view.padded("tokens", indices).tolist()
        parts.append([repr(text.decode(ids)[:LONGEST_TEXT]) for ids in tokens])
    elif CAPTION in view.columns:
        captions = decode_captions(view.padded(CAPTION, indices).numpy())
        parts.append([repr(caption[:LONGEST_TEXT]) for caption in captions])
    for name, column in view.columns.items():
        if not column.shape:
            names = column.names if column.num_classes else ()
            values = view.padded(name, indices).tolist()
            parts.append([f"{name} {names[int(value)] if names else value}" for value in values])
    return [", ".join(line) for line in zip(*parts, strict=True)] or [""] * len(indices)
