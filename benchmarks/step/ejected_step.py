"""Step of an ejected file beside that of `ditlab train`, of one spec.

    OMP_NUM_THREADS=1 python benchmarks/step/ejected_step.py [--rounds 7] [--block 8] [--set P=V]

Both sides run in processes of their own, which take turns: the loop of the platform with its
loader, and the file's. Both write their log at every step. Nothing is asserted.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Turns, report_beside, take_turns
from ditlab.home import Home
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_experiment

SPEC = Path(__file__).parents[2] / "experiments/digits/dit.yaml"
CHANGES = ("training.steps=100000", "evaluation.every=null", "checkpoint.every=null")


def experiment_of(changes: Sequence[str]) -> Experiment:
    """Load the experiment with further changes."""
    return load_experiment(SPEC, [*CHANGES, *changes])


def train_platform(changes: Sequence[str], folder: Path, turns: Turns) -> None:
    """Train as `ditlab train --local` does."""
    from ditlab.engine.distributed import single_process
    from ditlab.training.reporting import ProgressMarker, Reporter
    from ditlab.training.trainer import train
    from support.trainings.workers import training_run

    run = training_run(experiment_of(changes), folder, folder / "checkpoints")
    with single_process(use_gpu=False) as rank:
        train(run, rank, Reporter(turns.stepped, print, ProgressMarker()))


def train_file(file: Path, turns: Turns) -> None:
    """Train as the file does."""
    spec = importlib.util.spec_from_file_location("ejected", file)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["ejected"] = module
    spec.loader.exec_module(module)
    trainer = module.build_trainer(file.parent)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        while True:
            trainer.log(trainer.train_step())
            if turns.stepped():
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--set", dest="changes", action="append", default=[])
    options = parser.parse_args()
    from ditlab_addons.check.eject.ejecting import write_file

    with tempfile.TemporaryDirectory(prefix="ditlab-ejected-step-") as name:
        folder = Path(name)
        file = folder / "train.py"
        write_file(experiment_of(options.changes), Home(folder / "home"), file)
        took = take_turns(
            {
                "file": partial(train_file, file),
                "platform": partial(train_platform, options.changes, folder),
            },
            options.rounds,
            options.block,
        )
        report_beside(
            "a step of an ejected file",
            "the platform's",
            took["file"],
            took["platform"],
            at_least=0.98,
        )


if __name__ == "__main__":
    main()
