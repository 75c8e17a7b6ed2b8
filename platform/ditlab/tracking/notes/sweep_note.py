"""Note of a sweep's parent run: the ranking of its trials, the best one's spec, figures, how to go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ditlab.tracking.notes.markdown import code, listed, page, picture, plain, table
from ditlab.tracking.notes.run_note import number, spec_lines

_MOST_TRIALS = 10
_MOST_AXES = 6
_LONGEST_RANKING = 2500
"""Characters: MLflow takes a note of 8,000."""


@dataclass(frozen=True)
class SweepNote:
    """Content of a sweep's note."""

    run_id: str
    name: str
    status: str
    """`finished`, `interrupted`, `failed`, `stopped`, or `running`."""
    metrics: Sequence[str]
    modes: Sequence[str]
    num_trials: int
    """0: not known yet."""
    ranking: Mapping[str, Sequence[Any]]
    """Columns `trial`, `run`, `status`, `step`, the metrics and the axes, the best trial first; empty before any."""
    best: str = ""
    """The best trial, as `trial 3 (run 1a2b3c4d)`; empty where no trial has a value."""
    best_spec: Mapping[str, str] = field(default_factory=dict)
    """The best trial's spec, flattened."""
    figures: Sequence[str] = ()
    """Paths of pictures among the run's artifacts."""
    page: str = ""
    """Path of the sweep's report among the run's artifacts."""

    def text(self) -> str:
        """The note as Markdown, its addresses not yet filled in."""
        return "\n\n".join(filter(None, self._parts())) + "\n"

    def _parts(self) -> Iterator[str]:
        goal = ", ".join(f"{plain(name)} ({mode})" for name, mode in zip(self.metrics, self.modes, strict=True))
        size = f"a sweep {f'of {self.num_trials} trials ' if self.num_trials else ''}by {goal}"
        yield f"**{plain(self.name)}**: {size}. Run {self.run_id}, {self.status}."
        if self.ranking:
            yield self._ranking()
        if self.best:
            yield f"Best: {plain(self.best)}"
            yield listed(spec_lines(self.best_spec))
        if self.page:
            yield f"**{page('Report of this sweep', self.page)}**: ranking, what mattered, learning curves."
        yield from (picture(plain(path.rpartition("/")[2]), path) for path in self.figures)
        if self.status in ("running", "failed", "interrupted", "stopped"):
            yield "To go on, where the sweep's files are:"
            yield code([f"ditlab tune --resume {self.run_id}"])

    def _ranking(self) -> str:
        known = ("trial", "run", "status", "step", *self.metrics)
        axes = [name for name in self.ranking if name not in (*known, "seconds", "note")][:_MOST_AXES]
        names = [*(name for name in known if name in self.ranking), *axes]
        columns = [[_cell(value) for value in self.ranking[name][:_MOST_TRIALS]] for name in names]
        rows, length = [], 0
        for row in zip(*columns, strict=True):
            length += sum(map(len, row))
            if length <= _LONGEST_RANKING:
                rows.append(row)
        left = len(self.ranking["trial"]) - len(rows)
        more = f"\n\n{left} more in `ranking.json`." if left else ""
        return table([plain(name, 60) for name in names], rows) + more


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else plain(value, 60)
