"""Importer of scikit-learn's handwritten digits."""

from ditlab.data.import_request import ImportRequest
from ditlab.data.stores.writing import WrittenStore
from ditlab.spec.importing import DigitsOptions

OPTIONS = DigitsOptions


def run(request: ImportRequest[DigitsOptions]) -> list[WrittenStore]:
    """Write the store `digits`: see `builtin.write_digits`."""
    from ditlab.data.builtin import write_digits  # brings torch, which --help can do without

    return [write_digits(request.out)]
