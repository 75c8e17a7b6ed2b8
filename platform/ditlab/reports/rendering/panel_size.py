"""Size of a panel."""

from typing import NamedTuple


class PanelSize(NamedTuple):
    """Width and height of a panel in inches."""

    width: float
    height: float
