"""Imports of data, on this machine or a cluster."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from denoisers.contract import Spec
from ditlab.cluster.session import cluster_address
from ditlab.data.block_imports.execution import BlockExecutor
from ditlab.data.import_request import ImportRequest
from ditlab.data.importing import run_import, runs_by_blocks
from ditlab.data.stores.written import WrittenStore
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress


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
    address = cluster_address(address) if runs_by_blocks(kind) else None
    home = Home.from_environment().ensure()
    folder = out or home.stores
    source = getattr(options, "source", None)
    with block_executor(address, folder, None if source is None else str(source), warn) as executor:
        return run_import(kind, ImportRequest(folder, home.caches, options, progress, executor))


@contextmanager
def block_executor(
    address: str | None, out: Path, source: str | None, warn: Callable[[str], None]
) -> Iterator[BlockExecutor | None]:
    """Connect to a cluster, if there is an address, for the length of the block. Raises UserError as it does."""
    if address is None:
        yield None
        return
    from ditlab.cluster.imports.executor import ray_executor  # a second of imports, that others need not wait for

    with ray_executor(address, out, source, warn) as executor:
        yield executor
