"""A figure that is drawn when it is shown or saved, and curves of a run's metrics over its
steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image

from ditlab.analysis.user_errors import writing
from ditlab.reports.figures import metric_panel
from ditlab.tracking.history import Series
from ditlab_models.figures import Figure


@dataclass(frozen=True)
class Plot:
    """A figure, which notebooks show and `save` writes."""

    figure: Figure
    """The content: panels, titles, numbers."""

    @property
    def image(self) -> Image.Image:
        """The figure as an RGB image; of an animation, its still."""
        # imports matplotlib: not before something is drawn
        from ditlab.reports.rendering.render import to_image

        return Image.fromarray(to_image(self.figure))

    def save(self, path: str | Path) -> Path:
        """Write the figure as PNG, an animation as GIF with a PNG still beside it; return the path
        written.

        A path with the suffix `.svg` or `.pdf` becomes a vector picture; other suffixes follow from
        the content. Raises UserError where the disk refuses.
        """
        from ditlab.reports.rendering.render import FORMATS, save_figure, save_formats

        place = Path(path)
        with writing(place):
            for kind in FORMATS:
                if kind != "png" and place.suffix.lower() == f".{kind}":
                    return save_formats(self.figure, place.with_suffix(""), (kind,))[0]
            return save_figure(self.figure, place)

    def _repr_png_(self) -> tuple[bytes, dict[str, str]]:
        # IPython takes what is said of a picture as the second value
        content = BytesIO()
        self.image.save(content, format="PNG")
        return content.getvalue(), {"alt": self.figure.alternative_text}


def metric_plot(history: Mapping[str, Series]) -> Plot:
    """One panel a metric; a curve of many points gets its running median."""
    panels = [
        metric_panel(series, name, "as logged", is_loss=name.endswith("loss"))
        for name, series in history.items()
    ]
    return Plot(Figure(panels))
