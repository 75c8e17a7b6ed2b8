"""Faults planted in a copy of the code: `ditlab prove` names each, and the copy without one
proves.
"""

import re

import pytest

from support.planted.copies import CHECKOUT, copies
from support.planted.faults import FAULTS, SPECS


def test_each_fault_replaces_what_is_there_once():
    for fault in FAULTS:
        for change in fault.replacements:
            found = (CHECKOUT / change.file).read_text(encoding="utf-8").count(change.old)
            assert found == 1, f"{fault.name}: {change.file} holds {found} times {change.old!r}"
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 20


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    with copies(tmp_path_factory.mktemp("copies")) as code:
        yield code


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_the_copy_proves(code, spec):
    answer = code.run(None, SPECS[spec], ["prove", "spec.yaml"])
    assert answer.code == 0, answer.out + answer.err


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_named(code, fault):
    settings = [part for value in fault.settings for part in ("--set", value)]
    answer = code.run(fault, SPECS[fault.spec], ["prove", "spec.yaml", *settings, "--json"])
    assert answer.code == 1, answer.out + answer.err
    first = answer.json["verdict"].partition("First off: ")[2]
    assert re.match(fault.named, first), first
    ended_early = any(each.startswith("Training ended early") for each in answer.json["untold"])
    assert ended_early == (fault.name == "moments swapped at resume"), answer.json["untold"]
