"""A canary in the place of any file of a run, or beside them, never executes through any command,
and crashes none.
"""

import hashlib
import json
import pickle
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from ditlab.checkpoints.manifest import MANIFEST, CheckpointManifest, ShardDigest
from ditlab.home import RunFolder
from ditlab.tracking.records import update_record
from support.canary import KINDS
from support.command import run_here, run_process

LOADERS: dict[str, Callable[[Path], Any]] = {
    "pickle": lambda path: pickle.loads(path.read_bytes()),
    "torch": lambda path: torch.load(path, weights_only=False),
    "npy": lambda path: np.load(path, allow_pickle=True),
    "npz": lambda path: np.load(path, allow_pickle=True)["state"],
    "yaml": lambda path: yaml.unsafe_load(path.read_text()),
}
BAIT = (
    "latest",
    "checkpoint.pt",
    "model.pt",
    "optimizer.pt",
    "rng_state.pkl",
    "pytorch_model.bin",
    "zero_to_fp32.py",
    "mp_rank_00_model_states.pt",
    "zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "data.npz",
    "conftest.py",
    "config.yaml",
    "shard-00000-of-00001-00000000.safetensors",
    "model/python_model.pkl",
    "global_step4/mp_rank_00_model_states.pt",
)
COMMANDS = """\
runs
sample {run} --num 2
evaluate {run}
figures {run} --kind loss --kind samples
export {run} --out {out}
data inspect digits
validate {saved}
show {saved}
params {saved}
train {saved} --local --dry-run
runs sync {run}
runs sync
train {spec} --local --resume auto
train {spec} --local --resume {run} --set training.steps=6
"""
"""Every command that reads what a run left; the last ones write over some of it."""


@dataclass(frozen=True)
class Cage:
    """A home of its own with a run that is not finished, and the folder that must not appear."""

    home: Path
    run_id: str
    spec: Path
    marker: Path

    @property
    def run(self):
        return self.home / "train" / self.run_id

    def files(self, pattern="**/*"):
        return sorted(path for path in self.home.glob(pattern) if path.is_file())

    def plant(self, paths, kind):
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(KINDS[kind](self.marker))

    def commands(self):
        """Words of every command that reads what a run left."""
        places = {"run": self.run_id, "saved": self.run / "spec.yaml", "spec": self.spec}
        out = self.home.parent / "exported"
        return [line.format(**places, out=out).split() for line in COMMANDS.splitlines()]


@pytest.fixture
def cage(finished, tmp_path_factory):
    """Makes copies of the finished run that say that they were interrupted."""

    def make():
        folder = tmp_path_factory.mktemp("cage")
        made = Cage(folder / "home", finished.run_id, finished.spec, folder / "executed")
        shutil.copytree(finished.home, made.home)
        update_record(RunFolder(made.run), status="interrupted")
        marker = made.home / "home.json"
        marker.write_text(marker.read_text().replace(str(finished.home), str(made.home)))
        # it names its artifacts by absolute paths
        with sqlite3.connect(made.home / "mlflow.db") as database:
            for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
                database.execute(
                    f"UPDATE {table} SET {column} = replace({column}, ?, ?)",
                    (str(finished.home), str(made.home)),
                )
        return made

    return make


@pytest.fixture
def survives(capfd, monkeypatch):
    """Runs every command in a cage and fails where one executes the canary or crashes; gives the
    exit codes.
    """

    def run(cage, what):
        codes = []
        monkeypatch.setenv("DITLAB_HOME", str(cage.home))
        for command in cage.commands():
            try:
                said = run_here(capfd, monkeypatch, *command)
            except Exception as error:
                raise AssertionError(f"{what}: {command} crashed: {error!r}") from error
            check(said, cage, f"{what}: {command}")
            codes.append(said.code)
        return codes

    return run


def check(said, cage, what):
    assert not cage.marker.exists(), f"{what} executed the canary"
    assert "Traceback" not in said.err + said.out, f"{what}: {said.err}"
    assert said.code in (0, 1, 2), f"{what}: exit code {said.code}"
    assert said.code == 0 or any(line.startswith("ditlab: ") for line in said.err.splitlines()), (
        f"{what}: {said.err}"
    )


