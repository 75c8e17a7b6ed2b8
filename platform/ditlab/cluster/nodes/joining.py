"""Check of a node by its own worker: a node that joined after the launch was not surveyed."""

import time

from ditlab.cluster.nodes.membership import node_name
from ditlab.cluster.nodes.report import FILE_TIMEOUT, versions
from ditlab.cluster.nodes.verdict import NodeReport, NodeRequirements, unshared_faults, version_faults
from ditlab.errors import UserError
from ditlab.runs.request import RunRequest
from ditlab.spec.plugin_packages import plugin_packages


def check_joining_node(request: RunRequest) -> None:
    """Raises UserError where this node has other versions than the launcher, or does not see the run's folder.

    Checks nothing where the request names no versions. The message is the survey's.
    """
    if not request.versions:
        return
    packages = plugin_packages(request.experiment.to_dict())
    report = NodeReport(node_name(), True, versions(packages=packages), home=_folder_problem(request))
    required = NodeRequirements(request.versions, str(request.home.root))
    faults = [*version_faults([report], [report], required.versions), *unshared_faults([report], required)]
    if faults:
        raise UserError(faults[0])


def _folder_problem(request: RunRequest) -> str:
    """Reason why the run's folder cannot be used here; empty where it is visible."""
    folder, deadline = request.folder.path, time.monotonic() + FILE_TIMEOUT
    while not folder.is_dir():
        if time.monotonic() > deadline:
            return f"the run's folder train/{request.run_id} is not there"
        time.sleep(0.2)
    return ""
