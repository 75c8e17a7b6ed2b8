"""Logarithmic axes with few ticks, whose numbers are written plainly: 0.06 in the place of 6 x 10^-2."""

from __future__ import annotations

from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ditlab.reports.formatting import format_number

_FEW, _MANY = 12.0, 1000.0
"""Ratios of the largest to the smallest value up to which an axis has seven, or three, ticks a decade."""


def set_log_ticks(axis: Axis, low: float, high: float) -> None:
    """Set ticks for values from `low` to `high`, above 0; the axis' scale is logarithmic already."""
    subs: tuple[float, ...] = (1,)
    if high < _MANY * low:
        subs = (1, 1.5, 2, 3, 4, 5, 7) if high < _FEW * low else (1, 2, 5)
    axis.set_major_locator(_InnerTicks(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))
    axis.set_minor_locator(NullLocator())


class _InnerTicks(LogLocator):
    """Ticks of a logarithmic axis without those outside its limits, which would be laid out and never shown."""

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        low, high = 0.99 * min(vmin, vmax), 1.01 * max(vmin, vmax)
        return [tick for tick in super().tick_values(vmin, vmax) if low < tick < high]
