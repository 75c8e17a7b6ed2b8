"""A save that is cut short anywhere leaves a whole checkpoint, the one before or the new one."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.trainings.checkpoints import is_step, save

SUPPORT = Path(__file__).parents[2] / "support" / "trainings"
KILL, TORN, ERROR, COUNT = 1, 2, 3, 4


SCENARIOS = ("new", "damaged", "again")
KILLS = [*((KILL, 0, each) for each in SCENARIOS), (TORN, 0, "new")]
ERRORS = [*((ERROR, errno.ENOSPC, each) for each in SCENARIOS), (ERROR, errno.EIO, "new")]
UNTOUCHED = (COUNT, 0, "new")


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """A library that is preloaded to interrupt changes of files."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    built = tmp_path_factory.mktemp("shim") / "interrupting.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-o", built, SUPPORT / "interrupting.c", "-ldl"],
        check=True,
        timeout=60,
    )
    return built


@pytest.fixture(scope="module")
def interrupted(shim, tmp_path_factory):
    """Folder and endings of the saves of each plan (how, errno, scenario), all run by one
    process.
    """
    plans = [*KILLS, *ERRORS, UNTOUCHED]
    roots = {plan: tmp_path_factory.mktemp("saves") for plan in plans}
    arguments = [":".join([str(roots[plan]), *map(str, plan)]) for plan in plans]
    done = subprocess.run(
        [sys.executable, SUPPORT / "interrupted_saves.py", *arguments],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    endings = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        plan: (root, [one for one in endings if one["root"] == str(root)])
        for plan, root in roots.items()
    }


@pytest.mark.parametrize("plan", KILLS, ids=str)
def test_a_kill_at_any_change_of_files(interrupted, plan):
    """In the scenarios `damaged` and `again`, step 2 has been committed before, and is then damaged
    or whole.
    """
    _, endings = interrupted[plan]
    assert len(endings) > 12 and {ending["ended"] for ending in endings} == {"killed"}
    found = []
    for ending in endings:
        place = Path(ending["place"])
        found.append(2 if is_step(place, 2) else 1)
        assert is_step(place, found[-1])
        # The next attempt at the step succeeds in spite of leftovers, and leaves none.
        assert save(place, 2, keep=1).error is None and is_step(place, 2)
        (folder,) = place.iterdir()
        assert len(list(folder.iterdir())) == 2
    assert found == sorted(found)
    assert set(found) == ({2} if plan[2] == "again" else {1, 2})


@pytest.mark.parametrize("plan", ERRORS, ids=str)
def test_an_error_at_any_change_of_files(interrupted, plan):
    root, endings = interrupted[plan]
    assert {ending["ended"] for ending in endings} == {"saved", "reported"}
    before = {file.name for file in (root / "template").rglob("*")}
    for ending in endings:
        place = Path(ending["place"])
        if ending["ended"] == "reported" and not is_step(place, 2):
            assert is_step(place, 1)
            assert {file.name for file in place.rglob("*")} == before, (
                "the failed save left something"
            )
        else:
            assert is_step(place, 2)
        assert save(place, 3, keep=1).error is None and is_step(place, 3)


def test_everything_is_on_disk_before_it_counts(interrupted):
    """The order survives a power cut: data, its folder entry, then the manifest, then its folder
    entry.
    """
    root, _ = interrupted[UNTOUCHED]
    trace = (root / "001.trace").read_text().splitlines()
    kinds = [re.sub(r"-\d{5}-of.*|\.[0-9a-f]{8}(?=\.part$)", "", line) for line in trace]
    step = "/step-00000002"
    order = [
        f"write {step}/shard",
        f"fsync {step}/shard",
        f"fsync {step}",
        "fsync ",
        f"write {step}/.manifest.json.part",
        f"fsync {step}/.manifest.json.part",
        f"rename {step}/manifest.json",
        f"fsync {step}",
        "unlink /step-00000001/manifest.json",
    ]
    position = -1
    for entry in order:
        position = kinds.index(entry, position + 1)
    assert not any("shard" in kind for kind in kinds[kinds.index(order[4]) : position])
