"""Exposure of a cluster: whether it requires a token, and the addresses that its job server listens on."""

import ipaddress
import urllib.error
import urllib.request
from dataclasses import dataclass

import psutil

from ditlab.cluster.access import token_required
from ditlab.cluster.autoscaling import HEAD_RESOURCE
from ditlab.cluster.nodes.tasks import NodeRow, run_on_nodes
from ditlab.cluster.session import job_server_address
from ditlab.doctor.findings import Finding

TUNNEL = "start the head with --dashboard-host=127.0.0.1, and reach it through an SSH tunnel"


@dataclass(frozen=True)
class Exposure:
    """Access to the head, as found there."""

    address: str
    """HOST:PORT of the job server; empty where there is none."""
    status: int | None
    """HTTP status of a request without a token; None where nothing answers."""
    listening: tuple[str, ...]
    """Addresses that the job server's port listens on."""
    token_required: bool
    """True if this process itself had to send a token."""


def read_exposure(nodes: list[NodeRow], timeout: float) -> Exposure:
    """Exposure of the connected cluster, found by a task on its head."""
    address = job_server_address()
    heads = [node for node in nodes if HEAD_RESOURCE in node["Resources"]]
    status, listening = None, ()
    if address and heads:
        (result,) = run_on_nodes(heads, probe_job_server, address, timeout=timeout)
        if not result.problem:
            status, listening = result.value
    return Exposure(address, status, tuple(listening), token_required())


def probe_job_server(address: str) -> tuple[int | None, list[str]]:
    """HTTP status of a request without a token, and the addresses that the port listens on. Runs on the head."""
    port = int(address.rpartition(":")[2])
    listening = {
        each.laddr.ip for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.laddr.port == port
    }
    try:
        with urllib.request.urlopen(f"http://{address}/api/jobs/", timeout=10) as answer:
            return answer.status, sorted(listening)
    except urllib.error.HTTPError as error:
        return error.code, sorted(listening)
    except OSError:
        return None, sorted(listening)


def judge_exposure(exposure: Exposure) -> list[Finding]:
    """Findings on the token and the job server: a pure decision."""
    is_closed = exposure.status in (401, 403) if exposure.status is not None else exposure.token_required
    if is_closed:
        found = "on" + (f": without a token the job server answers {exposure.status}" if exposure.status else "")
        findings = [Finding("ok", "token", found)]
    else:
        remedy = "start every node with RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        findings = [Finding("missing", "token", "off: whoever reaches the cluster runs code on it", remedy)]
    if not exposure.address:
        return [*findings, Finding("note", "job server", "none", "for `ditlab submit`, the head needs ray[default]")]
    outside = [each for each in exposure.listening if not ipaddress.ip_address(each).is_loopback]
    if outside:
        found = f"{exposure.address} listens on {', '.join(outside)}, for the network"
        findings.append(Finding("note" if is_closed else "missing", "job server", found, TUNNEL))
    elif exposure.listening:
        findings.append(Finding("ok", "job server", f"{exposure.address}, on loopback alone"))
    else:
        remedy = "look at the head's logs"
        findings.append(Finding("note", "job server", f"{exposure.address}, where nothing listens", remedy))
    return findings
