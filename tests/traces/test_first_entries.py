"""The ways of a spec and of a batch stay short, go downwards, and are those of
docs/architecture.md.
"""

import re

import pytest

from traces.first_entries import CHECKOUT, trace

PAGE = CHECKOUT / "docs" / "architecture.md"
LONGEST_SPEC = 22
LONGEST_BATCH = 24
"""Files of a way in one process."""
OVER_RAY = 5
"""Files that the worker group adds over Ray."""

# a training with a profile hook on every call: half a minute, over Ray two
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def local():
    return trace()


def table(heading: str) -> list[str]:
    """Files named in the second column of the table below a heading, in order."""
    section = PAGE.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| [\d-]+ \| `([^`]+)`", section, re.MULTILINE)


def plainly(files: list[str]) -> list[str]:
    """Files as the page writes them."""
    return [name.removeprefix("ditlab/") for name in files]


def test_the_way_of_a_spec_is_the_page_s(local):
    assert plainly(local["spec"]) == table("The way of a spec")
    assert len(local["spec"]) <= LONGEST_SPEC
    assert local["validations"] == [1]


def test_the_way_of_a_batch_is_the_page_s(local):
    assert plainly(local["batch"]) == table("The way of a batch")
    assert len(local["batch"]) <= LONGEST_BATCH


def test_calls_upwards_are_those_handed_down(local):
    """Every such call's two files stand in one row of the page's table."""
    rows = [
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ") and line.count("|") == 4
    ]
    for call in local["upward"]:
        caller, callee = plainly(call.split(" -> "))
        if caller.startswith("ditlab_models/processes/"):
            caller = "an objective"
        assert any(caller in row and callee in row for row in rows), call


def test_the_way_over_ray():
    found = trace(ray=True)
    assert len(found["spec"]) <= LONGEST_SPEC + OVER_RAY
    assert len(found["batch"]) <= LONGEST_BATCH + OVER_RAY
