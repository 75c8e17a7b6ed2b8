"""Steps of real training on the CPU read no value of a tensor: on a GPU such a read waits for all
work begun.
"""

from collections import Counter
from pathlib import Path
from typing import Any

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

    def __init__(self) -> None:
        super().__init__()
        self.places: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function.overloadpacket in READING:
            self.places[place()] += 1
        return function(*args, **(kwargs or {}))


def reads_of_a_step(
    name: str, home: Path, template: Path, monkeypatch: pytest.MonkeyPatch, *changes: str
) -> Any:
    """Reads of the last of three steps."""
    seed(home, template)
    monkeypatch.setenv("DITLAB_HOME", str(home))
    step, steps = Stepper.step, []

    def watched(self: Stepper, *arguments: Any) -> None:
        with Reads() as reads:
            step(self, *arguments)
        steps.append(dict(reads.places))

    monkeypatch.setattr(Stepper, "step", watched)
    train(EXPERIMENTS / f"{name}.yaml", [*SHORT, *changes], local=True)
    assert len(steps) == 3
    return steps[-1]


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("digits/dit", [], {}),
        *slow(
            ("digits/dit", ["engine.zero.stage=0"], {}),
            ("digits/dit", ["engine.zero.stage=2", "training.precision=bf16"], {}),
            ("digits/dit", ["engine.zero.stage=3"], HOST_NORM),
            ("digits/dit", ["training.clip={kind: zclip}"], {}),
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
    assert (
        reads_of_a_step(name, tmp_path / "home", mlflow_template, monkeypatch, *changes) == expected
    )
