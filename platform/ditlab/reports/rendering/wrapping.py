"""Wrapping of titles by their rendered width."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import takewhile

from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties

_GAPS = re.compile(r"(?<!=)\s+(?!=)")
"""Spaces at which a line may end: not those of `t = 0.5`."""


@lru_cache(maxsize=1024)  # a panel's title counts for its size and is drawn, and a run's figures repeat their titles
def wrap(text: str, width: float, points: float, dpi: int, weight: str = "normal") -> str:
    """Wrap `text` to lines of at most `width` inches, at spaces, and inside words that are too wide by themselves."""
    renderer = RendererAgg(1, 1, dpi)
    font = FontProperties(size=points, weight=weight)

    def fits(line: str) -> bool:
        # Hinting rounds every glyph to whole pixels, so only the renderer gives the true width.
        pixels, _, _ = renderer.get_text_width_height_descent(line, font, False)
        return bool(pixels <= width * dpi)

    return "\n".join(line for paragraph in text.splitlines() for line in _lines(paragraph, fits))


def _lines(paragraph: str, fits: Callable[[str], bool]) -> Iterator[str]:
    words = _GAPS.split(paragraph.strip())
    if fits(" ".join(words)):  # one measurement, which most titles need
        yield " ".join(words)
        return
    line = ""
    for word in words:
        if fits(f"{line} {word}".strip()):
            line = f"{line} {word}".strip()
            continue
        if line:
            yield line
        while len(word) > 1 and not fits(word):
            length = max(1, sum(1 for _ in takewhile(lambda n: fits(word[:n]), range(1, len(word)))))  # noqa: B023
            yield word[:length]
            word = word[length:]
        line = word
    yield line
