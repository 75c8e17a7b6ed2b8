"""Forks among compared runs: what each changed of the run that it goes on from."""

from __future__ import annotations

from ditlab.reports.comparison.records import ComparedRun, Comparison
from ditlab.reports.comparison.summary import fork_sentence
from ditlab.reports.comparison.tables import PLACE_PATHS
from ditlab.reports.formatting import Cell
from ditlab.reports.parts import Paragraphs, Table

_TAKEN = {
    "all": "It took over all of its state.",
    "averaged": "It took over its averaged weights.",
    "trained": "It took over its trained weights.",
}
_COUNTING = (
    "A fork with all of its parent's state counts steps and samples from the first ancestor's first step; its training "
    "time is its own alone."
)


def fork_parts(comparison: Comparison) -> list[Table | Paragraphs]:
    """Build a table for each fork: what it changed of its nearest ancestor among the runs; empty without forks."""
    parts: list[Table | Paragraphs] = []
    for run in (each for each in comparison.runs if each.line):
        about = f"{fork_sentence(comparison, run)} {_TAKEN.get(run.spec.get('start.state', ''), '')}".rstrip()
        ancestor = comparison.nearest_ancestor(run)
        if ancestor is None:
            parts.append(Paragraphs(about))
        elif rows := _changes(run, ancestor):
            parts.append(Table(["changed", comparison.label(run), comparison.label(ancestor)], rows, about))
        else:
            parts.append(Paragraphs(f"{about} It changed nothing of the spec."))
    return [*parts, Paragraphs(_COUNTING)] if parts else []


def _changes(run: ComparedRun, ancestor: ComparedRun) -> list[list[Cell]]:
    paths = dict.fromkeys([*run.spec, *ancestor.spec])
    left_out = (*PLACE_PATHS, "start")
    different = [path for path in paths if run.spec.get(path) != ancestor.spec.get(path)]
    return [[path, run.spec.get(path), ancestor.spec.get(path)] for path in different if not path.startswith(left_out)]
