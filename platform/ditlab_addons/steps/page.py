"""A graph of steps to look at: lines of a terminal, a page with its drawing, and what needs a step.

Each step is the object that `ditlab make --json` prints.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from ditlab.home import Home
from ditlab.reports.formatting import Cell, format_duration, format_number, shorten
from ditlab.reports.page import (
    Link,
    Page,
    Section,
    Slide,
    Slides,
    Table,
    data_uri,
    write_html,
)
from ditlab_addons.steps.graph import load_graph
from ditlab_addons.steps.ledger import Ledger
from ditlab_addons.steps.states import Status

WIDTH = 150
"""Width of a step's box, in pixels."""
HEIGHT = 40
RIGHT = 200
"""Pixels from a box to the next one to the right."""
DOWN = 54
COLOURS = {
    "done": "#2e7d32",
    "running": "#1565c0",
    "elsewhere": "#1565c0",
    "failed": "#c62828",
    "skipped": "#8d6e63",
}
"""Colour of a box's edge by status; grey for others."""
Shown = Mapping[str, Any]
"""A step as `StepState.to_dict` has it."""


def depths(steps: Sequence[Shown]) -> dict[str, int]:
    """Return for each step the number of steps on the longest way to it."""
    found: dict[str, int] = {}
    for each in steps:
        found[each["step"]] = max((found[name] + 1 for name in each["needs"]), default=0)
    return found


def outcome(each: Shown) -> str:
    """Return what a step has made, or why it has not."""
    if each["forecast"] is not None:
        return f"{each['reason']}, about {format_duration(each['forecast'])}"
    if each["status"] != "done":
        return str(each["reason"])
    made = each["runs"] or [Path(place).name for place in each["places"]]
    return ", ".join(dict.fromkeys(made)) or main_metrics(each)


def terminal_lines(steps: Sequence[Shown]) -> Iterator[str]:
    """Yield a line for each step, at most 80 columns wide, further to the right the more steps come
    before it; below it its remark.
    """
    places = depths(steps)
    width = min(32, max(2 * places[each["step"]] + len(each["step"]) for each in steps))
    for each in steps:
        name = shorten(f"{'  ' * places[each['step']]}{each['step']}", width)
        head = f"{name:{width}}  {each['kind']:8}  {each['status']:9}"
        yield shorten(f"{head}  {outcome(each)}".rstrip(), 80)
    for each in steps:
        if each["status"] == "done" and each["reason"]:
            yield f"{each['step']}: {each['reason']}"


def main_metrics(each: Shown) -> str:
    """Return the first metric of each result of a step; "" where it has none."""
    found = []
    for metrics in each["metrics"]:
        name, value = next(iter(metrics.items()))
        if value is not None:
            found.append(f"{name} {format_number(value)}")
    return ", ".join(found)


def drawing(steps: Sequence[Shown]) -> str:
    """Return the graph as SVG: a column for each depth, an edge to each step that needs another."""
    rows: dict[int, int] = {}
    corner: dict[str, tuple[int, int]] = {}
    for name, depth in depths(steps).items():
        row = rows.get(depth, 0)
        rows[depth] = row + 1
        corner[name] = (depth * RIGHT + 5, row * DOWN + 5)
    parts = []
    for each in steps:
        x, y = corner[each["step"]]
        for needed in each["needs"]:
            left, top = corner[needed]
            parts.append(
                f'<line x1="{left + WIDTH}" y1="{top + HEIGHT // 2}" x2="{x}" '
                f'y2="{y + HEIGHT // 2}" stroke="#999"/>'
            )
        colour = COLOURS.get(each["status"], "#999")
        title = escape(shorten(each["step"], 18))
        parts.append(
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="white" '
            f'stroke="{colour}" stroke-width="2"/>'
            f'<text x="{x + 8}" y="{y + 17}" font-weight="bold">{title}</text>'
            f'<text x="{x + 8}" y="{y + 32}" fill="{colour}">{each["kind"]}, {each["status"]}'
            "</text>"
        )
    width = max(x for x, _ in corner.values()) + WIDTH + 5
    height = max(y for _, y in corner.values()) + HEIGHT + 5
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12">{"".join(parts)}</svg>\n'
    )


def graph_page(name: str, steps: Sequence[Shown], home: Home | None = None) -> Page:
    """Return a graph's page. With `home`, results lead to the pages of their runs, from the page's
    own folder on.
    """

    def result(each: Shown) -> Cell:
        if home and each["runs"]:
            page = home.run(each["runs"][0]).path / "report.html"
            if page.is_file():
                return Link(outcome(each), os.path.relpath(page, Ledger(home).pages(name)))
        return outcome(each)

    columns = ["step", "kind", "state", "needs", "metric", "seconds", "result, or why"]
    rows = [
        [
            each["step"],
            each["kind"],
            each["status"],
            ", ".join(each["needs"]),
            main_metrics(each),
            each["seconds"] and round(each["seconds"], 1),
            result(each),
        ]
        for each in steps
    ]
    found = [each["status"] for each in steps]
    counts = [f"{found.count(each)} {each}" for each in Status if each in found]
    about = f"{len(steps)} steps: {', '.join(counts)}"
    picture = Slide(about, data_uri(drawing(steps).encode(), "graph.svg"), f"Graph of {about}")
    graph = Slides("graph", [picture], "")
    return Page(
        name,
        f"{about}, as of {datetime.now():%Y-%m-%d %H:%M:%S}.",
        [Section("Steps", [graph, Table(columns, rows)], "steps")],
        status="running" if "running" in found else "",
        progress=found.count("done") / len(steps),
    )


def write_page(name: str, steps: Sequence[Shown], home: Home) -> Path:
    """Write a graph's page, `graph.html`, and its states; return the page's path. Raises OSError
    where the disk refuses.
    """
    ledger = Ledger(home)
    ledger.write_states(name, steps)
    return write_html(graph_page(name, steps, home), ledger.pages(name) / "graph.html")


def live_page(home: Home, path: Path) -> Callable[[], Page]:
    """Return the function that makes the page of a file's graph anew, from the states that were
    written last. Raises UserError for a file that is wrong.
    """
    name = load_graph(path).name
    ledger = Ledger(home)

    def make() -> Page:
        steps = ledger.states(name)
        if not steps:
            return Page(name, "It was not made in this home yet: `ditlab make` makes it.", [])
        for each in steps:
            if each["status"] == "running" and not any(map(ledger.is_made_now, each["identities"])):
                each |= {"status": "missing", "reason": "its process has ended before it was done"}
        return graph_page(name, steps)

    return make


def removal_remarks(home: Home, names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each step of a graph whose run or store is to be deleted."""
    ledger = Ledger(home)
    for file in sorted((ledger.folder / "graphs").glob("*/graph.json")):
        graph = file.parent.name
        steps = ledger.states(graph)
        for each in steps:
            for removed in {*each["runs"], *each["places"]}.intersection(names):
                users = [other["step"] for other in steps if each["step"] in other["needs"]]
                yield (
                    f"{Path(removed).name} is step {each['step']} of {graph}, needed by "
                    f"{', '.join(users) or 'no other'}; `ditlab make` makes it again."
                )
