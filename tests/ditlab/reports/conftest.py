"""Fixture for tests of the pages around figures."""

import numpy as np
import pytest


@pytest.fixture
def blank_canvases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every figure and write it as four black pixels, in tests of what a page says: layout takes longest."""
    monkeypatch.setattr("ditlab.reports.rendering.render._pixels", lambda canvas: np.zeros((2, 2, 3), np.uint8))
