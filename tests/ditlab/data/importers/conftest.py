"""Fixtures of the importers' tests."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.stores.writing import WrittenStore
from ditlab.errors import UserError
from ditlab.spec.importing import TextOptions


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
