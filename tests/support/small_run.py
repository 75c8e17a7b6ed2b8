"""Fixtures of tests that run commands: a command runner, a small spec, one run that has
finished.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.command import Said, run_here, run_inside

SMALL = """\
name: small
model: {family: dit, image_size: 8, patch_size: 4, width: 32, depth: 1, num_heads: 2}
batch: {size: 32, micro: 16}
training: {steps: 4}
checkpoint: {every: 2}
evaluation: {every: 2, samples: 4, limit: 32}
sampling: {solver: euler, steps: 4}
tracking: {system_metrics: false}
"""


@dataclass(frozen=True)
class Finished:
    """A run that `ditlab train --local` has finished."""

    home: Path
    spec: Path
    said: Said

    @property
    def run_id(self) -> str:
        return str(self.said.json["run_id"])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DITLAB_HOME that does not exist yet."""
    path = tmp_path / "home"
    monkeypatch.setenv("DITLAB_HOME", str(path))
    return path


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """The YAML of an experiment that trains in a second or two, without pictures of samples, which
    take longest.
    """
    path = tmp_path / "small.yaml"
    path.write_text(SMALL.replace("samples: 4", "samples: 0"), encoding="utf-8")
    return path


@pytest.fixture
def ditlab(home: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """`ditlab(*arguments)` in this process."""
    return lambda *arguments: run_here(capfd, monkeypatch, *arguments)


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write every picture of a figure as four black pixels, in tests of what lies beside it:
    drawing takes longest.
    """
    import ditlab.analysis.plot  # noqa: F401  it keeps the function that it imports

    monkeypatch.setattr(
        "ditlab.reports.rendering.render.to_image", lambda figure, *_: np.zeros((2, 2, 3), np.uint8)
    )
    monkeypatch.setattr("ditlab.reports.rendering.render.to_svg", lambda figure, *_: "<svg/>")


@pytest.fixture
def blank_canvases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every figure and write it as four black pixels, in tests of what a page says: layout
    takes longest.
    """

    from ditlab.reports.rendering import render

    def blank(figure: Any, *theme: Any) -> np.ndarray:
        render.draw_canvas(figure, *theme)
        return np.zeros((2, 2, 3), np.uint8)

    monkeypatch.setattr(render, "to_image", blank)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run of `SMALL`. Read it only: every test of the session shares it."""
    folder = tmp_path_factory.mktemp("finished")
    path = folder / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    said = run_inside("train", path, "--local", "--json", home=folder / "home", cwd=folder)
    assert said.code == 0, said.err
    return Finished(folder / "home", path, said)


@pytest.fixture
def with_run(
    finished: Finished, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Said]:
    """`with_run(*arguments)` in this process, in the home of the finished run."""
    monkeypatch.setenv("DITLAB_HOME", str(finished.home))
    return lambda *arguments: run_here(capfd, monkeypatch, *arguments)
