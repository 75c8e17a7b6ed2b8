"""Each family at a size that two cores bear and at its full one for a GPU, and a batch for it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from ditlab.inputs.meta_step import DataShape
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_experiment

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@dataclass(frozen=True)
class Case:
    """A shipped experiment, and what is changed of it."""

    spec: str
    changes: tuple[str, ...] = ()

    def load(self, changes: list[str]) -> Experiment:
        """Load the experiment with further changes."""
        return load_experiment(EXPERIMENTS / f"{self.spec}.yaml", [*self.changes, *changes])


CASES = {
    "mnist/dit": Case("mnist/dit"),
    "mnist/unet": Case("mnist/unet"),
    "digits/dit": Case("digits/dit"),
    "region": Case(
        "region/get",
        ("model={family: region, width: 384, depth: 6, num_heads: 6}", "batch={size: 4}"),
    ),
    "dlm": Case(
        "dlm/small",
        (
            (
                "model={family: dlm, length: 1024, vocabulary: 50257, width: 512, depth: 6, "
                "num_heads: 8}"
            ),
            "data.length=1024",
            "batch={size: 1}",
            "training.precision=fp32",
        ),
    ),
    "pixelhdm": Case(
        "pixelhdm/base",
        (
            (
                "model={family: pixelhdm, width: 256, pixel_width: 16, patch_depth: 8, "
                "pixel_depth: 2, num_heads: 4, num_kv_heads: 1, bottleneck_width: 64, "
                "text_length: 64}"
            ),
            "objective.weights.alignment=0.0",
            "batch={size: 4, micro: 4}",
            "engine.activation_checkpointing=false",
            "training.precision=fp32",
        ),
    ),
}
"""Experiments by the names that `--only` takes."""
QUICK = {"region": ["batch.size=2", "model.depth=2", "model.width=96"]}

_ON_A_GPU = (
    "training.precision=bf16",
    "engine={zero: {stage: 1}, compile: true}",
    "evaluation.every=null",
)
FULL = {
    "region": Case("region/get", ("batch={size: 96}", *_ON_A_GPU)),
    "dit": Case(
        "mnist/dit",
        (
            (
                "model={family: dit, image_size: 32, channels: 4, patch_size: 2, width: 1152, "
                "depth: 28, num_heads: 16, adaln: zero, num_classes: 1000}"
            ),
            "batch={size: 128}",
            *_ON_A_GPU,
        ),
    ),
    "dlm": Case("dlm/uniform", _ON_A_GPU),
    "pixelhdm": Case(
        "pixelhdm/base",
        ("batch={size: 48, micro: 48}", *_ON_A_GPU, "engine.activation_checkpointing=false"),
    ),
    "unet": Case("mnist/unet", _ON_A_GPU),
}
"""Full sizes in bfloat16: the published networks, `dit` as large as DiT-XL/2 on latents of images
of 256 x 256 pixels. All activations are kept: by their plans the steps take 12, 44, 17, 29 and 0.3
GiB, and 17, 46, 23, 36 and 0.2 TFLOP."""
SCALED_DOWN = {
    "region": ["batch.size=2", "model={num_regions: 60, depth: 2, width: 96}"],
    "dit": ["batch.size=2", "model={width: 48, depth: 2, num_heads: 2}"],
    "dlm": [
        "batch.size=2",
        "model={length: 64, vocabulary: 300, width: 48, depth: 2, num_heads: 2}",
    ],
    "pixelhdm": [
        "batch={size: 2, micro: 1}",
        "model={width: 64, pixel_width: 8, patch_depth: 2, pixel_depth: 1, num_heads: 2}",
        "model={num_kv_heads: 1, bottleneck_width: 16, text_length: 16, mrope_widths: [8, 12, 12]}",
        "objective.alignment_block=1",
    ],
    "unet": ["batch.size=2", "model={width: 16, time_width: 16}"],
}
"""Changes to `FULL` that run all of its code on a CPU."""


def generated_batch(experiment: Experiment, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Draw a batch of the model's fields: numbers in [-1, 1), tokens of the vocabulary, everything
    present.
    """
    batch, shapes = {}, DataShape().of_experiment(experiment)
    for each in experiment.batch_fields():
        shape = (experiment.batch.size, *shapes[each.name])
        if each.dtype == "bool":
            batch[each.name] = torch.ones(shape, dtype=torch.bool, device=device)
        elif each.dtype == "int64":
            batch[each.name] = torch.randint(each.num_classes or 1, shape, device=device)
        else:
            batch[each.name] = torch.rand(shape, device=device) * 2 - 1
    return batch
