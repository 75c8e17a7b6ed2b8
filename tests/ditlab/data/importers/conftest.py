"""Fixtures of the importers' tests."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.stores.writing import WrittenStore
from ditlab.errors import UserError
from ditlab.progress import ignore_progress
from ditlab.spec.importing import ImagesOptions, TextOptions


@dataclass(frozen=True)
class TextImport:
    """Import of text into a folder of the test's own."""

    folder: Path

    def __call__(self, source: Path, length: int = 16, **options: object) -> WrittenStore:
        parsed = TextOptions(source=source, length=length, **options)
        (imported,) = run_import(
            "text", ImportRequest(self.folder / "stores", self.folder / "caches", parsed)
        )
        return imported

    def refused(self, source: Path, *parts: str, **options: object) -> None:
        """Check that one message has all parts, and that nothing is written."""
        with pytest.raises(UserError) as caught:
            self(source, **options)
        for part in parts:
            assert part in str(caught.value)
        assert not (self.folder / "stores").exists()


@pytest.fixture
def importing(tmp_path: Path) -> TextImport:
    return TextImport(tmp_path)


Import = Callable[..., WrittenStore]


@pytest.fixture
def run(home) -> Import:
    """Imports images as squares of 16 pixels, in this process."""

    def run(source: Path | str, progress: Any = ignore_progress, **options: Any) -> WrittenStore:
        chosen = {"resolution": 16, "patch": 4, "sizes": "square", "processes": 1, "name": "set"}
        parsed = ImagesOptions(source=source, **(chosen | options))
        (imported,) = run_import(
            "images", ImportRequest(home.stores, home.caches, parsed, progress)
        )
        return imported

    return run
