"""Time for which a checkpoint holds up the step loop, and until it is whole, beside torch.save and
DCP.

    python benchmarks/runs/checkpoint_stall.py [--parameters 12351760] [--rounds 10] [--folder
        DIR]

The state is that of experiments/mnist/dit.yaml: 12.35M parameters with two moments and an average,
float32. Both sides take turns in one process and write to the same disk; torch.save does no fsync,
the platform's checkpoint does (and hashes, and verifies), beside the steps. The figure to quote is
the median of the rounds' ratios. A step is a matrix product that keeps every core busy; what it
slows down by while a checkpoint is written is printed as well.

Then, without steps beside: until a checkpoint is whole on the disk, and the stall, beside
`torch.save` with fsync, and beside an asynchronous save of torch.distributed.checkpoint (DCP),
which does no fsync and checks nothing. Each side keeps its last two. Nothing is asserted here.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import torch
import torch.distributed.checkpoint

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, Timed, report, report_beside, timed
from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.checkpoints.saving import BackgroundSaver
from ditlab.checkpoints.shard import TensorKey
from ditlab.checkpoints.store import CheckpointStore
from ditlab.storage.files import sync_file, sync_folder

FIELDS = ("master", "exp_avg", "exp_avg_sq", "ema")
LAYERS = 100


def whole_state(parameters: int) -> list[tuple[TensorKey, torch.Tensor]]:
    """Views of one flat tensor a field, as the engine gives them."""
    size = parameters // LAYERS
    flats = {name: torch.randn(size * LAYERS) for name in FIELDS}
    return [
        ((name, f"network.layer{layer}", 0), flat[layer * size : (layer + 1) * size])
        for name, flat in flats.items()
        for layer in range(LAYERS)
    ]


def step_seconds(steps: int, matrix: torch.Tensor) -> float:
    """Mean time of a step."""
    began = time.perf_counter()
    for _ in range(steps):
        matrix @ matrix
    return (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=12_351_760)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--folder", type=Path, help="On the disk to measure; a temporary folder by default."
    )
    arguments = parser.parse_args()
    state = whole_state(arguments.parameters)
    plain_state = {"/".join(map(str, key)): value for key, value in state}
    # Each value once: torch.save writes the whole storage that a view belongs to.
    plain_state = {name: value.clone() for name, value in plain_state.items()}
    matrix = torch.randn(1024, 1024)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        saver = BackgroundSaver(
            CheckpointStore.at(Path(folder, "run")), 0, 1, lambda mine: [mine], keep=2
        )
        saver.reserve(state)
        measure(arguments.rounds, saver, state, plain_state, Path(folder, "plain.pt"), matrix)
        beside_peers(max(7, arguments.rounds), saver, state, plain_state, Path(folder))
        saver.close()


def beside_peers(
    rounds: int,
    saver: BackgroundSaver,
    state: list[tuple[TensorKey, torch.Tensor]],
    plain_state: dict[str, torch.Tensor],
    folder: Path,
) -> None:
    """Rows of the table of peers: whole and stall, in turns."""
    warnings.filterwarnings("ignore")  # DCP's, of one process
    torch.distributed.init_process_group(
        "cpu:gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    stalls: dict[str, list[Timed]] = {"ours": [], "DCP": []}

    def ours(number: int) -> None:
        manifest = CheckpointManifest(1000 + number, 1, {}, "", {}, {}, [])
        stalls["ours"].append(timed(lambda: saver.save(manifest, state)))
        outcome = saver.wait()
        assert outcome and outcome.error is None

    def plain(number: int) -> None:
        torch.save(plain_state, file := folder / f"plain-{number}.pt")
        sync_file(file)
        sync_folder(folder)
        (folder / f"plain-{number - 2}.pt").unlink(missing_ok=True)

    def dcp(number: int) -> None:
        futures = []
        place = str(folder / f"dcp-{number}")
        stalls["DCP"].append(
            timed(
                lambda: futures.append(
                    torch.distributed.checkpoint.async_save(plain_state, checkpoint_id=place)
                )
            )
        )
        futures[0].result()
        shutil.rmtree(folder / f"dcp-{number - 2}", ignore_errors=True)

    sides = {"ours": ours, "plain": plain, "DCP": dcp}
    took: dict[str, list[Timed]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        names = list(sides)
        for name in names[number % 3 :] + names[: number % 3]:
            took[name].append(timed(partial(sides[name], number)))
    # the first round makes buffers and files
    whole = {name: values[1:] for name, values in took.items()}
    report_beside(
        "checkpoint, whole", "torch.save and fsync", whole["ours"], whole["plain"], at_most=1.5
    )
    report_beside(
        "checkpoint, whole",
        f"DCP async_save {torch.__version__}",
        whole["ours"],
        whole["DCP"],
        at_most=1.0,
    )
    report_beside(
        "checkpoint, stall",
        f"DCP async_save {torch.__version__}",
        stalls["ours"][1:],
        stalls["DCP"][1:],
        at_most=1.0,
    )
    torch.distributed.destroy_process_group()


def measure(
    rounds: int,
    saver: BackgroundSaver,
    state: list[tuple[TensorKey, torch.Tensor]],
    plain_state: dict[str, torch.Tensor],
    file: Path,
    matrix: torch.Tensor,
) -> None:
    ratios, stalls, plains, written, slower = [], [], [], [], []
    step_seconds(5, matrix)
    for number in range(1, rounds + 2):
        began = time.perf_counter()
        torch.save(plain_state, file)
        plain = time.perf_counter() - began
        alone = step_seconds(10, matrix)
        manifest = CheckpointManifest(number, number, {}, "", {}, {}, [])
        began = time.perf_counter()
        saver.save(manifest, state)
        stall = time.perf_counter() - began
        beside = []
        while not (ended := saver.poll()):
            beside.append(step_seconds(1, matrix))
        wrote = time.perf_counter() - began
        assert ended[0].error is None, ended[0].error
        if number == 1:
            continue  # torch.save's file is new in the first round
        for values, value in (
            (ratios, stall / plain),
            (stalls, stall),
            (plains, plain),
            (written, wrote),
        ):
            values.append(value)
        slower.append(statistics.mean(beside) / alone)
        print(
            f"  stall {stall * 1e3:6.1f} ms   torch.save {plain * 1e3:7.1f} ms   ratio "
            f"{ratios[-1]:.3f}   written in {written[-1]:.2f} s   a step beside it "
            f"{slower[-1]:.2f} of one alone",
            flush=True,
        )
    print(
        f"torch.save {statistics.median(plains) * 1e3:.1f} ms; steps beside the writing take "
        f"{statistics.median(slower):.2f} of one alone, for {statistics.median(written):.2f} s"
    )
    report("stall of a save over torch.save", ratios, Measured(seconds=statistics.median(stalls)))


if __name__ == "__main__":
    main()
