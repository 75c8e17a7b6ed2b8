"""The verdict on a cluster's nodes before a run, from reports made by hand."""

from dataclasses import replace

import pytest

from ditlab.cluster.survey import NodeReport, node_faults, node_warnings
from support.clusters.reports import GOOD, HEAD, OWN, REQUIRED


def of(name, version, report=GOOD):
    return replace(report, versions={**OWN, name: version})


def only_fault(*reports, everywhere=False):
    faults = node_faults(reports, REQUIRED, everywhere)
    assert len(faults) == 1, faults
    return faults[0]


def test_nodes_that_agree_have_no_faults():
    reports = [GOOD, replace(GOOD, name="gpu-2")]
    assert (node_faults(reports, REQUIRED), node_warnings(reports, OWN)) == ([], [])


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("torch", "2.9.1", ["torch 2.9.1", "torch 2.8.0", "install the same on every node"]),
        ("deepspeed", "", ["deepspeed is not installed", "deepspeed 0.19.8"]),
        ("python", "3.12.1", ["python 3.12.1", "python 3.11.7"]),
        ("ditlab", "0.1.0-000000000000", ["0.1.0-000000000000", OWN["ditlab"], "ditlab submit"]),
        ("wavelets", "", ["wavelets is not installed", "and wavelets 1.2 where the run is"]),
        ("ditlab_models/wave", "", ["ditlab_models/wave is not installed"]),
    ],
)
def test_another_version_is_one_sentence_with_package_node_and_both_versions(name, version, words):
    sentence = only_fault(GOOD, of(name, version, replace(GOOD, name="gpu-2 (10.0.0.8/aa)")))
    assert all(word in sentence for word in [*words, "gpu-2 (10.0.0.8/aa)"])
    assert "gpu-1" not in sentence and sentence.endswith(".") and "\n" not in sentence


def test_builds_of_torch_and_patches_of_python_may_differ():
    assert not node_faults([of("torch", "2.8.0+cu128"), of("python", "3.11.9")], REQUIRED)


def test_other_packages_are_worth_a_note():
    reports = [of("mlflow", "3.18.0")]
    assert not node_faults(reports, REQUIRED) and "mlflow 3.18.0" in node_warnings(reports, OWN)[0]


def test_what_is_not_shared_names_knob_value_node_and_reason():
    sentence = only_fault(GOOD, replace(GOOD, name="gpu-2", home="it is not there"))
    assert "DITLAB_HOME=/shared/runs" in sentence and "gpu-2 (it is not there)" in sentence
    sentence = only_fault(replace(GOOD, storage="it is not there"))
    assert "checkpoint.storage=/shared/checkpoints is not shared" in sentence


def test_a_store_that_a_node_may_not_read_needs_credentials():
    required = replace(REQUIRED, storage="s3://bucket/x")
    (sentence,) = node_faults([replace(GOOD, storage="OSError: ACCESS_DENIED")], required)
    assert "s3://bucket/x" in sentence and "ACCESS_DENIED" in sentence and "credentials" in sentence


def test_a_node_without_ditlab_is_one_fault_with_its_remedy():
    bare = NodeReport(
        "gpu-2", True, {"python": "3.11.7"}, "ModuleNotFoundError: No module named 'ditlab'"
    )
    sentence = only_fault(GOOD, bare)
    assert "gpu-2" in sentence and "ditlab submit" in sentence


def test_a_head_that_only_drives_needs_no_ditlab_unless_trials_may_be_led_there():
    assert not node_faults([HEAD, GOOD], REQUIRED)
    assert "head" in only_fault(HEAD, GOOD, everywhere=True)
    assert "ray 2.1.0" in only_fault(replace(HEAD, versions={"ray": "2.1.0"}))


@pytest.mark.parametrize(("skew", "words"), [(8.2, "8 s ahead of"), (-61.0, "61 s behind")])
def test_a_clock_that_is_wrong_is_a_warning(skew, words):
    reports = [replace(GOOD, skew=skew), replace(GOOD, skew=4.0)]
    (warning,) = node_warnings(reports, OWN)
    assert not node_faults(reports, REQUIRED) and words in warning and GOOD.name in warning
