"""Steps of real training on the CPU read no value of a tensor: on a GPU such a read waits for all
work begun.
"""

from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ditlab.api.training import train
from ditlab.training.stepping import Stepper
from support.databases import seed
from support.devices.meta_device import DATA_DEPENDENT, place
from support.marks import slow

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
SHORT = (
    "training.steps=3",
    "schedule.warmup=0",
    "evaluation.every=null",
    "evaluation.samples=0",
    "checkpoint.every=null",
    "tracking.system_metrics=false",
    "tracking.report=false",
    "batch.size=4",
    "batch.micro=2",
    "engine.compile=false",
)
READING = {*DATA_DEPENDENT, torch.ops.aten._local_scalar_dense, torch.ops.aten.item}
REGION = {"tensors.py:masked_rows": 2, "region/network.py:present_or_none": 2}
"""On the host, once in each of a step's two micro-batches: what `prepare` of the region loss
decides shapes by.
"""
CAPTIONS = {"inputs/model_inputs.py:cut_padding": 4}
"""On the host: captions are cut to the longest of a micro-batch before they are moved."""
HOST_NORM = {"engine/engine.py:Engine.step": 1}
"""DeepSpeed's look at the norm of stage 3, in whose place `GradientNorm` puts a zero of the
host.
"""


class Reads(TorchDispatchMode):
    """Counts reads of values by their place in the package."""

    def __init__(self):
        super().__init__()
        self.places = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in READING:
            self.places[place()] += 1
        return function(*args, **(kwargs or {}))

    def synchronize(self, *_):
        self.places["synchronize"] += 1


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("digits/dit", [], {}),
        ("digits/dit", ["training.clip={kind: zclip}"], {}),
        *slow(
            ("digits/dit", ["engine.zero.stage=0"], {}),
            ("digits/dit", ["engine.zero.stage=2", "training.precision=bf16"], {}),
            ("digits/dit", ["engine.zero.stage=3"], HOST_NORM),
            ("digits/unet_class", [], {}),
            ("region/small", [], REGION),
            ("region/small_ddpm", [], REGION),
            ("dlm/small", [], {}),
            ("dlm/small_block", [], {}),
            ("pixelhdm/small", [], CAPTIONS),
        ),
    ],
)
def test_a_step_reads_no_value(name, changes, expected, tmp_path, mlflow_template, monkeypatch):
    """In the last of three steps."""
    from deepspeed.accelerator import get_accelerator

    seed(tmp_path / "home", mlflow_template)
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    step = Stepper.step
    steps = []

    def watched(self, *arguments):
        reads = Reads()
        with reads, mock.patch.object(get_accelerator(), "synchronize", reads.synchronize):
            step(self, *arguments)
        steps.append(dict(reads.places))

    monkeypatch.setattr(Stepper, "step", watched)
    train(EXPERIMENTS / f"{name}.yaml", [*SHORT, *changes], local=True)
    assert len(steps) == 3 and steps[-1] == expected
