"""Figure of a network's parameters by component."""

from collections.abc import Mapping

import numpy as np

from denoisers.figures import Bars, Figure


def parameters_figure(components: Mapping[str, int], family: str) -> Figure:
    """Draw the number of parameters of each component, with their shares of the total."""
    total = sum(components.values())
    texts = [f"{count:,} ({count / max(total, 1):.1%})" for count in components.values()]
    bars = Bars(list(components), np.array(list(components.values())), "", "parameters", texts=texts)
    return Figure([bars], title=f"{total:,} parameters of {family}, by component", columns=1)
