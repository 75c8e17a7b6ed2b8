"""Memory of an axis' ticks while a figure is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from matplotlib.axis import Axis
from matplotlib.figure import Figure as Canvas

if TYPE_CHECKING:
    from matplotlib.axes._base import _AxesBase

_TICKS, _EXTENTS = "_update_ticks", "_get_ticklabel_bboxes"
"""Private methods of matplotlib's axes, unchanged from version 3.8 to 3.11. Nothing is remembered without them."""


@contextmanager
def ticks_are_remembered(canvas: Canvas) -> Iterator[None]:
    """Compute ticks and the extents of their labels anew only where an axis has moved or has other limits.

    The constrained layout measures every axis twice, and for each measurement and for the drawing matplotlib computes
    the same ticks once for the axis, the label, the title and each spine: some 15 times an axis. Pictures stay the
    same. Nothing but the positions and the limits of axes may change inside.
    """
    with ExitStack() as stack:
        for axes in _with_insets(canvas.axes):
            for axis in (axes.xaxis, axes.yaxis):
                if hasattr(axis, _TICKS) and hasattr(axis, _EXTENTS):
                    stack.enter_context(_AxisMemory(axis).attached())
        yield


def _with_insets(axes: Iterable[_AxesBase]) -> list[_AxesBase]:
    found: dict[_AxesBase, None] = {}
    pending = list(axes)
    while pending:
        each = pending.pop()
        if each not in found:
            found[each] = None
            pending += each.child_axes
    return list(found)


class _AxisMemory:
    """Ticks of an axis at its present place, and the extents of their labels."""

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self._compute_ticks = getattr(axis, _TICKS)
        self._compute_extents = getattr(axis, _EXTENTS)
        self._place: object = None
        self._ticks: Any = None
        self._extents: Any = None

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Give the axis this memory: attributes of an object hide the methods of its class."""
        attributes = vars(self._axis)
        attributes.update({_TICKS: self._remembered_ticks, _EXTENTS: self._remembered_extents})
        try:
            yield
        finally:
            del attributes[_TICKS], attributes[_EXTENTS]

    def _remembered_ticks(self) -> Any:
        place = (self._axis.axes.bbox.bounds, tuple(self._axis.get_view_interval()))
        if place != self._place:
            self._ticks, self._extents = self._compute_ticks(), None
            self._place = place
        return self._ticks

    def _remembered_extents(self, ticks: Any, renderer: Any) -> Any:
        if ticks is not self._ticks:
            return self._compute_extents(ticks, renderer)
        if self._extents is None:
            self._extents = self._compute_extents(ticks, renderer)
        return self._extents
