"""Diagrams of a forward pass: a column of boxes from input to output, and what conditions them beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from denoisers.figures import Arrow, Box, Diagram, Figure

Step = tuple[str, str]
"""Name and detail of a box."""


def pass_figure(
    steps: Sequence[Step], conditions: Sequence[Step], conditioned: Sequence[int], title: str, alt: str
) -> Figure:
    """Draw `steps` from top to bottom, `conditions` beside them, and arrows from the last condition.

    The first and the last step are data; the condition's arrows lead to the steps `conditioned`, by index.
    """
    last = len(steps) - 1
    boxes = [
        Box(text, detail, 0, row, "data" if row in (0, last) else "layer") for row, (text, detail) in enumerate(steps)
    ]
    arrows = [Arrow(row, row + 1) for row in range(last)]
    start = len(boxes)
    boxes += [Box(text, detail, 1, row, "condition") for row, (text, detail) in enumerate(conditions)]
    arrows += [Arrow(start + row, start + row + 1) for row in range(len(conditions) - 1)]
    arrows += [Arrow(len(boxes) - 1, step) for step in conditioned]
    return Figure([Diagram(boxes, arrows)], title=title, columns=1, alt=alt)


def shape_text(shape: Mapping[str, int] | Sequence[int]) -> str:
    """Write a shape as `28 x 28 x 1`."""
    sizes = shape.values() if isinstance(shape, Mapping) else shape
    return " x ".join(str(size) for size in sizes)