def test_a_canary_fires_where_a_loader_is_careless(tmp_path):
    for kind, load in LOADERS.items():
        path, marker = tmp_path / kind, tmp_path / f"executed-{kind}"
        path.write_bytes(KINDS[kind](marker))
        load(path)
        assert marker.is_dir(), kind
    path = tmp_path / "pickle"
    for careless in ("torch", "npy"):  # loaders of other formats execute a plain pickle as well
        path.write_bytes(KINDS["pickle"](marker := tmp_path / f"executed-by-{careless}"))
        with suppress(RuntimeError):
            LOADERS[careless](path)
        assert marker.is_dir(), careless


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize(
    "pattern, kind",
    [
        ("train/*/checkpoints/**/*", "torch"),
        ("train/*/*", "pickle"),
        ("train/*/spec.yaml", "yaml"),
        ("stores/*/*.arrow", "npy"),
    ],
)
def test_files_of_a_pattern(pattern, kind, cage, survives):
    place = cage()
    files = place.files(pattern)
    assert files
    place.plant(files, kind)
    survives(place, f"{kind} for {pattern}")


@pytest.mark.slow
def test_files_beside_the_real_ones(cage, survives):
    """Names that loaders of other formats look for, a newer checkpoint's folder, another run's
    folder.

    Every command succeeds, or the other tests would show nothing.
    """
    place = cage()
    newer = place.run / "checkpoints/step-00000099"
    folders = [
        place.home,
        place.run,
        place.run / "checkpoints",
        *place.run.glob("checkpoints/*"),
        newer,
        place.run / "media/export",
        place.run / "ray/checkpoint_000000",
        place.home / "stores/digits",
    ]
    place.plant((folder / name for folder in folders for name in BAIT), "pickle")
    other = place.home / "train/deadbeef"
    place.plant((other / name for name in ("run.json", "spec.yaml", *BAIT)), "pickle")
    assert set(survives(place, "bait")) == {0}


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize("kind", ["pickle", pytest.param("torch", marks=pytest.mark.slow)])
def test_a_checkpoint_that_its_manifest_vouches_for(kind, cage, survives):
    """Whoever can write the file can write its hash."""
    place = cage()
    for manifest in place.run.glob(f"checkpoints/*/{MANIFEST}"):
        said = CheckpointManifest.from_bytes(manifest.read_bytes(), str(manifest))
        (shard,) = said.shards
        place.plant([manifest.with_name(shard)], kind)
        size, digest = size_and_hash(manifest.with_name(shard))
        manifest.write_bytes(
            replace(said, shards={shard: ShardDigest(size, f"sha256:{digest}")}).to_bytes()
        )
    survives(place, "a checkpoint's vouched-for shard")


@pytest.mark.usefixtures("blank_pictures")
def test_a_store_that_its_manifest_vouches_for(cage, survives):
    """Loads no pickle in the place of a store's shard whose hash is in the manifest."""
    place = cage()
    manifest = place.home / "stores/digits/store.json"
    said = json.loads(manifest.read_text())
    (entry,) = said["shards"]
    place.plant([manifest.with_name(entry["file"])], "pickle")
    entry["bytes"], entry["sha256"] = size_and_hash(manifest.with_name(entry["file"]))
    manifest.write_text(json.dumps(said))
    survives(place, "a store's vouched-for shard")


def size_and_hash(path):
    return path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_every_file_alone(kind, cage, survives):
    for number in range(len(cage().files())):
        place = cage()
        file = place.files()[number]
        place.plant([file], kind)
        survives(place, f"{kind} for {file.relative_to(place.home)}")
        shutil.rmtree(place.home)


@pytest.mark.slow
def test_what_ray_left(cage, tmp_path):
    """Ray Train pickles its controller's snapshot below the run: the next start must not look at
    it.
    """
    place = cage()
    resume = ["train", place.spec, "--resume", place.run_id, "--set"]
    run_process(*resume, "training.steps=6", home=place.home, cwd=tmp_path).ok()
    left = [path for path in place.files() if path.is_relative_to(place.run / "ray")]
    assert left
    place.plant(left, "pickle")
    folders = {path.parent for path in left}
    place.plant((folder / name for folder in folders for name in BAIT), "pickle")
    said = run_process(*resume, "training.steps=8", home=place.home, cwd=tmp_path)
    check(said, place, "a start with Ray")
