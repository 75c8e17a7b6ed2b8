"""Trainings of ejected files, in processes that cannot import DiTLab."""

import os
import runpy
import signal
import subprocess
import sys
import time
from unittest import mock

import torch
from safetensors.torch import load_file

from ditlab.home import Home
from ditlab_addons.check.eject.ejecting import write_file

ALONE = """\
import runpy, sys
for name in ("ditlab", "ditlab_models", "ditlab_addons"):
    sys.modules[name] = None
file, *sys.argv[1:] = sys.argv[1:]
sys.argv[:1] = [file]
runpy.run_path(file, run_name="__main__")
"""
"""Program that runs a file where no package of DiTLab can be imported."""


def eject_into(experiment, folder):
    """Write the file of an experiment, and return its path."""
    write_file(experiment, Home.from_environment(), folder / "train.py")
    return folder / "train.py"


def start(file, out, workers=1):
    """Start a training, in a process group of its own."""
    alone = file.with_name("alone.py")
    alone.write_text(ALONE)
    command = [sys.executable]
    if workers > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    variables = {name: each for name, each in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        [*command, str(alone), str(file), str(out)],
        env=variables | {"OMP_NUM_THREADS": "1"},
        cwd=file.parent,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def train_file(file, out, workers=1):
    """Train a file to its end."""
    process = start(file, out, workers)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err.decode()


def train_here(file, out):
    """Train a file in this process."""
    with mock.patch.object(sys, "argv", [str(file), str(out)]):
        runpy.run_path(str(file), run_name="__main__")


def kill_after_first_checkpoint(file, out, workers=1):
    """Begin a training, and kill it once it has a checkpoint."""
    process = start(file, out, workers)
    while process.poll() is None and not [*out.glob("step-*.safetensors")]:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def differing(out, reader):
    """Return the tensors of a run's checkpoint that the file's of the same step does not have bit
    by bit.
    """
    manifest = reader.manifest
    own = load_file(out / f"step-{manifest.step:08d}.safetensors")
    found = []
    for kind, name in sorted({(kind, name) for _, kind, name, *_ in manifest.pieces}):
        values = own.pop(f"{kind}/{name}").reshape(-1)
        if not torch.equal(values, reader.read(kind, name, 0, values.numel())):
            found.append(f"{kind}/{name}")
    return found + sorted(own)
