"""Importer of images with captions, scaled to a few sizes by aspect ratio."""

from ditlab.data.import_request import ImportRequest
from ditlab.data.stores.writing import WrittenStore
from ditlab.spec.importing import ImagesOptions

OPTIONS = ImagesOptions
BY_BLOCKS = True


def run(request: ImportRequest[ImagesOptions]) -> list[WrittenStore]:
    """Write one bucketed store. Raises UserError as `image_import.import_images` does."""
    from ditlab.data.images.image_import import import_images  # pyarrow, which --help can do without

    return [import_images(request)]
