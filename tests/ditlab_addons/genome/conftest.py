"""Fixtures of tests of imports from GET's stores."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.stores.store import Store
from ditlab.errors import UserError
from ditlab_addons.genome.options import GetOptions
from support.datasets.get_sources import GetSource


@pytest.fixture
def get(tmp_path: Path):
    """Import a source with options; returns the store."""

    def run(
        source: GetSource | Path, zarr_format: int = 3, progress: Callable | None = None, **options
    ) -> Store:
        path = source
        if isinstance(source, GetSource):
            path = source.write(tmp_path / "source.zarr", zarr_format)
        get_options = GetOptions(source=path, **{"regions": 4, **options})
        request = ImportRequest(tmp_path / "stores", tmp_path / "caches", get_options)
        if progress:
            request = dataclasses.replace(request, progress=progress)
        (imported,) = run_import("get", request)
        return imported.store

    return run


@pytest.fixture
def refused(get, tmp_path: Path):
    """Check that an import fails with all parts in one message, and writes nothing."""

    def check(source: GetSource | Path, *parts: str, **options) -> None:
        with pytest.raises(UserError) as caught:
            get(source, **options)
        for part in parts:
            assert part in str(caught.value)
        assert not (tmp_path / "stores").exists()

    return check
