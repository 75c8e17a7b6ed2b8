"""Importer of text files, JSON lines, Parquet, Arrow and MDS as rows of tokens."""

from ditlab.data.import_request import ImportRequest
from ditlab.data.stores.writing import WrittenStore
from ditlab.spec.importing import TextOptions

OPTIONS = TextOptions
BY_BLOCKS = True


def run(request: ImportRequest[TextOptions]) -> list[WrittenStore]:
    """Write one store of tokens and its tokeniser. Raises UserError as `text_import.import_text` does."""
    from ditlab.data.text.text_import import import_text  # pyarrow, which --help can do without

    return [import_text(request)]
