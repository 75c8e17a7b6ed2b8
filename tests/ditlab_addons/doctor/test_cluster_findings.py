"""The findings of `ditlab doctor --cluster`, from reports and measurements made by hand."""

from dataclasses import replace
from itertools import product

import pytest

from ditlab.cluster.nodes import TaskResult
from ditlab_addons.doctor.cluster import (
    disk_findings,
    report_findings,
    speed_findings,
    token_finding,
    tracking_findings,
)
from ditlab_addons.doctor.machine import last_sentence
from support.clusters.reports import GOOD, HEAD, OWN, REQUIRED


def test_a_cluster_that_agrees_is_ok_throughout():
    findings = report_findings([GOOD, replace(GOOD, name="b"), HEAD], [], REQUIRED)
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
    ],
)
def test_what_is_wrong_on_one_node_has_its_line(report, what, verdict):
    findings = report_findings([GOOD, replace(report, name="b")], [], REQUIRED)
    (line,) = [each for each in findings if each.what == what]
    assert line.verdict == verdict and "b" in line.found and line.remedy
    ready = last_sentence(findings)
    assert what in ready
    assert ready.startswith("not ready" if verdict == "missing" else "ready for a long run (")


def test_a_node_that_does_not_answer_is_missing():
    silent = ["node b sent no report (no answer in 120 s); wait."]
    findings = report_findings([GOOD], silent, REQUIRED)
    assert [each.verdict for each in findings if each.what == "nodes"] == ["ok", "missing"]


def result(node, value, problem=""):
    return TaskResult(
        {"NodeManagerHostname": node, "NodeManagerAddress": "10.0.0.1", "NodeID": "0" * 56},
        value,
        problem,
    )


@pytest.mark.parametrize(
    ("home", "cache", "verdicts"),
    [(50, 9, ["ok", "ok"]), (1, 9, ["note", "ok"]), (50, 1, ["ok", "note"])],
)
def test_the_node_with_the_least_room_is_named(home, cache, verdicts):
    roomy = result("a", {"DITLAB_HOME": 50 << 30, "DITLAB_CACHE": 9 << 30})
    other = result("b", {"DITLAB_HOME": home << 30, "DITLAB_CACHE": cache << 30})
    found = list(disk_findings([roomy, other]))
    assert [each.what for each in found] == ["disk of DITLAB_HOME", "disk of DITLAB_CACHE"]
    assert [each.verdict for each in found] == verdicts
    for each in found:
        is_low = each.verdict == "note"
        assert is_low == bool(each.remedy) == each.found.startswith("1.0 GiB free on b (")
        assert each.found.endswith(", the least")
    (failed, *_) = disk_findings([result("c", None, "no answer in 120 s"), roomy])
    assert failed.verdict == "missing"
    assert "c (10.0.0.1/00000000): no answer in 120 s" in failed.found


def test_speeds_are_in_megabytes_a_second_and_slow_ones_noted():
    written, read = speed_findings(
        "DITLAB_HOME", [result("a", 250e6), result("b", 40e6)], [result("a", 300e6)]
    )
    assert (written.verdict, read.verdict) == ("note", "ok")
    assert "250 MB/s" in written.found
    assert "40 MB/s" in written.found
    assert "100 MB/s" in written.remedy
    (refused,) = speed_findings("checkpoint.storage", [result("a", 0, "ACCESS_DENIED")], [])
    assert refused.verdict == "missing" and "a (10.0.0.1/00000000): ACCESS_DENIED" in refused.found


def test_tracking_is_checked_from_every_node():
    assert tracking_findings("sqlite:////shared/mlflow.db", {})[0].verdict == "note"
    assert tracking_findings("http://host:5000", {"a": "", "b": ""})[0].verdict == "ok"
    (line,) = tracking_findings("http://host:5000", {"a": "", "b": "does not answer (timed out)"})
    assert line.verdict == "missing" and "from b" in line.found


def test_a_token_that_is_not_required_is_missing():
    closed = {(401, True), (401, False), (None, True)}
    for answer in product((401, 200, None), (True, False)):
        verdict = token_finding(*answer).verdict
        assert verdict == ("ok" if answer in closed else "missing"), answer
