"""Importer of GET's regions by motifs (Fu et al. 2025): windows of peaks, each motif over its largest score."""

from ditlab.data.import_request import ImportRequest
from ditlab.data.stores.writing import WrittenStore
from ditlab.spec.importing import GetOptions

OPTIONS = GetOptions
BY_BLOCKS = True


def run(request: ImportRequest[GetOptions]) -> list[WrittenStore]:
    """Write one store of windows. Raises UserError as `get_import.import_get` does."""
    from ditlab.data.genome.get_import import import_get  # pyarrow, which --help can do without

    return [import_get(request)]
