"""A training step of PixelHDM on stored features over one that runs both frozen encoders; memory
with recomputation.

    python benchmarks/step/pixelhdm_step.py [--quick] [--rounds 6] [--batch 2]

Three steps on one network take turns in one process: text and image features from the store; made
in the step by encoders that keep none (a first epoch); and from encoders that keep what they made
(a later epoch, where all fits). A step is all from stored rows to AdamW's update. A network of 10.8
million parameters sees 8 x 8 patches of 128 x 128 pixels, and its encoders, in fp32, are as large
beside it as the published ones: a Qwen3 of 1.24 times its parameters (published: 1.23) and a DINOv3
of 0.22 times (0.24). The figures to quote are the medians of the rounds' ratios. Peak memory is
that of forward and backward on stored features in processes of their own, above weights and
gradients, without and with `engine.activation_checkpointing`. Nothing is asserted here.
"""

import argparse
import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, report
from ditlab.data.images.captions import caption_column, encode_captions
from ditlab.data.stores.manifest import Column
from ditlab.engine.memory import checkpoint_activations
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import KeyedNoise
from ditlab.spec.experiment import Experiment, class_for
from ditlab_addons.encode.encoding import (
    EncoderChoice,
    EncodingRules,
    image_columns,
    open_features,
    text_columns,
)
from support.datasets.tiny_encoders import write_image_encoder, write_text_encoder
from support.peak_memory import peak_bytes

CPU = torch.device("cpu")
SIDES = ("stored", "made", "kept")


class Size(NamedTuple):
    """Device of network, encoders and images."""

    width: int
    patch_depth: int
    text_depth: int
    image_width: int
    image_depth: int
    side: int


MIDDLE = Size(width=256, patch_depth=6, text_depth=17, image_width=192, image_depth=5, side=128)
QUICK = Size(width=64, patch_depth=1, text_depth=1, image_width=32, image_depth=1, side=32)


class Rows(NamedTuple):
    """A batch as a store holds it."""

    raw: Mapping[str, Tensor]
    columns: Mapping[str, Column]


def experiment(size: Size, folder: Path, cache: int = 0) -> Experiment:
    """A network of this size; encoders in `folder`, written where there are none."""
    if not (folder / "image").exists():
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": size.width // 4}
        mlp_width = 3 * size.width
        write_text_encoder(
            folder / "text", size.width, size.text_depth, intermediate_size=mlp_width, **heads
        )
        write_image_encoder(
            folder / "image",
            size.image_width,
            16,
            size.image_depth,
            intermediate_size=4 * size.image_width,
        )
    turned = size.width // 4 // 8
    mapping: dict[str, Any] = {
        "name": "pixelhdm-step",
        "model": {
            "family": "pixelhdm",
            "width": size.width,
            "pixel_width": 8,
            "patch_depth": size.patch_depth,
            "pixel_depth": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "mrope_widths": [2 * turned, 3 * turned, 3 * turned],
            "bottleneck_width": 64,
            "max_resolution": 128,
        },
        "objective": {"alignment_block": 1, "alignment_width": size.image_width},
        "encoders": {
            "text": str(folder / "text"),
            "image": str(folder / "image"),
            "cache": cache,
            "precision": "fp32",
        },
        "training": {"steps": 1},
        "sampling": {"height": size.side, "width": size.side},
    }
    return class_for(mapping).model_validate(mapping)


def rows(size: Size, folder: Path, batch: int, encoded: bool) -> Rows:
    """Images that show nothing, with captions, and the features of both where `encoded`."""
    images = np.random.default_rng(0).integers(
        0, 256, (batch, 3, size.side, size.side), dtype=np.uint8
    )
    texts = [
        f"a photograph of {number} red cubes on the left of a blue sphere".encode()
        for number in range(batch)
    ]
    captions = encode_captions(texts, max(map(len, texts)))
    image = Column(dtype="uint8", shape=images.shape[1:], value_range=(0, 255))
    columns = {"image": image, "caption": caption_column(captions.shape[1])}
    values = {"image": images, "caption": captions}
    if encoded:
        encoders = EncoderChoice(str(folder / "text"), str(folder / "image"), captions.shape[1], 16)
        text, frozen = open_features(encoders)
        assert text is not None and frozen is not None
        captioned = [caption.decode() for caption in texts]
        longest = max(text.num_tokens(captioned))
        columns = EncodingRules(encoders, longest).columns(columns)
        values |= text_columns(text, captioned, longest) | image_columns(frozen, images)
    return Rows({name: torch.from_numpy(value) for name, value in values.items()}, columns)


