"""Imports of data on a Ray cluster: the blocks of an import by Ray Data, on all cores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ditlab.cluster.node_report import probe_node
from ditlab.cluster.session import ray_session
from ditlab.data.import_blocks import (
    BlockExecutor,
    BlockReceipt,
    BlockWork,
    InputBlock,
    Receipts,
    RefusedSource,
)
from ditlab.errors import RunFailed, StorageOutage, Unreachable, UserError, first_line
from ditlab.spec.uris import is_uri

PROBE_TIMEOUT = 60.0
"""Seconds for all nodes to say what they see of the folders: each starts a process for it."""
REMEDIES = {
    "ditlab": (
        "node {node} has no DiTLab; install this version there, or submit the import as a Ray job."
    ),
    "out": "--out={out} is not the same folder on node {node}; name one that all nodes share.",
    "source": (
        "--source={source} is not on node {node}; name a folder that all nodes share, or a URI."
    ),
}
_BLOCK = TypeAdapter(InputBlock)
_ERRORS = {kind.__name__: kind for kind in (UserError, RefusedSource, Unreachable, StorageOutage)}
"""Kinds of a user's mistakes, by the names under which they come back from a task."""


class RayExecutor:
    """Execution of blocks as tasks of Ray Data: a core each, and a GPU where the work takes one and
    there are any.

    Ray must be connected. A task whose worker or node is lost runs again elsewhere. Ray Data
    promises neither an order nor that a block is written once: blocks are numbered, and a block
    that is made twice gives the same files.
    """

    def run(self, work: BlockWork, blocks: Sequence[InputBlock]) -> Receipts:
        """Yield the receipts of blocks as they are done.

        Raises UserError as the work does, and RunFailed where Ray cannot go on.
        """
        import ray.data

        from ditlab.cluster.ray_failures import unwrap

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        takes_gpu = has_gpus and getattr(work, "uses_gpu", False)
        items = [{"block": _BLOCK.dump_json(block).decode()} for block in blocks]
        data = ray.data.from_items(items, override_num_blocks=len(items)).map(
            partial(_import_block, work),
            num_cpus=1,
            num_gpus=1 if takes_gpu else None,
        )
        try:
            for row in data.iter_rows():
                if row["error"]:
                    raise _ERRORS.get(row["error"], UserError)(row["message"])
                yield BlockReceipt.model_validate_json(row["receipt"])
        except ray.exceptions.RayError as error:
            cause = unwrap(error) or error
            raise RunFailed(
                f"Ray cannot go on with the import ({type(cause).__name__}: "
                f"{first_line(cause)}); give the same command again, which goes on from its "
                "whole blocks."
            ) from error


def _import_block(work: BlockWork, row: dict[str, Any]) -> dict[str, str]:
    """Do the work of a row of Ray Data, a block. A user's mistake comes back as a value, as Ray
    wraps errors.
    """
    try:
        return {
            "receipt": work(_BLOCK.validate_json(row["block"])).model_dump_json(),
            "error": "",
            "message": "",
        }
    except UserError as error:
        return {"receipt": "", "error": type(error).__name__, "message": str(error)}


@contextmanager
def ray_executor(
    address: str, out: Path, source: str | None, warn: Callable[[str], None]
) -> Iterator[BlockExecutor]:
    """Connect to a cluster for the length of the block, after a check that its nodes see the
    folders.

    `source`: a path or URI; None where all input lies below `out`. Raises UserError where nothing
    answers at the address, and for a folder that the nodes do not share.
    """
    with ray_session(address, 0, warn):
        from ditlab.cluster.nodes import alive_nodes, run_on_nodes
        from ditlab.cluster.survey import probe_file

        local = None
        if source is not None and not is_uri(source) and Path(source).exists():
            local = str(Path(source).absolute())
        with probe_file(out.absolute(), f"--out={out}", "choose another folder") as probe:
            arguments = (str(out.absolute() / probe), probe, local)
            results = run_on_nodes(
                alive_nodes(), probe_node, *arguments, timeout=PROBE_TIMEOUT, by_value=True
            )
        for result in results:
            if result.problem:
                warn(f"warning: node {result.name} sent no report ({result.problem}).")
            elif result.value:
                raise UserError(
                    REMEDIES[result.value[0]].format(node=result.name, out=out, source=source)
                )
        yield RayExecutor()
