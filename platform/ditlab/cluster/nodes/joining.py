"""Check of a node by its own worker: a node that joined after the launch was not surveyed."""

import time
from collections.abc import Collection, Mapping

from ditlab.cluster.nodes.membership import node_name
from ditlab.cluster.nodes.report import FILE_TIMEOUT, versions
from ditlab.cluster.nodes.verdict import NodeReport, NodeRequirements, unshared_faults, version_faults
from ditlab.errors import UserError
from ditlab.home import Home


def check_joining_node(expected: Mapping[str, str], packages: Collection[str], home: Home, run_id: str) -> None:
    """Raises UserError where this node has other versions than the launcher, or does not see the run's folder.

    The message is the survey's.

    Args:
        expected: the launcher's versions by library.
        packages: packages that the experiment's parts come from.
        home: home of the run.
        run_id: the run.
    """
    report = NodeReport(node_name(), True, versions(packages=packages), home=_folder_problem(home, run_id))
    required = NodeRequirements(expected, str(home.root))
    faults = [*version_faults([report], [report], required.versions), *unshared_faults([report], required)]
    if faults:
        raise UserError(faults[0])


def _folder_problem(home: Home, run_id: str) -> str:
    """Reason why the run's folder cannot be used here; empty where it is visible."""
    folder, deadline = home.run(run_id).path, time.monotonic() + FILE_TIMEOUT
    while not folder.is_dir():
        if time.monotonic() > deadline:
            return f"the run's folder train/{run_id} is not there"
        time.sleep(0.2)
    return ""
