"""Step of two workers over a plain script with DistributedDataParallel, at ZeRO stages 0, 1 and 2.

    OMP_NUM_THREADS=1 python benchmarks/step/workers_step.py [--spec
        experiments/mnist/dit.yaml] [--stages 0 1 2]

Two processes over gloo, one thread each. In both of them the platform and the script take turns, a
few steps each, so that a machine whose speed drifts slows both alike. The platform's side is the
whole step of a worker of `ditlab train`: loader, keyed noise, DeepSpeed, moving average, metrics
and the votes of the loop. The script has the same network under DistributedDataParallel, half of
the batch, clipping, fused AdamW, the same moving average, and reads the loss of the whole batch.
The figure to quote is that of the slowest stage. Nothing is asserted here.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.plain.dit import flow_matching_loss
from benchmarks.plain.training import PlainTraining
from benchmarks.rounds import describe_ratios, report
from benchmarks.step.step_time import TakingTurns, generated_store
from ditlab.engine.distributed import current_rank
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_experiment
from ditlab.training.trainer import train
from support.trainings.groups import run_group
from support.trainings.workers import training_run

NUM_WORKERS = 2


def experiment_at(spec: str, store: Path, changes: Sequence[str], stage: int) -> Experiment:
    """Load the experiment for two workers at a ZeRO stage, on generated images, in eager blocks as
    the script's.
    """
    length = [
        "training.epochs=null",
        "training.steps=100000",
        "evaluation.every=null",
        "checkpoint.every=null",
    ]
    data = f"data={{kind: arrow, path: {store}, hold_out: 0.0}}"
    workers = [
        f"resources.workers={NUM_WORKERS}",
        f"engine.zero.stage={stage}",
        "engine.compile=false",
    ]
    return load_experiment(Path(spec), [data, *length, *workers, *changes])


def script_of(experiment: Experiment, images: Tensor) -> Callable[[], object]:
    """Build a worker's step of the script, which reads the mean of both workers' losses."""
    network: Any = experiment.family.build_network(experiment.model)
    parallel = DistributedDataParallel(network)
    size, ema = experiment.batch.size // NUM_WORKERS, experiment.training.ema
    clip, optimizer = experiment.training.clip, experiment.optimizer

    def loss() -> Tensor:
        return flow_matching_loss(
            parallel, images[torch.randint(len(images), (size,))].float().div(127.5).sub(1)
        )

    training = PlainTraining(
        network,
        loss,
        lr=optimizer.lr,
        weight_decay=optimizer.weight_decay,
        max_norm=getattr(clip, "max_norm", None),
        ema_decay=None if ema is None else ema.decay,
    )

    def step() -> float:
        mean = torch.tensor(training.step() / NUM_WORKERS)
        distributed.all_reduce(mean)
        return mean.item()

    return step


def measure(rank: int, options: argparse.Namespace, folder: str) -> None:
    """Take turns on one worker at each stage; the first worker writes the seconds of both sides'
    steps.
    """
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=NUM_WORKERS
    )
    place, images, found = (
        current_rank(False, rank, NUM_WORKERS, rank),
        torch.load(Path(folder, "images.pt")),
        {},
    )
    for stage in options.stages:
        experiment = experiment_at(options.spec, Path(folder, "store"), options.overrides, stage)
        turns = TakingTurns(script_of(experiment, images), options.rounds, options.block)
        train(
            training_run(experiment, Path(folder), Path(folder, f"checkpoints-{stage}")),
            place,
            turns,
        )
        found[stage] = {"platform": turns.platform, "script": turns.bare}
    if rank == 0:
        Path(folder, "seconds.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--spec", default=str(Path(__file__).parents[2] / "experiments/digits/dit.yaml")
    )
    parser.add_argument("--stages", type=int, nargs="+", choices=(0, 1, 2, 3), default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block", type=int, default=2)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = load_experiment(Path(options.spec), options.overrides).model.image_size  # type: ignore[attr-defined]
        torch.save(generated_store(Path(folder, "store"), size), Path(folder, "images.pt"))
        run_group(measure, (options, folder), NUM_WORKERS)
        seconds = json.loads(Path(folder, "seconds.json").read_text())
    ratios = {
        stage: [
            ours / theirs for ours, theirs in zip(sides["platform"], sides["script"], strict=True)
        ]
        for stage, sides in seconds.items()
    }
    for stage, sides in seconds.items():
        ours, theirs = (statistics.median(sides[side]) * 1e3 for side in ("platform", "script"))
        print(
            f"ZeRO {stage}: platform {ours:.1f} ms a step, script {theirs:.1f} ms; "
            f"{describe_ratios(ratios[stage])}"
        )
    slowest = max(ratios, key=lambda stage: statistics.median(ratios[stage]))
    report(f"two workers over a script, ZeRO {slowest}, the slowest", ratios[slowest])


if __name__ == "__main__":
    main()
