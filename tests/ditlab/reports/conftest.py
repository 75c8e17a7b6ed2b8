"""Fixture for tests of the pages around figures."""

from typing import Any

import numpy as np
import pytest

from ditlab.reports.rendering import render


@pytest.fixture
def blank_canvases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every figure and write it as four black pixels, in tests of what a page says: layout takes longest."""

    def blank(figure: Any, *theme: Any) -> np.ndarray:
        render.draw_canvas(figure, *theme)
        return np.zeros((2, 2, 3), np.uint8)

    monkeypatch.setattr(render, "to_image", blank)
