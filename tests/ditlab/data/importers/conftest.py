"""Fixtures of the importers' tests."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from ditlab.data.importing import ImportRequest, run_import
from ditlab.errors import UserError
from ditlab.progress import ignore_progress
from ditlab.spec.importing import ImagesOptions, TextOptions


@dataclass(frozen=True)
class TextImport:
    """Import of text into a folder of the test's own."""

    folder: Path

    def __call__(self, source, length=16, **options):
        parsed = TextOptions(source=source, length=length, **options)
        (imported,) = run_import(
            "text", ImportRequest(self.folder / "stores", self.folder / "caches", parsed)
        )
        return imported.store

    def refused(self, source, *parts, **options):
        """Check that one message has all parts, and that nothing is written."""
        with pytest.raises(UserError) as caught:
            self(source, **options)
        for part in parts:
            assert part in str(caught.value)
        assert not (self.folder / "stores").exists()


@pytest.fixture
def importing(tmp_path):
    return TextImport(tmp_path)


@pytest.fixture
def run(home):
    """Imports images as squares of 16 pixels, in this process."""

    def run(source, progress=ignore_progress, **options):
        chosen = {"resolution": 16, "patch": 4, "sizes": "square", "processes": 1, "name": "set"}
        parsed = ImagesOptions(source=source, **(chosen | options))
        (imported,) = run_import(
            "images", ImportRequest(home.stores, home.caches, parsed, progress)
        )
        return imported.store

    return run