def loss_of(network: nn.Module, objective: Any, inputs: ModelInputs, batch: Rows) -> Tensor:
    noise = KeyedNoise(0, "train", 0, 0, len(batch.raw["image"]), CPU)
    errors = objective.loss(network, inputs.prepare_batch(batch.raw, batch.columns), noise)
    total: Tensor = sum(objective.weights[name] * error for name, error in errors.items())
    return total


def steps(size: Size, folder: Path, batch: int) -> dict[str, Callable[[], float]]:
    """Steps on one network that return its loss, by side."""
    torch.manual_seed(0)
    plain = experiment(size, folder)
    network: Any = plain.family.build_network(plain.model)
    objective: Any = plain.family.build_objective(plain.objective, plain.model)
    parameters = [*network.parameters(), *objective.modules.parameters()]
    # the sides' losses stay comparable
    optimizer = torch.optim.AdamW(parameters, lr=0.0, fused=True)
    stored, made = (rows(size, folder, batch, encoded) for encoded in (True, False))

    def step_on(batch: Rows, cache: int) -> Callable[[], float]:
        inputs = ModelInputs.from_experiment(experiment(size, folder, cache), batch.columns, CPU)

        def step() -> float:
            loss = loss_of(network, objective, inputs, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        return step

    return dict(
        zip(SIDES, (step_on(stored, 0), step_on(made, 0), step_on(made, batch)), strict=True)
    )


def prepare(size: Size, folder: Path, batch: int, recomputed: bool) -> Callable[[], None]:
    """Forward and backward with gradients already allocated: the peak is of activations, then."""
    plain = experiment(size, folder)
    network: Any = plain.family.build_network(plain.model)
    objective: Any = plain.family.build_objective(plain.objective, plain.model)
    if recomputed:
        checkpoint_activations(network.checkpointed_modules(), recomputed=True, offloaded=False)
    stored = rows(size, folder, batch, encoded=True)
    inputs = ModelInputs.from_experiment(plain, stored.columns, CPU)

    def step() -> None:
        loss_of(network, objective, inputs, stored).backward()

    step()
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a size that measures nothing")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--batch", type=int, default=2)
    options = parser.parse_args()
    size = QUICK if options.quick else MIDDLE
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sides = steps(size, folder, options.batch)
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        # the first round warms up, and fills what is kept
        losses = {side: step() for side, step in sides.items()}
        for turn in range(options.rounds):
            for side in SIDES[:: 1 if turn % 2 else -1]:
                since = time.perf_counter()
                sides[side]()
                seconds[side].append(time.perf_counter() - since)
            print(
                "   ".join(f"{side} {seconds[side][-1] * 1e3:8.1f} ms" for side in SIDES),
                flush=True,
            )
        peaks = [
            peak_bytes(functools.partial(prepare, size, folder, options.batch, each))
            for each in (False, True)
        ]
    print(
        f"{size}, batch {options.batch}, losses "
        f"{', '.join(f'{side} {losses[side]:.4f}' for side in SIDES)}"
    )
    print(
        f"peak memory {peaks[1] / 2**20:,.0f} MiB recomputed over {peaks[0] / 2**20:,.0f} MiB: "
        f"{peaks[1] / max(1, peaks[0]):.3f}"
    )
    for side in ("kept", "stored"):
        ratios = [one / made for one, made in zip(seconds[side], seconds["made"], strict=True)]
        report(
            f"step on {side} features over made ones",
            ratios,
            Measured(seconds=statistics.median(seconds[side])),
        )


if __name__ == "__main__":
    main()
