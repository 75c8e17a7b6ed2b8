"""Who may come in: whether the cluster wants a token, and where its job server listens."""

import ipaddress
import urllib.error
import urllib.request
from dataclasses import dataclass

import psutil
import ray

from ditlab.cluster.nodes.tasks import NodeRow, run_on_nodes
from ditlab.doctor.findings import Finding

HEAD = "node:__internal_head__"  # the resource by which Ray marks the head
TUNNEL = "start the head with --dashboard-host=127.0.0.1, and reach it through an SSH tunnel"


@dataclass(frozen=True)
class Exposure:
    """As found on the head."""

    url: str
    """HOST:PORT of the job server; empty where there is none."""
    status: int | None
    """HTTP status of a request without a token; None where nothing answers."""
    listening: tuple[str, ...]
    """Addresses that its port listens on."""
    wants_token: bool
    """Whether this process had to show a token itself."""


def read_exposure(nodes: list[NodeRow], patience: float) -> Exposure:
    """Asks the head."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    url = str(ray._private.worker._global_node.webui_url or "")  # no public name exists
    heads = [node for node in nodes if HEAD in node["Resources"]]
    status, listening = None, ()
    if url and heads:
        (answer,) = run_on_nodes(heads, job_server, url, patience=patience)
        if not answer.problem:
            status, listening = answer.value
    return Exposure(url, status, tuple(listening), is_token_auth_enabled())


def job_server(url: str) -> tuple[int | None, list[str]]:
    """On the head: what a request without a token is answered with, and the addresses that the port listens on."""
    port = int(url.rpartition(":")[2])
    listening = {
        each.laddr.ip for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.laddr.port == port
    }
    try:
        with urllib.request.urlopen(f"http://{url}/api/jobs/", timeout=10) as answer:
            return answer.status, sorted(listening)
    except urllib.error.HTTPError as error:
        return error.code, sorted(listening)
    except OSError:
        return None, sorted(listening)


def judge_exposure(doors: Exposure) -> list[Finding]:
    """Purely."""
    is_closed = doors.status in (401, 403) if doors.status is not None else doors.wants_token
    if is_closed:
        found = "on" + (f": without a token the job server answers {doors.status}" if doors.status else "")
        findings = [Finding("ok", "token", found)]
    else:
        remedy = "start every node with RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        findings = [Finding("missing", "token", "off: whoever reaches the cluster runs code on it", remedy)]
    if not doors.url:
        return [*findings, Finding("note", "job server", "none", "for `ditlab submit`, the head needs ray[default]")]
    outside = [each for each in doors.listening if not ipaddress.ip_address(each).is_loopback]
    if outside:
        found = f"{doors.url} listens on {', '.join(outside)}, for the network"
        findings.append(Finding("note" if is_closed else "missing", "job server", found, TUNNEL))
    elif doors.listening:
        findings.append(Finding("ok", "job server", f"{doors.url}, on loopback alone"))
    else:
        findings.append(Finding("note", "job server", f"{doors.url}, where nothing listens", "look at the head's logs"))
    return findings
