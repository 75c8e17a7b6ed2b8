"""Checks that every figure has to pass."""

import numpy as np

from ditlab_models.figures import (
    Bars,
    Diagram,
    Figure,
    Heatmap,
    ImageGrid,
    Lines,
    Panel,
    Points,
    Text,
)


def check_figure(figure: Figure) -> None:
    """Assert that a figure holds finite numbers, labelled axes and units, and an alternative
    text.
    """
    assert figure.panels
    assert 20 < len(figure.alternative_text) <= 1000 or figure.alternative_text.startswith(
        "Grid of images"
    )
    for panel in figure.panels:
        _check_panel(panel)
    for frame in figure.frames:
        check_figure(frame)


def _check_panel(panel: Panel) -> None:
    if isinstance(panel, ImageGrid):
        assert panel.images.ndim == 3 or panel.images.shape[3] == 3
        assert panel.images.min() >= 0 and panel.images.max() <= 1
        assert len(panel.captions) in (0, len(panel.images))
    elif isinstance(panel, Heatmap):
        assert (
            panel.values.ndim == 2
            and np.isfinite(panel.values).any()
            and not np.isinf(panel.values).any()
        )
        assert panel.x_label and panel.y_label and panel.unit, panel.title
    elif isinstance(panel, Lines):
        assert panel.x_label and panel.y_label, panel.title
        for curve in panel.curves:
            assert curve.x.shape == curve.y.shape and np.isfinite(curve.y).all()
    elif isinstance(panel, Bars):
        assert (
            len(panel.names) == len(panel.values)
            and np.isfinite(panel.values).all()
            and panel.x_label
        )
    elif isinstance(panel, Points):
        for group in panel.groups:
            assert np.isfinite(group.x).all() and np.isfinite(group.y).all()
            assert len(group.texts) in (0, len(group.x))
    elif isinstance(panel, Diagram):
        assert all(
            0 <= end < len(panel.boxes)
            for arrow in panel.arrows
            for end in (arrow.start, arrow.end)
        )
    else:
        assert isinstance(panel, Text) and panel.passages


def check_whole(picture: np.ndarray) -> None:
    """Assert that something is drawn, and that nothing runs out of the picture."""
    inked = (picture < 128).any(axis=2)
    assert inked.any() and inked.sum() == inked[2:-2, 2:-2].sum()
