"""Step time of the platform over a bare torch loop: the network, batch, clipping and optimiser of a
shipped experiment.

    python benchmarks/step/step_time.py [--spec experiments/mnist/dit.yaml] [--rounds 20]
        [--block 2] [--set P=V]

Both run in one process and take turns, a few steps each, so that a machine whose speed drifts slows
both alike; the figure to quote is the median of the rounds' ratios. The platform's side is the
whole step of `ditlab train`: loader, keyed noise, DeepSpeed, moving average, metrics of every step.
The bare side is batch, loss, backward, clip, fused AdamW, the same moving average, and a read of
the loss. Images are generated: speed does not depend on what they show. The aim is at most 1.02
from 5 million parameters on (mnist/dit), 1.05 below (digits/dit). Nothing is asserted here.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.plain.dit import flow_matching_loss
from benchmarks.plain.training import PlainTraining
from benchmarks.rounds import Measured, report
from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.writer import write_batches
from ditlab.engine.distributed import single_process
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_experiment
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.trainer import train
from support.trainings.workers import training_run

NUM_IMAGES = 8192


class TakingTurns(Reporter):
    """A reporter that lets the other side run between the platform's steps, and times both."""

    def __init__(self, bare_step: Callable[[], object], rounds: int, block: int) -> None:
        super().__init__(self._take_turns, print, ProgressMarker())
        self._bare_step, self._rounds, self._block = bare_step, rounds, block
        self._calls, self._since = 0, 0.0
        self.platform: list[float] = []
        self.bare: list[float] = []

    def _take_turns(self) -> bool:
        """Called by the step loop after each step."""
        self._calls += 1
        if self._calls % self._block:
            return False
        middle = time.perf_counter()
        for _ in range(self._block):
            self._bare_step()
        end = time.perf_counter()
        if self._calls > 2 * self._block:  # the first rounds warm up both sides
            self.platform.append((middle - self._since) / self._block)
            self.bare.append((end - middle) / self._block)
            print(
                f"  platform {self.platform[-1] * 1e3:7.1f} ms   bare "
                f"{self.bare[-1] * 1e3:7.1f} ms",
                flush=True,
            )
        self._since = time.perf_counter()
        return len(self.bare) >= self._rounds


def bare_loop(experiment: Experiment, images: torch.Tensor) -> Callable[[], object]:
    """Steps of flow matching as a script would write them; the loss of each is read."""
    network: Any = experiment.family.build_network(experiment.model)
    size, ema = experiment.batch.size, experiment.training.ema

    def loss() -> torch.Tensor:
        return flow_matching_loss(
            network, images[torch.randint(len(images), (size,))].float().div(127.5).sub(1)
        )

    return PlainTraining(
        network,
        loss,
        lr=experiment.optimizer.lr,
        weight_decay=experiment.optimizer.weight_decay,
        max_norm=getattr(experiment.training.clip, "max_norm", None),
        ema_decay=None if ema is None else ema.decay,
    ).step


def generated_store(path: Path, size: int) -> torch.Tensor:
    """Writes a store of random images and labels; returns the images."""
    images = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, 1, size, size), dtype=np.uint8)
    columns = {
        "image": Column(dtype="uint8", shape=(1, size, size), value_range=(0, 255)),
        "label": Column(dtype="int64", shape=()),
    }
    batch = {"image": images, "label": np.arange(NUM_IMAGES) % 10}
    write_batches(path, columns, [batch], name="generated", source=Source(kind="generated"))
    return torch.from_numpy(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--spec", type=Path, default=Path(__file__).parents[2] / "experiments/mnist/dit.yaml"
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block", type=int, default=2)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        data = f"data={{kind: arrow, path: {store}, hold_out: 0.0}}"
        length = [
            "training.epochs=null",
            "training.steps=100000",
            "evaluation.every=null",
            "checkpoint.every=null",
        ]
        length.append("engine.compile=false")  # as the bare loop's network
        experiment = load_experiment(options.spec, [data, *length, *options.overrides])
        images = generated_store(store, experiment.model.image_size)  # type: ignore[attr-defined]
        turns = TakingTurns(bare_loop(experiment, images), options.rounds, options.block)
        with single_process(use_gpu=False) as rank:
            train(training_run(experiment, Path(folder), Path(folder, "checkpoints")), rank, turns)
    ratios = [platform / bare for platform, bare in zip(turns.platform, turns.bare, strict=True)]
    print(
        f"{experiment.name}: platform {statistics.median(turns.platform) * 1e3:.1f} ms a step, "
        f"bare loop {statistics.median(turns.bare) * 1e3:.1f} ms"
    )
    seconds = statistics.median(turns.platform)
    report(
        f"{experiment.name}, platform over a bare loop",
        ratios,
        Measured(seconds, samples_per_second=experiment.batch.size / seconds),
    )


if __name__ == "__main__":
    main()
