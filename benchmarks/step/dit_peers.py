"""Step of a class-conditional DiT beside diffusers' in an accelerate loop: eager and compiled.

    OMP_NUM_THREADS=1 python benchmarks/step/dit_peers.py [--rounds 7] [--block 4] [--set P=V]
        [--profile SIDE]
    python benchmarks/step/dit_peers.py --device cuda [--rounds 7] [--block 16]

Our side is the whole step of `ditlab train` at ZeRO 0: loader, keyed noise, DeepSpeed, clipping,
moving average, metrics of every step. The other is diffusers' `DiTTransformer2DModel` of the same
width, depth and heads in the loop of diffusers' training examples: torch's DataLoader and
accelerate's `Accelerator`, the same loss and clipping, AdamW (fused), diffusers' moving average
(foreach), and a read of the loss; compiled by accelerate, the whole network. Sides run in processes
of their own, which take turns. Both networks have adaLN-Zero, 64 tokens and exact GELU. The
condition of ours is four times as wide, which makes its modulations and so its parameters more;
that of diffusers has an embedding of time and class in each block. Parameters and operations of
both are printed. On a GPU both are as large as DiT-B/2 on latents (256 tokens), in bfloat16.
Nothing is asserted here.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, Turns, report_beside, take_turns
from benchmarks.step.step_time import generated_store
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_experiment

SPEC = Path(__file__).parents[2] / "experiments/mnist/dit.yaml"
CHANGES = (
    (
        "model={image_size: 32, patch_size: 4, width: 256, depth: 6, num_heads: 8, adaln: "
        "zero, num_classes: 10}"
    ),
    "batch.size=64",
    "training={epochs: null, steps: 100000, clip: {kind: norm, max_norm: 1.0}}",
    "evaluation.every=null",
    "checkpoint.every=null",
    "engine={zero: {stage: 0}, compile: false}",
)
ON_A_GPU = (
    "model={image_size: 32, patch_size: 2, width: 768, depth: 12, num_heads: 12}",
    "training.precision=bf16",
    "resources.gpus_per_worker=1",
    "engine.zero.stage=1",
)


def experiment_of(changes: Sequence[str], store: Path | None = None) -> Experiment:
    """Load the experiment with further changes, on the images of a store."""
    data = [] if store is None else [f"data={{kind: arrow, path: {store}, hold_out: 0.0}}"]
    return load_experiment(SPEC, [*data, *CHANGES, *changes])


def diffusers_dit(model: Any) -> Any:
    """Build diffusers' network of a spec's `model`, called as `network(x, timestep,
    class_labels)`.
    """
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel(
        num_attention_heads=model.num_heads,
        attention_head_dim=model.width // model.num_heads,
        in_channels=model.channels,
        num_layers=model.depth,
        sample_size=model.image_size,
        patch_size=model.patch_size,
        activation_fn="gelu",
        num_embeds_ada_norm=model.num_classes,
        norm_eps=1e-5,
    )


def flow_matching_loss(network: Any, images: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error of diffusers' network's velocity, for images (B, C, S, S) uint8 and labels
    (B,).
    """
    x0 = images.float().div(127.5).sub(1)
    x1, t = torch.randn_like(x0), torch.rand(len(x0), device=x0.device)
    at = t[:, None, None, None]
    # Its time embedding is made for 0 to 1000. It drops labels itself.
    predicted = network(torch.lerp(x0, x1, at), 1000 * t, labels, return_dict=False)[0]
    return torch.nn.functional.mse_loss(predicted, x1 - x0)


def train_ours(changes: Sequence[str], store: Path, folder: Path, turns: Turns) -> None:
    """Train as `ditlab train --local` does."""
    from ditlab.engine.distributed import single_process
    from ditlab.training.reporting import ProgressMarker, Reporter
    from ditlab.training.trainer import train
    from support.trainings.workers import training_run

    run = training_run(experiment_of(changes, store), folder, folder / "checkpoints")
    with single_process(use_gpu=run.experiment.resources.gpus_per_worker > 0) as rank:
        train(run, rank, Reporter(turns.stepped, print, ProgressMarker()))


