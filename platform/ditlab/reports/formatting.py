"""Formatting of numbers, durations and values for people, tables for terminals, and escaping for
Markdown.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Cell = str | int | float | None
Cells = list[Cell]
"""A row of a table."""

_DIGITS = 4
"""Significant digits."""
_LARGEST_PLAIN = 1e7
"""Floats of this size or more are written with an exponent; integers by type are not."""

_MARKDOWN = re.compile(r"[\\`*\[\]~|$]|(?<![^\W_])_|_(?![^\W_])")
_BLOCK = re.compile(r"^([#+-])(?=[#\s-]|$)|^(\d+)([.)])(?=\s|$)")
"""Characters that would begin a heading, a list or a rule."""


def format_cell(value: Cell) -> str:
    """Format a table cell: 4 significant digits, thousands separators, `nan`, empty for None."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Integral):
        return f"{int(value):,}"
    return format_number(float(value))


def format_number(value: float) -> str:
    """Format with 4 significant digits, and all before the point: `0.01234`, `12,345`, `1.2e-5`,
    `600`, `nan`.
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value)
    mantissa, _, power = f"{value:.{_DIGITS - 1}e}".partition("e")
    exponent = int(power)
    if exponent < -4 or abs(value) >= _LARGEST_PLAIN:
        return f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"
    digits = f"{value:,.{max(0, _DIGITS - 1 - exponent)}f}"
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return digits


def is_numeric(values: Iterable[Cell]) -> bool:
    """Return True if there are values other than None, and all of these are numbers."""
    present = [value for value in values if value is not None]
    return bool(present) and all(
        isinstance(value, Real) and not isinstance(value, bool) for value in present
    )


def escape_markdown(text: str) -> str:
    """Escape `text` to one line that Markdown shows unchanged in a paragraph, a heading or a table
    cell.
    """
    line = _MARKDOWN.sub(lambda match: "\\" + match[0], " ".join(text.split()))
    return _BLOCK.sub(
        lambda match: f"\\{match[1]}" if match[1] else f"{match[2]}\\{match[3]}",
        html.escape(line, quote=False),
    )


def markdown_fence(text: str) -> str:
    """Make a code fence longer than any run of backticks in `text`."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(3, 1 + longest)


def describe_value(value: Any) -> str:
    """Describe a spec value in one line: a number, a word, or a mapping as `kind (key value,
    ...)`.
    """
    if isinstance(value, Mapping):
        rest = ", ".join(
            f"{key} {describe_value(inner)}" for key, inner in value.items() if key != "kind"
        )
        if "kind" in value:
            return f"{value['kind']} ({rest})".replace(" ()", "")
        return f"{{{rest}}}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe_value(inner) for inner in value) + "]"
    if value is None:
        return "null"
    if isinstance(value, (str, int, float)):
        return format_cell(value)
    return str(value)


def short_names(paths: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Shorten each dotted path to the shortest end that differs from all other paths and from
    `taken`.
    """
    paths = list(paths)
    used = set(taken)
    names = {}
    for path in paths:
        parts = path.split(".")
        ends = [".".join(parts[-length:]) for length in range(1, len(parts) + 1)]
        alone = (
            end
            for end in ends
            if end not in used
            and not any(other != path and f".{other}".endswith(f".{end}") for other in paths)
        )
        names[path] = next(alone, path)
    return names


def format_duration(seconds: float) -> str:
    """Format in two units: `42 s`, `3 min 20 s`, `1 h 5 min`, `2 d 3 h`."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = round(seconds)
    for size, unit, smaller, name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            if rest:
                return f"{whole // size} {unit} {rest} {name}"
            return f"{whole // size} {unit}"
    if seconds >= 1 or not seconds:
        return f"{whole} s"
    return f"{seconds:.2f} s"


def format_clock(seconds: float) -> str:
    """Seconds as `0:35`, `2:05:09` or `73:00:00`: hours go on past a day."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"


def shorten(text: str, characters: int) -> str:
    """Shorten `text` to at most `characters`; its middle is dropped."""
    if len(text) <= characters:
        return text
    tail = (characters - 3) // 3
    return f"{text[: characters - 3 - tail].rstrip()}...{text[len(text) - tail :].lstrip()}"


def listed(items: Sequence[object], most: int) -> str:
    """Join with commas, the first `most` items and `...` in the place of the others: `1, 2, 3,
    ...`.
    """
    return ", ".join(map(str, items[:most])) + (", ..." if len(items) > most else "")


def terminal_table(
    columns: Mapping[str, str],
    rows: Iterable[Sequence[RenderableType | None]] = (),
    title: str | None = None,
    caption: str | None = None,
    optional: Sequence[str] = (),
) -> Table:
    """Make a table without lines for a terminal; `columns` are kinds by heading: `text`, `id`,
    `number`.

    Ids and numbers are kept in one line, numbers to the right; a text is wrapped between its words.
    A narrow terminal gets the table without the columns of `optional`, the first of them first.
    Title and caption may be wider than the rows, and are wrapped where the terminal ends.
    """
    from rich.text import Text

    from ditlab.reports.whole_table import WholeTable

    def heading_text(text: str | None, style: str) -> Text | None:
        if text is None:
            return None
        return Text(text, style, overflow="fold")

    table = WholeTable(
        title=heading_text(title, "table.title"),
        caption=heading_text(caption, "table.caption"),
        title_justify="left",
        caption_justify="left",
        box=None,
        header_style="bold",
        pad_edge=False,
    )
    table.optional = optional
    for heading, kind in columns.items():
        justify: Literal["left", "right"] = "right" if kind == "number" else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=kind != "text")
    for row in rows:
        table.add_row(*row)
    return table


def facts_table(facts: Mapping[str, str], title: str | None = None) -> Table:
    """Make a table of two columns without a head for a terminal: names and texts; empty texts are
    skipped.
    """
    table = terminal_table(
        {"": "id", " ": "text"}, [fact for fact in facts.items() if fact[1]], title
    )
    table.show_header = False
    table.columns[0].style = "dim"
    return table
