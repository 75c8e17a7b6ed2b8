"""How a number or a text of a report is written: by people's eyes, and escaped for Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

Cell = str | int | float | None

_DIGITS = 4
"""Significant digits."""
_LONGEST = 1e7
"""Numbers from here on are written with an exponent, unless they are integers by type."""

_MARKDOWN = re.compile(r"[\\`*\[\]~|$]|(?<![^\W_])_|_(?![^\W_])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_BLOCK = re.compile(r"^([#+-])(?=[#\s-]|$)|^(\d+)([.)])(?=\s|$)")
"""What would begin a heading, a list or a rule."""


def cell(value: Cell) -> str:
    """`value` as a cell's text: 4 significant digits, thousands separators, `nan`, nothing for None."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Integral):
        return f"{int(value):,}"
    return number(float(value))


def number(value: float) -> str:
    """`value` with 4 significant digits, and those before the point: `0.01234`, `12,345`, `1.2e-5`, `600`, `nan`."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    mantissa, _, power = f"{value:.{_DIGITS - 1}e}".partition("e")
    exponent = int(power)
    if exponent < -4 or abs(value) >= _LONGEST:
        return f"{_trimmed(mantissa)}e{exponent}"
    return _trimmed(f"{value:,.{max(0, _DIGITS - 1 - exponent)}f}")


def _trimmed(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def is_numeric(values: Iterable[Cell]) -> bool:
    """Whether all of `values` that are not None are numbers, and there are any."""
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, Real) and not isinstance(value, bool) for value in present)


def markdown_text(text: str) -> str:
    """`text` in one line that Markdown shows as it is, in a paragraph, a heading or a table's cell."""
    line = " ".join(text.split())
    line = _MARKDOWN.sub(lambda match: "\\" + match[0], line)
    line = re.sub("[&<>]", lambda match: _ENTITIES[match[0]], line)
    return _BLOCK.sub(lambda match: f"\\{match[1]}" if match[1] else f"{match[2]}\\{match[3]}", line)


def markdown_fence(text: str) -> str:
    """A code fence that is longer than any run of backticks in `text`."""
    return "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))


def value_text(value: Any) -> str:
    """What an axis was set to, in one line: a number, a word, or a mapping as `kind (key value, ...)`."""
    if isinstance(value, Mapping):
        rest = ", ".join(f"{key} {value_text(inner)}" for key, inner in value.items() if key != "kind")
        return f"{value['kind']} ({rest})".replace(" ()", "") if "kind" in value else f"{{{rest}}}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(value_text(inner) for inner in value) + "]"
    if value is None:
        return "null"
    return cell(value) if isinstance(value, (str, int, float)) else str(value)


def short_names(paths: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """By dotted path, as much of its end as tells it from the others, and from what is taken."""
    paths, used = list(paths), set(taken)
    names = {}
    for path in paths:
        parts = path.split(".")
        ends = [".".join(parts[-length:]) for length in range(1, len(parts) + 1)]
        alone = (
            end for end in ends
            if end not in used and not any(other != path and f".{other}".endswith(f".{end}") for other in paths)
        )  # fmt: skip
        names[path] = next(alone, path)
    return names


def duration(seconds: float) -> str:
    """`seconds` in two units: `42 s`, `3 min 20 s`, `1 h 5 min`, `2 d 3 h`."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = round(seconds)
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {name}" if rest else f"{whole // size} {unit}"
    return f"{whole} s" if seconds >= 1 or not seconds else f"{seconds:.2f} s"


def shorten(text: str, characters: int) -> str:
    """`text` in at most `characters`, what lies in its middle left out."""
    if len(text) <= characters:
        return text
    tail = (characters - 3) // 3
    return f"{text[: characters - 3 - tail].rstrip()}...{text[len(text) - tail :].lstrip()}"
