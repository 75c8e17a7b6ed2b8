"""A run goes on from another run's checkpoint, and has a whole one at every moment."""

import itertools
import os
import shutil
from pathlib import Path

import pytest
import torch

from ditlab.checkpoints.manifest import MANIFEST
from ditlab.checkpoints.start_point import take_over
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import Unreachable
from support.damage import refused
from support.trainings.checkpoints import (
    WEIGHT,
    edit_bytes,
    folder_of,
    manifest,
    saver,
    shard_of,
    state,
)

OWN, DONOR = 1, 2  # whose weights


def keep(place, *steps, of):
    """Checkpoints whose weights say whose they are."""
    for step in steps:
        one = saver(place)
        one.save(manifest(step), state(of))
        assert one.wait().error is None
        one.close()


def newest(place):
    """(step, whose) of the newest whole checkpoint; None where there is none."""
    reader = CheckpointStore.at(place).newest()
    if reader is None:
        return None
    with reader:
        weight = reader.weights()["weight"].flatten()
        (whose,) = (who for who in (OWN, DONOR) if torch.equal(weight, who * 100 + WEIGHT))
        return reader.manifest.step, whose


def files_in(folder):
    """Contents by path within a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def go(own, donor, step):
    return take_over(CheckpointStore.at(own), CheckpointStore.at(donor), step)


@pytest.fixture
def stores(tmp_path):
    """own: steps 10, 20, 30; donor: steps 10, 20."""
    own, donor = tmp_path / "own", tmp_path / "donor"
    keep(own, 10, 20, 30, of=OWN)
    keep(donor, 10, 20, of=DONOR)
    return own, donor


def test_the_donors_is_the_newest_and_earlier_ones_stay(stores):
    own, donor = stores
    before = files_in(donor)
    for _ in range(2):  # it can be done again
        assert go(own, donor, 20) == 20
        assert newest(own) == (20, DONOR)
        assert files_in(folder_of(own, 20)) == files_in(folder_of(donor, 20))
    assert CheckpointStore.at(own).steps() == [10, 20]
    assert not folder_of(own, 30).exists()
    shutil.rmtree(folder_of(own, 20))
    assert newest(own) == (10, OWN)
    assert files_in(donor) == before


def test_a_step_that_the_donor_has_pruned_becomes_its_newest(stores):
    own, donor = stores
    assert go(own, donor, 15) == 20
    assert newest(own) == (20, DONOR)
    shutil.rmtree(folder_of(donor, 20))
    assert go(own, donor, 20) == 10
    assert newest(own) == (10, DONOR) and CheckpointStore.at(own).steps() == [10]


def test_a_run_that_has_none_of_its_own(tmp_path):
    keep(tmp_path / "donor", 20, of=DONOR)
    assert go(tmp_path / "own", tmp_path / "donor", 20) == 20
    assert newest(tmp_path / "own") == (20, DONOR)


def test_a_donor_without_checkpoints_is_refused_and_nothing_is_lost(stores, tmp_path):
    own, _ = stores
    with refused("nobody holds no checkpoint to take over", Unreachable):
        go(own, tmp_path / "nobody", 20)
    assert newest(own) == (30, OWN)


def test_what_a_killed_copy_has_left_stands_in_no_ones_way(stores):
    own, donor = stores
    shard = shard_of(donor, 20)
    for left in (b"", shard.read_bytes()[:100], shard.read_bytes()):
        place = folder_of(own, 20)
        (place / shard.name).write_bytes(left)
        (place / f"{MANIFEST}.00000000.partial").write_bytes(b"{")
        assert newest(own)[1] == OWN
        go(own, donor, 20)
        assert newest(own) == (20, DONOR)
        assert files_in(place) == files_in(folder_of(donor, 20))
        shutil.rmtree(own)
        keep(own, 10, 20, 30, of=OWN)


def test_a_checkpoint_of_the_donor_that_is_damaged_is_passed_over(stores):
    """The copy says so itself, when it is opened: an earlier one of the run's own is taken."""
    own, donor = stores
    edit_bytes(shard_of(donor, 20), lambda raw: raw[:-1])
    go(own, donor, 20)
    assert newest(own) == (10, OWN)


class Killed(BaseException):
    """No handler of OSErrors, and no clean-up, comes after it."""


class Dying:
    """Counts changes of files, and from the nth on lets none happen."""

    def __init__(self, patch, nth, error):
        self.nth, self.error, self.count = nth, error, 0
        for name in ("unlink", "rmdir", "rename", "replace", "mkdir", "fsync"):
            patch.setattr(os, name, self.over(getattr(os, name)))
        opened = Path.open

        def opens(path, mode="r", *rest, **more):
            if mode[0] in "xwa":
                self.step()
            return opened(path, mode, *rest, **more)

        patch.setattr(Path, "open", opens)

    def over(self, change):
        def changed(*arguments, **more):
            self.step()
            return change(*arguments, **more)

        return changed

    def step(self):
        self.count += 1
        if self.count == self.nth or (self.count > self.nth and self.error is Killed):
            raise self.error() if self.error is Killed else self.error(5, "Input/output error")


@pytest.mark.parametrize("error", [Killed, OSError], ids=["killed", "an error"])
@pytest.mark.parametrize("steps", [(10, 20, 30), (20,), (10,), (30, 40)], ids=str)
def test_cut_short_anywhere_it_leaves_a_whole_one(tmp_path, steps, error):
    donor, template = tmp_path / "donor", tmp_path / "template"
    keep(donor, 20, of=DONOR)
    keep(template, *steps, of=OWN)
    allowed = {*((step, OWN) for step in steps), (20, DONOR)}
    seen = set()
    for nth in itertools.count(1):
        own = tmp_path / f"own-{nth}"
        shutil.copytree(template, own)
        with pytest.MonkeyPatch.context() as patch:
            dying = Dying(patch, nth, error)
            try:
                go(own, donor, 20)
                ended = True
            except (Killed, Unreachable):
                ended = False
        if ended and dying.count < nth:
            break
        seen.add(newest(own))
        assert seen <= allowed, f"at change {nth}"
        go(own, donor, 20)  # the next attempt
        assert newest(own) == (20, DONOR)
        assert files_in(folder_of(own, 20)) == files_in(folder_of(donor, 20))
    assert nth > 5 and len(seen) > 1
