"""Fixtures of tests of imports from GET's stores."""

import pytest

from ditlab.data.importing import ImportRequest, run_import
from ditlab.errors import UserError
from ditlab.progress import ignore_progress
from ditlab_addons.genome.options import GetOptions
from support.datasets.get_sources import GetSource


@pytest.fixture
def get(tmp_path):
    """Import a source with options; returns the store."""

    def run(source, zarr_format=3, progress=ignore_progress, executor=None, **options):
        path = source
        if isinstance(source, GetSource):
            path = source.write(tmp_path / "source.zarr", zarr_format)
        get_options = GetOptions(source=path, **{"regions": 4, **options})
        folders = (tmp_path / "stores", tmp_path / "caches")
        request = ImportRequest(*folders, get_options, progress=progress, executor=executor)
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
