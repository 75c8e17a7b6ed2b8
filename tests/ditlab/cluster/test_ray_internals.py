"""Ray's internals are where DiTLab takes them from, and in one file."""

import re
from pathlib import Path

import pytest

from ditlab.cluster import ray_internals
from ditlab.cluster.ray_internals import INTERNALS, ray_internal

PLATFORM = Path(ray_internals.__file__).parents[1]


@pytest.mark.parametrize("name", INTERNALS)
def test_a_name_is_there(name):
    found = ray_internal(name)
    assert found is not None or name == "_global_node", "it is None without a cluster"


def test_a_name_that_has_moved_is_one_sentence_with_the_version(monkeypatch):
    monkeypatch.setattr(ray_internals, "INTERNALS", {"gone": "ray._private.worker"})
    with pytest.raises(
        RuntimeError,
        match=r"Ray 2\.\d+\.\d+ has moved ray\._private\.worker\.gone.*pip install 'ray",
    ):
        ray_internal("gone")


def test_no_other_file_uses_them():
    private = re.compile(
        r"\bray\.(_private|_raylet|experimental)|\b_internal\b|internal_kv|_schedule_trial_train"
    )
    found = {
        str(path.relative_to(PLATFORM)): line
        for path in PLATFORM.rglob("*.py")
        if path.name != "ray_internals.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if private.search(line)
    }
    assert not found
