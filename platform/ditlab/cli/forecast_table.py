"""Table of the trials that a sweep would run, with their expected time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ditlab.cli.visible import shown_line
from ditlab.reports.formatting import describe_value, format_duration, short_names

if TYPE_CHECKING:
    from ditlab.spec.experiment import Experiment
    from ditlab.sweeps.forecast import Forecast
    from ditlab.sweeps.prepare import PreparedSweep

_HEADS = ("workers", "parameters", "steps", "time")
_GAP = 2  # columns between two of the table's
Row = Mapping[str, str]


def forecast_table(prepared: PreparedSweep, expected: Forecast, width: int = 80) -> RenderableType:
    """Trials, a row each; one row in all for a search that proposes trials as it goes.

    What is the same for all stands above the table. Where a word or a number would have to be broken, the trials are
    paragraphs instead of rows.
    """
    rows = [{key: shown_line(text) for key, text in row.items()} for row in _rows(prepared, expected)]
    same = {name: text for name, text in rows[0].items() if all(row[name] == text for row in rows[1:])}
    if len(rows) == 1:
        same = {}
    names = [name for name in rows[0] if name not in same]
    lines = _wrapped([f"all {len(rows)} trials:", *_listed(same)], width) if same else []
    longest = {name: max(_longest_word(text) for text in (name, *(row[name] for row in rows))) for name in names}
    if sum(longest.values()) + _GAP * (len(names) - 1) > width:
        for row in rows:
            lines += _wrapped([f"trial {row['trial']}:", *_listed({name: row[name] for name in names[1:]})], width)
        return Text("\n".join(lines))
    return Group(*([Text("\n".join(lines))] if lines else []), _table(names, rows, longest))


def _table(names: Sequence[str], rows: Iterable[Row], longest: Mapping[str, int]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        is_axis = name not in ("trial", *_HEADS)
        table.add_column(name, justify="left" if is_axis else "right", min_width=longest[name], no_wrap=not is_axis)
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _rows(prepared: PreparedSweep, expected: Forecast) -> list[Row]:
    """Texts by heading, of each trial."""
    paths = list(prepared.sweep.space)
    names = short_names(paths, ("trial", *_HEADS))
    if not prepared.trials:
        axes = {names[path]: axis.kind for path, axis in prepared.sweep.space.items()}
        seconds = expected.seconds.get(0)
        return [{"trial": f"{prepared.num_trials} of", **axes, **_facts(prepared.base, prepared, None,
                 prepared.total_steps, seconds)}]  # fmt: skip
    return [
        {
            "trial": str(trial.number),
            **{names[path]: describe_value(trial.values[path]) if path in trial.values else "" for path in paths},
            **_facts(trial.experiment, prepared, trial.num_parameters, trial.total_steps,
                     expected.seconds.get(trial.number)),
        }
        for trial in prepared.trials
    ]  # fmt: skip


def _facts(
    experiment: Experiment, prepared: PreparedSweep, parameters: int | None, steps: int, seconds: float | None
) -> Row:
    """Texts under the headings that follow the axes."""
    gpus = experiment.resources.gpus_per_worker
    each = f"{gpus:g} GPU" if gpus else f"{prepared.concurrency.share.threads} CPU"
    return {
        "workers": f"{experiment.resources.max_workers} x {each}",
        "parameters": "" if parameters is None else f"{parameters:,}",
        "steps": f"{steps:,}",
        "time": "?" if seconds is None else format_duration(seconds),
    }


def _listed(texts: Row) -> list[str]:
    """`lr 0.001,` and so on, without what is empty."""
    found = [f"{name} {text}" for name, text in texts.items() if text]
    return [f"{each}," for each in found[:-1]] + found[-1:]


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Lines of at most `width` columns, broken between parts, or between words of a part longer than a line."""
    lines = [""]
    for part in parts:
        words = [part] if cell_len(part) + 2 <= width else part.split()
        for word in words:
            if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > width:
                lines.append(f"  {word}")
            else:
                lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)
