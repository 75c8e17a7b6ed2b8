"""A save that is cut short anywhere leaves the checkpoint before it or the new one, whole."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ditlab.checkpoints.store import CheckpointStore
from support.checkpoints import is_step, manifest, save, saver, state

SUPPORT = Path(__file__).parents[2] / "support"
KILL, TORN, ERROR, COUNT = 1, 2, 3, 4


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    built = tmp_path_factory.mktemp("shim") / "interrupting.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-o", built, SUPPORT / "interrupting.c", "-ldl"], check=True, timeout=60
    )
    return built


def interrupted(shim, root, how, number=0, scenario="new"):
    environment = {**os.environ, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, SUPPORT / "interrupted_saves.py", root, str(how), str(number), scenario]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("how, scenario", [(KILL, "new"), (KILL, "damaged"), (KILL, "again"), (TORN, "new")])
def test_a_kill_at_any_change_of_files(shim, tmp_path, how, scenario):
    """`damaged` and `again`: step 2 has been committed before, broken or whole."""
    endings = interrupted(shim, tmp_path, how, scenario=scenario)
    assert len(endings) > 12 and {ending["ended"] for ending in endings} == {"killed"}
    found = []
    for ending in endings:
        place = Path(ending["place"])
        found.append(2 if is_step(place, 2) else 1)
        assert is_step(place, found[-1])
        # The next attempt at the step: nothing that was left stands in its way, or stays.
        assert save(place, 2, keep=1).error is None and is_step(place, 2)
        (folder,) = place.iterdir()
        assert len(list(folder.iterdir())) == 2
    assert found == sorted(found)
    assert set(found) == ({2} if scenario == "again" else {1, 2})


@pytest.mark.parametrize(
    "number, scenario", [(errno.ENOSPC, "new"), (errno.ENOSPC, "damaged"), (errno.ENOSPC, "again"), (errno.EIO, "new")]
)
def test_an_error_at_any_change_of_files(shim, tmp_path, number, scenario):
    endings = interrupted(shim, tmp_path, ERROR, number, scenario)
    assert {ending["ended"] for ending in endings} == {"saved", "told"}
    before = {file.name for file in (tmp_path / "template").rglob("*")}
    for ending in endings:
        place = Path(ending["place"])
        if ending["ended"] == "told" and not is_step(place, 2):
            assert is_step(place, 1)
            assert {file.name for file in place.rglob("*")} == before, "the failed save left something"
        else:
            assert is_step(place, 2)
        assert save(place, 3, keep=1).error is None and is_step(place, 3)


def test_everything_is_on_disk_before_it_counts(shim, tmp_path):
    """The order that a loss of power asks for: data, its folder entry, then the manifest, then its folder entry."""
    interrupted(shim, tmp_path, COUNT)
    trace = (tmp_path / "001.trace").read_text().splitlines()
    kinds = [re.sub(r"-\d{5}-of.*|\.[0-9a-f]{8}(?=\.partial)", "", line) for line in trace]
    step = "/step-00000002"
    order = [
        f"write {step}/shard", f"fsync {step}/shard", f"fsync {step}", "fsync ", f"write {step}/manifest.json.partial",
        f"fsync {step}/manifest.json.partial", f"rename {step}/manifest.json", f"fsync {step}",
        "unlink /step-00000001/manifest.json",
    ]  # fmt: skip
    position = -1
    for entry in order:
        position = kinds.index(entry, position + 1)
    assert not any("shard" in kind for kind in kinds[kinds.index(order[4]) : position])


def test_a_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    try:
        assert save(disk / "run", 1).error is None
        filler = disk / "filler"
        with pytest.raises(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        failed = save(disk / "run", 2)
        assert failed.kind == "write" and "No space left on device" in str(failed.error)
        assert is_step(disk / "run", 1) and CheckpointStore.at(disk / "run").steps() == [1]
        filler.unlink()
        one = saver(disk / "run")
        one.save(manifest(2), state(2))
        assert one.wait().error is None and is_step(disk / "run", 2)
    finally:
        subprocess.run(["umount", disk], check=True)
