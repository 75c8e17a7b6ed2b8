"""Tokens as short texts for the cells of figures."""

from __future__ import annotations

from denoisers.contract import TextCodec

SPACE, NEWLINE = "␣", "↵"


def token_text(token: int, text: TextCodec | None) -> str:
    """Return a token's text with visible blanks, or its number where there is no tokeniser."""
    if text is None:
        return str(token)
    shown = text.decode([token])
    return shown.replace("\n", NEWLINE).replace("\t", "→").replace(" ", SPACE) or "·"
