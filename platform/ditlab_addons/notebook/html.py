"""Plain HTML that notebooks show: every text escaped, no script, no outside address, colours of the
page around it.
"""

from __future__ import annotations

import base64
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from markupsafe import Markup

from ditlab.secrets import hide
from ditlab.spec.values import printable

LONGEST = 300
"""Characters of a text in a table."""

# Notebooks are light or dark: texts inherit their colour, lines are half transparent, and colour
# never stands alone.
_ROW = "background:none;border-bottom:1px solid rgba(128,128,128,.35)"
# notebooks align cells to the right
_CELL = "text-align:left;vertical-align:top;padding:2px 9px 2px 0"
_NUMBER = (
    "text-align:right;vertical-align:top;padding:2px 9px 2px 0;font-variant-numeric:tabular-nums"
)
_DOTS = {
    "finished": "#2e9e5b",
    "running": "#3b82f6",
    "failed": "#dc4c45",
    "interrupted": "#d08700",
    "stopped": "#d08700",
}


def shown(text: object, longest: int = LONGEST) -> Markup:
    """Escape a text, without secrets, cut to `longest` characters; what is not printed is written
    as an escape.
    """
    written = hide(str(text))  # before the cut, or a part of a secret would stay
    rest = len(written) - longest
    start = written[:longest]
    escaped = Markup.escape("\n".join(map(printable, start.split("\n"))))
    if rest > 0:
        return escaped + Markup(" ... <i>({:,} more characters)</i>").format(rest)
    return escaped


def card(title: str, about: str, parts: Iterable[Markup]) -> Markup:
    """A heading with a line of text, and parts below it."""
    head = Markup("<p style='margin:.2em 0 .6em'><b>{}</b>: {}</p>").format(
        shown(title, 120), as_markup(about)
    )
    body = Markup("").join((head, *parts))
    style = "max-width:100%;overflow-x:auto;overflow-wrap:anywhere;line-height:1.45"
    return Markup("<div style='{}'>{}</div>").format(style, body)


def status(word: str) -> Markup:
    """A status with a coloured dot before it."""
    dot = _DOTS.get(word, "#8a8a8a")
    return Markup("<span aria-hidden='true' style='color:{}'>&#9679;</span> {}").format(
        dot, shown(word, 40)
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """A table; texts are escaped and cut, markup stays as it is, numbers are aligned to the
    right.
    """
    heading = Markup("<th scope='col' style='{};font-weight:600'>{}</th>")
    head = Markup("").join(heading.format(_CELL, shown(name)) for name in columns)
    line = Markup("<tr style='{}'>{}</tr>")
    body = Markup("").join(line.format(_ROW, Markup("").join(map(_cell, row))) for row in rows)
    return Markup(
        "<table style='border-collapse:collapse;margin:.2em 0 .6em;table-layout:auto'>"
        "<thead><tr style='{}'>{}</tr></thead><tbody>{}</tbody></table>"
    ).format(_ROW, head, body)


def paragraph(text: object) -> Markup:
    """A paragraph of a text, or of markup."""
    return Markup("<p style='margin:.4em 0'>{}</p>").format(as_markup(text))


def fold_spec(body: Markup) -> Markup:
    """Markup that is shown on a click on the word `spec`."""
    return Markup(
        "<details style='margin:.4em 0'><summary style='cursor:pointer'>spec</summary>"
        "<div style='margin:.3em 0 .3em 1.2em'>{}</div></details>"
    ).format(body)


def code(text: str) -> Markup:
    """Lines of code or of text, as they are written."""
    style = (
        "margin:.3em 0;white-space:pre-wrap;overflow-wrap:anywhere;max-width:60em;background:none"
    )
    return Markup("<pre style='{}'>{}</pre>").format(style, shown(text, 4000))


def picture(png: bytes, alternative: str) -> Markup:
    """A PNG inside the page, with an alternative text."""
    return Markup("<img src='data:image/png;base64,{}' alt='{}' style='max-width:100%'>").format(
        base64.b64encode(png).decode(), shown(alternative)
    )


class NotebookBar:
    """A bar and a line of text below a notebook's cell, renewed in place."""

    INTERVAL = 0.25
    """Least seconds between two versions, as each is sent to the browser."""

    def __init__(self, display: Callable[..., Any]) -> None:
        """Show by `display`, IPython's."""
        self._display = display
        self._shown_at = -math.inf
        self._latest = ("", 0, 0)
        self._handle: Any = None

    def stage(self, name: str) -> None:
        """Show what is waited for."""
        self._show(f"{name} ...", 0, 0)

    def update(self, progress: Any) -> None:
        """Show a training's progress (`TrainingProgress`)."""
        is_over = progress.step == progress.total_steps
        self._show(
            progress.describe(),
            progress.step,
            progress.total_steps,
            is_over or progress.phase != "training",
        )

    def close(self) -> None:
        """Show the latest version."""
        if self._latest[0]:
            self._show(*self._latest)

    def _show(self, text: str, done: int, total: int, at_once: bool = True) -> None:
        self._latest = text, done, total
        if not at_once and time.monotonic() - self._shown_at < self.INTERVAL:
            return
        self._shown_at = time.monotonic()
        bar = Markup("")
        if total:
            bar = Markup("<progress value='{}' max='{}' style='width:14em'></progress> ")
        page = {
            "text/html": paragraph(bar.format(done, total) + shown(text)),
            "text/plain": hide(text),
        }
        if self._handle is None:
            self._handle = self._display(page, raw=True, display_id=True)
        else:
            self._handle.update(page, raw=True)


def notebook_bar() -> NotebookBar | None:
    """Return a bar below the current cell; None outside of a notebook (a terminal's IPython has
    none).
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return NotebookBar(display)


def as_markup(value: object) -> Markup:
    """Markup as it is, anything else as `shown` writes it."""
    return value if isinstance(value, Markup) else shown(value)


def _cell(value: object) -> Markup:
    style = _CELL
    text = value
    if isinstance(value, int | float) and not isinstance(value, bool):  # a truth value is a word
        style = _NUMBER
        text = f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
    return Markup("<td style='{}'>{}</td>").format(style, "" if text is None else as_markup(text))
