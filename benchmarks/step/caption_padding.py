"""A training step of PixelHDM on captions padded to their batch over one on captions padded to the
store's longest.

    python benchmarks/step/caption_padding.py [--quick] [--rounds 6] [--batch 4]

Captions have 20 to 80 bytes, and the store's longest 512, the default of `ditlab data import
images`. Two steps on one network with the learned encoder take turns in one process: all from
stored rows to AdamW's update. The figure to quote is the median of the rounds' ratios; both sides
give the same losses. Nothing is asserted here.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, report
from ditlab.data.images.captions import caption_column, encode_captions
from ditlab.data.loading.batches import to_device
from ditlab.data.stores.manifest import Column
from ditlab.inputs.model_inputs import cut_padding
from ditlab.inputs.noise import KeyedNoise
from ditlab.spec.experiment import Experiment, class_for

LONGEST = 512
CPU = torch.device("cpu")


def experiment(width: int, depth: int, side: int) -> Experiment:
    """A network that reads bytes of captions."""
    mapping: dict[str, Any] = {
        "name": "caption-padding",
        "model": {
            "family": "pixelhdm",
            "width": width,
            "pixel_width": 8,
            "patch_depth": depth,
            "pixel_depth": 1,
            "num_heads": 4,
            "num_kv_heads": 2,
            "mrope_widths": [width // 16, 3 * width // 32, 3 * width // 32],
            "bottleneck_width": 64,
            "max_resolution": side,
            "text_encoder": "learned",
            "text_length": LONGEST,
        },
        "objective": {"weights": {"alignment": 0.0}},
        "training": {"steps": 1},
        "sampling": {"height": side, "width": side},
    }
    return class_for(mapping).model_validate(mapping)


def rows(batch: int, side: int) -> dict[str, Tensor]:
    """Images that show nothing, and captions."""
    draw = np.random.default_rng(0)
    captions = [b"a red cube on the left of a blue sphere " * 3] * batch
    lengths = np.linspace(20, 80, batch).astype(int)
    texts = encode_captions(
        [text[:length] for text, length in zip(captions, lengths, strict=True)], LONGEST
    )
    images = draw.integers(0, 256, (batch, 3, side, side), dtype=np.uint8)
    return {"image": torch.from_numpy(images), "caption": torch.from_numpy(texts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a size that measures nothing")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    width, depth, side = (64, 1, 32) if options.quick else (256, 6, 128)
    spec = experiment(width, depth, side)
    torch.manual_seed(0)
    network: Any = spec.family.build_network(spec.model)
    objective: Any = spec.family.build_objective(spec.objective, spec.model)
    # the sides' losses stay comparable
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.0, fused=True)
    raw = rows(options.batch, side)
    columns = {"image": Column(dtype="uint8", shape=(3, side, side), value_range=(0, 255))}
    columns["caption"] = caption_column(LONGEST)

    def step(cut: bool) -> float:
        fields = spec.batch_fields()
        taken: Mapping[str, Tensor] = cut_padding(raw, fields) if cut else raw
        batch = to_device(taken, fields, columns, CPU)
        noise = KeyedNoise(0, "train", 0, 0, options.batch, CPU)
        components = objective.loss(network, batch, noise)
        total: Tensor = sum(objective.weights[name] * value for name, value in components.items())
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        return total.item()

    losses = {cut: step(cut) for cut in (True, False)}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(options.rounds):
        for cut in (True, False) if turn % 2 else (False, True):
            since = time.perf_counter()
            step(cut)
            seconds[cut].append(time.perf_counter() - since)
        print(
            f"cut {seconds[True][-1] * 1e3:8.1f} ms   padded {seconds[False][-1] * 1e3:8.1f} ms",
            flush=True,
        )
    print(
        f"losses {losses[True]:.6f} (cut) and {losses[False]:.6f}, {(side // 16) ** 2} patches "
        "an image"
    )
    ratios = [one / two for one, two in zip(seconds[True], seconds[False], strict=True)]
    report(
        f"captions padded to their batch over padded to {LONGEST}",
        ratios,
        Measured(seconds=statistics.median(seconds[True])),
    )


if __name__ == "__main__":
    main()
