"""The findings of `ditlab doctor --cluster`, from reports and measurements made by hand."""

import socket
from dataclasses import replace

import pytest

from ditlab.cluster.allreduce import AllReduceMember, AllReduceResult
from ditlab.cluster.nodes import TaskResult
from ditlab.cluster.survey import NodeReport, NodeRequirements
from ditlab.doctor.findings import (
    all_reduce_findings,
    report_findings,
    speed_findings,
    token_finding,
    tracking_findings,
)
from ditlab.doctor.machine import Finding, last_sentence

OWN = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.8.0", "mlflow": "3.17.2", "ditlab": "0.1.0-3f9a01bc22d4"}
GOOD = NodeReport("a (10.0.0.7/3f9a01bc)", True, OWN, home_free=50 << 30, cache_free=9 << 30)
REQUIRED = NodeRequirements(OWN, "/shared/runs", "s3://bucket/runs")


def verdicts(findings: list[Finding]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in findings:
        found.setdefault(each.what, []).append(each.verdict)
    return found


def test_a_cluster_that_agrees_is_ok_throughout():
    head = NodeReport("head", False, {"python": "3.11.7", "ray": "2.60.0"}, "No module named 'ditlab'")
    findings = report_findings([GOOD, replace(GOOD, name="b"), head], [], REQUIRED)
    assert {each.verdict for each in findings} == {"ok"}
    assert last_sentence(findings) == "ready for a long run."


@pytest.mark.parametrize(
    ("report", "what", "verdict"),
    [
        (replace(GOOD, versions={**OWN, "torch": "2.9.0"}), "versions", "missing"),
        (replace(GOOD, versions={**OWN, "mlflow": "3.18.0"}), "versions", "note"),
        (replace(GOOD, problem="no"), "versions", "missing"),
        (replace(GOOD, skew=9.0), "clocks", "note"),
        (replace(GOOD, home="it is not there"), "DITLAB_HOME", "missing"),
        (replace(GOOD, storage="ACCESS_DENIED"), "checkpoint.storage", "missing"),
        (replace(GOOD, home_free=1 << 30), "disk of DITLAB_HOME", "note"),
        (replace(GOOD, cache_free=1 << 30), "disk of DITLAB_CACHE", "note"),
    ],
)
def test_what_is_wrong_on_one_node_has_its_line(report, what, verdict):
    findings = report_findings([GOOD, replace(report, name="b")], [], REQUIRED)
    assert verdicts(findings)[what] == [verdict]
    (line,) = [each for each in findings if each.what == what]
    assert "b" in line.found and line.remedy
    ready = last_sentence(findings)
    assert what in ready and ready.startswith("not ready" if verdict == "missing" else "ready for a long run (")


def test_a_node_that_does_not_answer_is_missing():
    assert verdicts(report_findings([GOOD], ["node b sent no report (no answer in 120 s); wait."], REQUIRED))[
        "nodes"
    ] == [
        "ok",
        "missing",
    ]


def result(node: str, value: float, problem: str = "") -> TaskResult:
    return TaskResult(
        {"NodeManagerHostname": node, "NodeManagerAddress": "10.0.0.1", "NodeID": "0" * 56}, value, problem
    )


def test_speeds_are_in_megabytes_a_second_and_slow_ones_noted():
    written, read = speed_findings("DITLAB_HOME", [result("a", 250e6), result("b", 40e6)], [result("a", 300e6)])
    assert (written.verdict, read.verdict) == ("note", "ok")
    assert "250 MB/s" in written.found and "40 MB/s" in written.found and "100 MB/s" in written.remedy
    (refused,) = speed_findings("checkpoint.storage", [result("a", 0, "ACCESS_DENIED")], [])
    assert refused.verdict == "missing" and "a (10.0.0.1/00000000): ACCESS_DENIED" in refused.found


def test_bus_bandwidth_is_that_of_nccl_tests():
    measured = AllReduceResult({1 << 20: 0.001, 64 << 20: 0.5}, True, 4, [])
    assert measured.bus_bandwidth(64 << 20) == pytest.approx(1.5 * (64 << 20) / 0.5)
    small, large = all_reduce_findings(measured, use_gpu=False)
    assert "64 MiB" in large.what and "0.20 GB/s" in large.found and large.verdict == "ok"
    assert all_reduce_findings(measured, use_gpu=True)[1].verdict == "note"  # for GPUs, 0.2 GB/s are few
    assert small.verdict == "ok"


def test_a_wrong_sum_and_a_group_that_fails_are_missing():
    assert all_reduce_findings(AllReduceResult({1 << 20: 0.1}, False, 2, []), False)[0].verdict == "missing"
    (line,) = all_reduce_findings(
        AllReduceResult({}, False, 2, ["node a does not reach node b at 10.0.0.8 (timed out)"]), False
    )
    assert line.verdict == "missing" and "node a does not reach node b" in line.found and "ports" in line.remedy


def test_tracking_is_checked_from_every_node():
    assert tracking_findings("sqlite:////shared/mlflow.db", {})[0].verdict == "note"
    assert tracking_findings("http://host:5000", {"a": "", "b": ""})[0].verdict == "ok"
    (line,) = tracking_findings("http://host:5000", {"a": "", "b": "does not answer (timed out)"})
    assert line.verdict == "missing" and "from b" in line.found


@pytest.mark.parametrize(
    ("status", "token", "expected"),
    [(401, True, "ok"), (200, True, "missing"), (200, False, "missing"), (None, False, "missing"), (None, True, "ok")],
)
def test_a_token_that_is_not_required_is_missing(status, token, expected):
    assert token_finding(status, token).verdict == expected


def test_a_port_where_nobody_answers_is_found_in_time():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        host, port = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]  # the queue is full: the next one is not answered
        for each in waiting:
            each.setblocking(False)
            each.connect_ex((host, port))
        assert "timed out" in AllReduceMember().connection_error(host, port, 0.5)
        for each in waiting:
            each.close()
    with socket.create_server(("127.0.0.1", 0)) as open_port:
        assert AllReduceMember().connection_error(*open_port.getsockname(), 0.5) == ""
    assert "refused" in AllReduceMember().connection_error(host, port, 0.5)
