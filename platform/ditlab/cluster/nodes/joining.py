"""A worker's own look at its node: one that joined after the launch was not surveyed."""

import time

from ditlab.cluster.nodes.membership import node_name
from ditlab.cluster.nodes.report import PATIENCE, versions
from ditlab.cluster.nodes.verdict import NodeReport, Wanted, differing, unshared
from ditlab.errors import UserError
from ditlab.runs.request import RunRequest


def check_newcomer(request: RunRequest) -> None:
    """Raises UserError, in the survey's words, where this node has other versions than the launcher, or does not see
    the run's folder. Looks at nothing where the request names no versions."""
    if not request.versions:
        return
    report = NodeReport(node_name(), True, versions(), home=_unseen(request))
    wanted = Wanted(request.versions, request.home)
    if faults := [*differing([report], [report], wanted.versions), *unshared([report], wanted)]:
        raise UserError(faults[0])


def _unseen(request: RunRequest) -> str:
    folder, deadline = request.folder().path, time.monotonic() + PATIENCE
    while not folder.is_dir():
        if time.monotonic() > deadline:
            return f"the run's folder train/{request.run_id} is not there"
        time.sleep(0.2)
    return ""
