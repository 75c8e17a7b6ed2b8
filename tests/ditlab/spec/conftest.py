"""What the tests of the spec share: a small experiment as a mapping, and files written from text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def small() -> dict[str, Any]:
    """The least that an experiment must say."""
    return {
        "name": "small",
        "model": {"family": "dit", "image_size": 8, "patch_size": 2, "width": 32, "depth": 1, "num_heads": 2},
        "training": {"steps": 2},
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file by name, of text or of a mapping."""
    from ditlab.spec.yaml_text import dump_yaml

    def put(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else dump_yaml(content), encoding="utf-8")
        return path

    return put
