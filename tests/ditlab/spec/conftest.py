"""Fixtures of the spec's tests: a small experiment as a mapping, and files written from text."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ditlab.spec.sweep import Sweep


@pytest.fixture
def small() -> dict[str, Any]:
    """The least that an experiment must say."""
    return {
        "name": "small",
        "model": {
            "family": "dit",
            "image_size": 8,
            "patch_size": 2,
            "width": 32,
            "depth": 1,
            "num_heads": 2,
        },
        "training": {"steps": 2},
    }


@pytest.fixture
def sweep_of(small: dict[str, Any]) -> Callable[..., "Sweep"]:
    """A sweep of the small experiment, 8 random draws along the axes given; `**changes` are fields
    of the sweep.
    """
    from ditlab.spec.sweep import build_sweep

    def build(space: dict[str, Any], **changes: Any) -> "Sweep":
        mapping = {
            "name": "small",
            "base": small,
            "space": space,
            "metric": "eval/velocity",
            "trials": 8,
        }
        return build_sweep({**mapping, **changes}, "sweep.yaml")

    return build


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file by name, of text or of a mapping."""
    from ditlab.spec.yaml_text import dump_yaml

    def put(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            content if isinstance(content, str) else dump_yaml(content), encoding="utf-8"
        )
        return path

    return put
