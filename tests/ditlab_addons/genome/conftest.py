"""Fixtures of tests of imports from GET's stores."""

import dataclasses

import pytest

from ditlab.data.importing import ImportRequest, run_import
from ditlab.errors import UserError
from ditlab_addons.genome.options import GetOptions
from support.datasets.get_sources import GetSource


@pytest.fixture
def get(tmp_path):
    """Import a source with options; returns the store."""

    def run(source, zarr_format=3, progress=None, **options):
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
def refused(get, tmp_path):
    """Check that an import fails with all parts in one message, and writes nothing."""

    def check(source, *parts, **options):
        with pytest.raises(UserError) as caught:
            get(source, **options)
        for part in parts:
            assert part in str(caught.value)
        assert not (tmp_path / "stores").exists()

    return check
