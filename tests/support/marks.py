"""Cases of a parametrised test that run with the slow tests alone."""

from typing import Any

import pytest


def slow(*cases: Any) -> list[Any]:
    """Mark cases as slow; a tuple holds several arguments."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
