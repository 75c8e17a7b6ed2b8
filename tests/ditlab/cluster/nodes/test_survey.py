"""Nodes that cannot take part are found before anything of a run exists: real nodes, each wrong in
its own way.
"""

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.clusters.nodes import RayNodes, bare_python, ray_nodes, wait_for
from support.command import run_process, start_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SPEC = """\
name: small
model: {family: dit, image_size: 8, patch_size: 4, width: 32, depth: 1, num_heads: 2}
batch: {size: 32, micro: 16}
training: {steps: 4}
evaluation: {every: 4, samples: 4, limit: 32}
tracking: {system_metrics: false}
"""
SWEEP = """\
name: small-sweep
base: small.yaml
space: {optimizer.lr: {kind: grid, values: [0.001, 0.002]}}
search: {kind: grid}
metric: eval/velocity
mode: min
"""


@dataclass(frozen=True)
class Place:
    """A cluster of a head that only drives, and what a user has beside it."""

    nodes: RayNodes
    folder: Path

    def ditlab(self, *arguments, home="home"):
        return run_process(
            *arguments, home=self.folder / home, cwd=self.folder, **self.nodes.access
        )

    def files(self):
        return sorted(path for path in self.folder.rglob("*") if "nodes" not in path.parts)

    def refused(self, *arguments, home="home"):
        """The one sentence of a command that begins nothing."""
        before = self.files()
        said = self.ditlab(*arguments, "--address", self.nodes.address, home=home)
        assert said.code == 2, said.err
        (sentence,) = [line for line in said.err.splitlines() if line.strip()]
        assert sentence.startswith("ditlab: ") and sentence.endswith(".")
        assert self.files() == before
        return sentence


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("survey")
    (folder / "small.yaml").write_text(SPEC)
    (folder / "sweep.yaml").write_text(SWEEP)
    (folder / "apart").mkdir()
    with ray_nodes(folder / "nodes") as nodes:
        nodes.start_head(num_cpus=0)
        yield Place(nodes, folder)


@contextmanager
def node(place, python=sys.executable, **environment):
    """One node with two CPUs, gone at the end; the beginning of its id."""
    nodes, before = place.nodes, {row["node_id"] for row in place.nodes.alive()}
    nodes.python = str(python)
    try:
        one = nodes.add_node(2, **environment)
    finally:
        nodes.python = sys.executable
    (new,) = {row["node_id"] for row in nodes.alive()} - before
    yield new[:8]
    one.kill()
    wait_for(lambda: {row["node_id"] for row in nodes.alive()} == before, 30, "the end of the node")


@pytest.fixture
def old_deepspeed(tmp_path):
    """A folder for PYTHONPATH under which another version of DeepSpeed seems to be installed."""
    shadow = tmp_path / "deepspeed-0.18.1.dist-info"
    shadow.mkdir()
    (shadow / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.18.1\n")
    return str(tmp_path)


def test_a_node_without_ditlab(place, tmp_path):
    with node(place, bare_python(tmp_path / "python")) as bad:
        sentence = place.refused("train", "small.yaml")
    assert "DiTLab cannot be imported on node" in sentence and bad in sentence
    assert "send it along with `ditlab submit`" in sentence


def test_folders_that_a_node_does_not_share(place, tmp_path):
    apart = place.folder / "apart"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, timeout=10).returncode:
        pytest.skip("a node with mounts of its own needs the rights to make them")
    # the node sees an empty disk where the others see the shared folder
    other_mount = tmp_path / "python"
    other_mount.write_text(
        f'#!/bin/sh\nexec unshare -m sh -c \'mount -t tmpfs none {apart} && exec {sys.executable} "$@"\' sh "$@"\n'
    )
    other_mount.chmod(0o755)
    with node(place, other_mount, PATH=os.environ["PATH"]) as bad:
        home = place.refused("train", "small.yaml", home="apart/home")
        swept = place.refused("tune", "sweep.yaml", home="apart/home")
        storage = place.refused(
            "train", "small.yaml", "--set", f"checkpoint.storage={apart}/checkpoints"
        )
    assert f"DITLAB_HOME={apart}/home is not shared" in home and bad in home and "mounted" in home
    assert f"DITLAB_HOME={apart}/home is not shared" in swept and bad in swept
    assert f"checkpoint.storage={apart}/checkpoints is not shared" in storage and bad in storage


def test_a_node_that_joins_later_with_another_version_ends_an_elastic_run(
    place, tmp_path, old_deepspeed
):
    changes = [
        "training.steps=1000000",
        "evaluation.every=null",
        "checkpoint.every=20",
        "resources.cpus_per_worker=1",
        "resources.workers={min: 1, max: 2, interval: 2}",
    ]
    words = ["train", "small.yaml", "--address", place.nodes.address]
    words += [word for change in changes for word in ("--set", change)]
    good = place.nodes.add_node(1)
    run = start_process(*words, home=tmp_path / "home", cwd=place.folder, **place.nodes.access)
    try:
        begun = "home/train/*/checkpoints/step-*/manifest.json"
        wait_for(lambda: list(tmp_path.glob(begun)) or run.poll() is not None, 200, "a checkpoint")
        with node(place, PYTHONPATH=old_deepspeed) as bad:
            _, said = run.communicate(timeout=200)
    finally:
        run.kill()
        good.kill()
    assert run.returncode == 2, said
    last = said.strip().splitlines()[-1]
    assert (
        "deepspeed 0.18.1 is installed on node" in last and bad in last and "Traceback" not in said
    )
