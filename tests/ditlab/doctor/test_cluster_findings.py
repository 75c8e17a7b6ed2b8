"""The findings of `ditlab doctor --cluster`, from reports and measurements made by hand."""

import os
import stat
from dataclasses import replace

import pytest

from ditlab.cluster.nodes import TaskResult
from ditlab.cluster.survey import NodeReport, NodeRequirements
from ditlab.doctor.cluster import (
    judge_exposure,
    report_findings,
    speed_findings,
    tracking_findings,
)
from ditlab.doctor.gpus import QUERY, judge_gpus, matmul_error, read_gpus
from ditlab.doctor.machine import Finding, last_sentence

OWN = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.8.0", "mlflow": "3.17.2", "ditlab": "0.1.0-3f9a01bc22d4"}
GOOD = NodeReport("a (10.0.0.7/3f9a01bc)", True, OWN, home_free=50 << 30, cache_free=9 << 30)
REQUIRED = NodeRequirements(OWN, "/shared/runs", "s3://bucket/runs")
CARD = "0, NVIDIA L40S, 570.86.15, 0, 0x0000000000000001, 491, 46068"  # of an idle one, as nvidia-smi prints it
IDLE = dict(zip(QUERY, CARD.split(", "), strict=True))


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


def test_tracking_is_checked_from_every_node():
    assert tracking_findings("sqlite:////shared/mlflow.db", {})[0].verdict == "note"
    assert tracking_findings("http://host:5000", {"a": "", "b": ""})[0].verdict == "ok"
    (line,) = tracking_findings("http://host:5000", {"a": "", "b": "does not answer (timed out)"})
    assert line.verdict == "missing" and "from b" in line.found


@pytest.mark.parametrize(
    ("status", "listening", "token", "expected"),
    [
        (401, ["127.0.0.1"], True, ["ok", "ok"]),
        (200, ["127.0.0.1"], True, ["missing", "ok"]),  # this process sends a token that is not required
        (401, ["0.0.0.0"], True, ["ok", "note"]),
        (200, ["10.0.0.1"], False, ["missing", "missing"]),
        (None, [], False, ["missing", "note"]),
        (None, [], True, ["ok", "note"]),
    ],
)
def test_exposure(status, listening, token, expected):
    findings = judge_exposure("127.0.0.1:8265", status, listening, token)
    assert [each.verdict for each in findings] == expected


def test_cards_are_read_from_nvidia_smi(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{CARD}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (card,) = read_gpus()
    assert card == IDLE
    (line,) = judge_gpus([("a", card)], [("a", 1e-6)])
    assert line.verdict == "ok" and "NVIDIA L40S" in line.found
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    with pytest.raises(RuntimeError, match="Driver/library version mismatch"):
        read_gpus()


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ({QUERY[3]: "3"}, "missing", "3 uncorrected"),
        ({QUERY[4]: "0x0000000000000040"}, "note", "heat"),
        ({QUERY[4]: "0x0000000000000004"}, "ok", "L40S"),  # the power cap is no fault
        ({"memory.used": str(20 << 10)}, "note", "20.0 of 45 GiB"),
        ({QUERY[3]: "[N/A]"}, "ok", "L40S"),
    ],
)
def test_cards_are_judged(change, verdict, words):
    (line,) = judge_gpus([("a", {**IDLE, **change})], [])
    assert line.verdict == verdict and words in line.found


def test_drivers_that_differ_and_cards_that_compute_wrongly():
    (line,) = judge_gpus([("a", IDLE), ("b", {**IDLE, "driver_version": "550.54"})], [])
    assert line.verdict == "note" and "550.54 on b; 570.86.15 on a" in line.found
    for error in (0.3, float("nan")):
        (line,) = judge_gpus([("a", IDLE)], [("a", error)])
        assert line.verdict == "missing" and "a" in line.what


def test_a_right_product_is_right():
    assert matmul_error("cpu") < 1e-5
