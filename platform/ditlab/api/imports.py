"""Imports of data, on this machine or a cluster."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from denoisers.contract import Spec
from ditlab.cluster.session import cluster_address
from ditlab.data.importing import ImportRequest, find_importer, run_import
from ditlab.data.stores.writing import WrittenStore
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.spec.uris import is_uri

MOST_TOKENS = 512
"""Most tokens of a caption whose features are stored, unless another number is asked for."""


def import_data(
    kind: str,
    options: Spec,
    out: Path | None = None,
    address: str | None = None,
    progress: Progress = ignore_progress,
    warn: Callable[[str], None] = lambda message: None,
) -> list[WrittenStore]:
    """Run an importer into `out` (None: DITLAB_HOME/stores), and return the stores that it wrote.

    `address`: Ray cluster whose cores share the work; None: RAY_ADDRESS, else this machine. Raises UserError for an
    unknown importer, and as the importer does.
    """
    address = cluster_address(address) if find_importer(kind).by_blocks else None
    source = getattr(options, "source", None)
    with _import_request(out, address, None if source is None else str(source), options, progress, warn) as request:
        return run_import(kind, request)


def encode_store(
    store: str | Path,
    encode_text: str | None = None,
    encode_images: str | None = None,
    *,
    tokens: int | None = None,
    patch: int | None = None,
    name: str | None = None,
    out: Path | None = None,
    address: str | None = None,
    progress: Progress = ignore_progress,
    warn: Callable[[str], None] = lambda message: None,
) -> WrittenStore:
    """Write a store of the same rows with features of frozen encoders beside its columns.

    Args:
        store: a store's folder, or the name of one under DITLAB_HOME/stores.
        encode_text: encoder of captions, a folder or a name on the Hugging Face hub (Qwen3).
        encode_images: encoder of images (DINOv3).
        tokens: tokens of every row's text; None: those of the longest caption.
        patch: side of the image encoder's patches that is asked for; None: any.
        name: name of the new store; None: the store's with `-encoded`.
        out, address, progress, warn: as of `import_data`, whose work GPUs of the cluster may share.

    Raises UserError for a store, an encoder or a folder that does not fit.
    """
    from ditlab.data.images.encoding import EncoderChoice
    from ditlab.data.images.encoding import encode_store as encode
    from ditlab.data.named_stores import open_named_store

    if is_uri(str(store)):
        raise UserError(f"STORE={store} is a URI; name a store's folder, on a disk that all nodes share.")
    opened = open_named_store("STORE", str(store), Home.from_environment().ensure())
    encoders = EncoderChoice(encode_text, encode_images, tokens or MOST_TOKENS, patch)
    with _import_request(out, cluster_address(address), str(opened.path), Spec(), progress, warn) as request:
        return encode(opened, encoders, tokens, name, request)


@contextmanager
def _import_request(
    out: Path | None, address: str | None, source: str | None, options: Spec, progress: Progress,
    warn: Callable[[str], None],
) -> Iterator[ImportRequest]:  # fmt: skip
    """Connect to a cluster, if there is an address, for the length of the block. Raises UserError as it does."""
    home = Home.from_environment().ensure()
    folder = out or home.stores
    if address is None:
        yield ImportRequest(folder, home.caches, options, progress, None)
        return
    from ditlab.cluster.imports import ray_executor  # a second of imports, that others need not wait for

    folder = folder.absolute()  # as processes of other nodes find it
    with ray_executor(address, folder, source, warn) as executor:
        yield ImportRequest(folder, home.caches, options, progress, executor)
