"""A graph of steps to look at: lines of a terminal, and a page with its drawing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from ditlab.reports.formatting import Cell, format_number, shorten
from ditlab.reports.page import ImageFile, Page, Section, Table, write_html
from ditlab.storage.files import write_whole
from ditlab_addons.steps.graph import GraphStep
from ditlab_addons.steps.states import Status, StepState

COLUMNS = 80
BOX = (150, 40)
"""Width and height of a step's box, in pixels."""
GAP = (50, 14)
"""Pixels between boxes, to the right and below."""
COLOURS = {
    Status.DONE: "#2e7d32",
    Status.RUNNING: "#1565c0",
    Status.ELSEWHERE: "#1565c0",
    Status.FAILED: "#c62828",
    Status.SKIPPED: "#8d6e63",
}
"""Colour of a box's edge by status; grey for others."""


def depths(steps: Sequence[GraphStep]) -> dict[str, int]:
    """Return for each step the number of steps on the longest way to it."""
    found: dict[str, int] = {}
    for each in steps:
        found[each.name] = max((found[name] + 1 for name in each.needed), default=0)
    return found


def outcome(state: StepState) -> str:
    """Return what a step has made, or why it has not."""
    if state.status is not Status.DONE:
        return state.reason
    made = [each.run or Path(each.place).name for each in state.results]
    return ", ".join(dict.fromkeys(filter(None, made)))


def terminal_lines(states: Mapping[str, StepState]) -> Iterator[str]:
    """Yield a line for each step, at most 80 columns wide, further to the right the more steps come
    before it.
    """
    places = depths([state.each for state in states.values()])
    names = {name: f"{'  ' * places[name]}{name}" for name in states}
    width = min(32, max(map(len, names.values())))
    for name, state in states.items():
        head = f"{shorten(names[name], width):{width}}  {state.each.kind:8}  {state.status:9}"
        yield shorten(f"{head}  {outcome(state)}".rstrip(), COLUMNS)


def main_metrics(state: StepState) -> Cell:
    """Return the first metric of each result of a step; "" where it has none."""
    found = []
    for made in state.results if state.status is Status.DONE else ():
        for name, value in [*made.metrics.items()][:1]:
            if value is not None:
                found.append(f"{name} {format_number(value)}")
    return ", ".join(found)


def drawing(states: Mapping[str, StepState]) -> str:
    """Return the graph as SVG: a column for each depth, an edge to each step that needs another."""
    places = depths([state.each for state in states.values()])
    rows: dict[int, int] = {}
    corner: dict[str, tuple[int, int]] = {}
    for name, depth in places.items():
        row = rows.get(depth, 0)
        rows[depth] = row + 1
        corner[name] = (depth * (BOX[0] + GAP[0]) + 5, row * (BOX[1] + GAP[1]) + 5)
    parts = []
    for name, state in states.items():
        x, y = corner[name]
        for needed in dict.fromkeys(state.each.needed):
            left, top = corner[needed]
            parts.append(
                f'<line x1="{left + BOX[0]}" y1="{top + BOX[1] // 2}" x2="{x}" '
                f'y2="{y + BOX[1] // 2}" stroke="#999"/>'
            )
        colour = COLOURS.get(state.status, "#999")
        parts.append(
            f'<rect x="{x}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="5" fill="white" '
            f'stroke="{colour}" stroke-width="2"/>'
            f'<text x="{x + 8}" y="{y + 17}" font-weight="bold">{escape(shorten(name, 18))}</text>'
            f'<text x="{x + 8}" y="{y + 32}" fill="{colour}">{state.each.kind}, {state.status}'
            "</text>"
        )
    width = max(x for x, _ in corner.values()) + BOX[0] + 5
    height = max(y for _, y in corner.values()) + BOX[1] + 5
    about = f"{len(states)} steps: {counts(states)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12"><desc>{escape(about)}</desc>{"".join(parts)}'
        "</svg>\n"
    )


def counts(states: Mapping[str, StepState]) -> str:
    """Return how many steps are in each state: `5 done, 2 waiting`."""
    found = [state.status for state in states.values()]
    return ", ".join(f"{found.count(each)} {each}" for each in Status if each in found)


def write_page(name: str, states: Mapping[str, StepState], folder: Path) -> Path:
    """Write a graph's page, `graph.html`, and its drawing; return the page's path. Raises OSError
    where the disk refuses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    picture = write_whole(folder / "graph.svg", drawing(states).encode())
    rows = [
        [
            name,
            state.each.kind,
            str(state.status),
            ", ".join(dict.fromkeys(state.each.needed)),
            main_metrics(state),
            None if state.seconds is None else round(state.seconds, 1),
            outcome(state),
        ]
        for name, state in states.items()
    ]
    table = Table(["step", "kind", "state", "needs", "metric", "seconds", "result, or why"], rows)
    done = sum(state.status is Status.DONE for state in states.values())
    page = Page(
        name,
        f"{len(states)} steps: {counts(states)}.",
        [Section("Steps", [ImageFile(picture), table])],
        progress=done / len(states),
    )
    return write_html(page, folder / "graph.html")
