"""Prints the seconds from `ditlab train` to the first step, over those of plain forms.

    python benchmarks/runs/start_up.py [SPEC] [--rounds N] [--ray-rounds N]

Processes take turns, each on the files that the ones before have warmed:

- `ditlab train SPEC --local`, up to the beginning of the first optimiser step (spec, checks, data,
  the run's folder and journal, network, engine, first batch), beside `import torch, deepspeed`, as
  any program with DeepSpeed begins;
- `ditlab train SPEC`, on a Ray instance of its own, beside Ray Train's hello world
  (`plain/ray_train.py`), both up to the first step of their worker and under the same environment
  variables of Ray.

The evaluation before the first step is left out: it is work, not start-up. Nothing is asserted.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Timed, beside, report_beside, timed
from ditlab.cluster.session import SETTINGS

ROOT = Path(__file__).parents[2]
FIRST_STEP = ROOT / "tests" / "support" / "trainings" / "first_step.py"
SPEC = ROOT / "experiments" / "digits" / "dit.yaml"
IMPORTS = "import torch, deepspeed"
HELLO = [str(ROOT / "benchmarks" / "plain" / "ray_train.py")]
ALLOWANCE = 2.0
"""Seconds that a start on Ray may take above Ray Train's own."""
SHORT = (
    "training.steps=1",
    "schedule.warmup=0",
    "evaluation.every=null",
    "evaluation.samples=0",
    "checkpoint.every=null",
    "resources.workers=1",
    "tracking.report=false",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("spec", nargs="?", default=str(SPEC))
    parser.add_argument("--rounds", type=int, default=7, help="in one process")
    parser.add_argument("--ray-rounds", type=int, default=7, help="on Ray")
    options = parser.parse_args()
    # Built-in data are made once.
    os.environ["DITLAB_HOME"] = str(Path(tempfile.gettempdir(), "ditlab-start-up-home"))
    train = [
        "train",
        options.spec,
        "--no-figures",
        *(word for change in SHORT for word in ("--set", change)),
    ]
    beside(
        "first step of train --local",
        IMPORTS,
        lambda: run([sys.executable, str(FIRST_STEP), *train, "--local"]),
        # without Python's own tidying up
        lambda: run([sys.executable, "-c", f"{IMPORTS}; import os; os._exit(0)"]),
        at_most=1.25,
        rounds=options.rounds,
    )
    took: list[list[Timed]] = [[], []]
    for number in range(options.ray_rounds + 1):
        for side in (number % 2, 1 - number % 2):
            took[side].append(first_step(["-m", "ditlab", *train] if side == 0 else HELLO))
    ours, theirs = (side[1:] for side in took)  # the first round fills caches
    peer = f"Ray Train {version('ray')}, hello world, and {ALLOWANCE:g} s"
    theirs = [each._replace(seconds=each.seconds + ALLOWANCE) for each in theirs]
    report_beside("first step of train on Ray", peer, ours, theirs, at_most=1.0)


def run(command: Sequence[str], **environment: str) -> None:
    """Run a process to its end. Raises SystemExit with what it wrote where it fails, or where it
    ends without the step that it was to reach.
    """
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | environment
    )
    said = f"{done.stdout}{done.stderr}"
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
    if "FIRST_STEP" in environment and not Path(environment["FIRST_STEP"]).exists():
        raise SystemExit(f"{' '.join(command)} ended without a step:\n{said}")


def first_step(arguments: Sequence[str]) -> Timed:
    """Time a Python process that trains on Ray up to the first step of its worker; its processor
    seconds are of all.
    """
    with tempfile.TemporaryDirectory() as folder:
        reached = Path(folder, "reached")
        Path(folder, "sitecustomize.py").write_text(FIRST_STEP.read_text())
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        hooked = {**SETTINGS, "FIRST_STEP": str(reached), "PYTHONPATH": path}
        begin = time.time()
        took = timed(lambda: run([sys.executable, *arguments], **hooked))
        return took._replace(seconds=float(reached.read_text()) - begin)


if __name__ == "__main__":
    main()