def train_theirs(changes: Sequence[str], images: Tensor, is_compiled: bool, turns: Turns) -> None:
    """Train diffusers' network as its examples do."""
    from accelerate import Accelerator
    from diffusers.training_utils import EMAModel

    experiment = experiment_of(changes)
    is_bf16 = experiment.training.precision == "bf16"
    accelerator = Accelerator(
        cpu=experiment.resources.gpus_per_worker == 0,
        mixed_precision="bf16" if is_bf16 else "no",
        dynamo_backend="inductor" if is_compiled else "no",
    )
    own = diffusers_dit(experiment.model)
    optimizer = torch.optim.AdamW(
        own.parameters(), lr=experiment.optimizer.lr, weight_decay=0.01, fused=True
    )
    data = torch.utils.data.TensorDataset(
        images, torch.arange(len(images)) % experiment.model.num_classes
    )
    loader = torch.utils.data.DataLoader(data, experiment.batch.size, shuffle=True, drop_last=True)
    network, optimizer, loader = accelerator.prepare(own, optimizer, loader)
    average = EMAModel(own.parameters(), decay=experiment.training.ema.decay, foreach=True)
    while True:
        for batch in loader:
            loss = flow_matching_loss(network, *batch)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(network.parameters(), experiment.training.clip.max_norm)
            optimizer.step()
            optimizer.zero_grad()
            average.step(own.parameters())
            loss.item()
            if turns.stepped():
                return


def sides(changes: Sequence[str], store: Path, images: Tensor, folder: Path) -> dict[str, Any]:
    """Return all sides by name."""
    compiled = [*changes, "engine.compile=true"]
    return {
        "ours eager": partial(train_ours, changes, store, folder / "eager"),
        "their eager": partial(train_theirs, changes, images, False),
        "ours compiled": partial(train_ours, compiled, store, folder / "compiled"),
        "their compiled": partial(train_theirs, changes, images, True),
    }


def operations(experiment: Experiment) -> tuple[int, int]:
    """Count the operations of a step of both networks, forward and backward."""
    model: Any = experiment.model
    found = []
    with torch.device("meta"):
        x = torch.zeros(experiment.batch.size, model.channels, model.image_size, model.image_size)
        t, labels = torch.zeros(len(x)), torch.zeros(len(x), dtype=torch.int64)
        ours, theirs = experiment.family.build_network(model), diffusers_dit(model)
        for network, named in ((ours, {}), (theirs, {"return_dict": False})):
            with FlopCounterMode(display=False) as counter:
                out = network(x, t, labels, **named)
                (out if isinstance(out, Tensor) else out[0]).sum().backward()
            found.append(counter.get_total_flops())
            print(
                f"{type(network).__name__}: "
                f"{sum(each.numel() for each in network.parameters()):,} parameters, "
                f"{found[-1] / 1e9:.1f} GFLOP a step"
            )
    return found[0], found[1]


class ProfiledSteps:
    """Turns that warm up some steps, and profile some more."""

    def __init__(self, steps: int) -> None:
        self._left, self._profile = steps + 3, profile(activities=[ProfilerActivity.CPU])
        self._steps, self._begin = steps, 0.0

    def stepped(self) -> bool:
        """Count a step; print the operators at the end."""
        self._left -= 1
        if self._left == self._steps:
            self._profile.start()
            self._begin = time.perf_counter()
        elif self._left == 0:
            seconds = (time.perf_counter() - self._begin) / self._steps
            self._profile.stop()
            print(self._profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=35))
            print(f"{seconds * 1e3:.1f} ms a step, profiled; totals are of {self._steps} steps")
        return self._left <= 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument(
        "--profile", help="print the operators of this side's steps: 'ours eager', 'their compiled'"
    )
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    import diffusers

    options.changes = [*(ON_A_GPU if options.device == "cuda" else ()), *options.changes]
    experiment = experiment_of(options.changes)
    model: Any = experiment.model
    operations(experiment)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        images = generated_store(store, model.image_size)
        both = sides(options.changes, store, images, Path(folder))
        if options.profile:
            both[options.profile](ProfiledSteps(options.block))
            return
        took = take_turns(both, options.rounds, options.block)
    for name, each in took.items():
        print(
            f"{name}: "
            f"{statistics.median(one.seconds for one in each) / options.block * 1e3:.1f} ms a "
            "step"
        )
    peer = f"diffusers {diffusers.__version__}"
    for ours, theirs in (("eager", "eager"), ("compiled", "compiled"), ("compiled", "eager")):
        seconds = statistics.median(each.seconds for each in took[f"ours {ours}"]) / options.block
        report_beside(
            f"DiT step, {ours}",
            f"{peer}, {theirs}",
            took[f"ours {ours}"],
            took[f"their {theirs}"],
            at_least=1.0 if ours == theirs else 1.3,
            measured=Measured(seconds, experiment.batch.size / seconds, device=options.device),
        )


if __name__ == "__main__":
    main()
