"""Prints the seconds from `ditlab train` to the first step, over the floor that imports alone set.

    python tests/benchmarks/runs/start_up.py [SPEC] [--rounds N] [--ray]

Every round starts three processes, in turns, each on the files that the one before has warmed:

- `floor`: `import torch, deepspeed`, as any program with DeepSpeed begins;
- `least`: what training cannot do without, as the engine imports it: DeepSpeed without MLflow, and an AdamW, whose
  construction imports torch's compiler;
- `ditlab train SPEC --local`, up to the beginning of the first optimiser step: spec, checks, data, the run's folder and
  journal, network, engine, first batch. The evaluation before the first step is left out: it is work, not start-up.

With `--ray`, `ditlab train` without `--local`; Ray's own start is then added to the floor: `ray.init` and Ray Train's
start of one worker that does nothing. The first round, which fills caches, does not count. Nothing is asserted.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.rounds import Measured, report

SUPPORT = Path(__file__).parents[2] / "support"
SPEC = Path(__file__).parents[3] / "experiments" / "digits" / "dit.yaml"
FLOOR = "import torch, deepspeed"
LEAST = (
    "from ditlab.engine.deepspeed_internals import import_deepspeed; import torch; import_deepspeed();"
    "torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], fused=True)"
)
RAY = (
    "import ray; from ray.train import ScalingConfig; from ray.train.torch import TorchTrainer;"
    "ray.init(include_dashboard=False, log_to_driver=False);"
    "TorchTrainer(lambda: None, scaling_config=ScalingConfig(num_workers=1)).fit(); ray.shutdown()"
)
SHORT = (
    "training.steps=1", "schedule.warmup=0", "evaluation.every=null", "evaluation.samples=0", "checkpoint.every=null",
    "resources.workers=1", "tracking.report=false",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("spec", nargs="?", type=Path, default=SPEC)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ray", action="store_true", help="train on Ray")
    arguments = parser.parse_args()
    rounds = [measure(arguments.spec, arguments.ray) for _ in range(arguments.rounds + 1)][1:]
    for name in rounds[0]:
        values = sorted(each[name] for each in rounds)
        print(f"{name:12} {statistics.median(values):6.2f} s ({values[0]:.2f} to {values[-1]:.2f})")
    for floor in ("least", "floor"):
        ratios = [each["first step"] / (each[floor] + each.get("ray", 0.0)) for each in rounds]
        plus = " + Ray's own start" if arguments.ray else ""
        seconds = statistics.median(each["first step"] for each in rounds)
        report(f"start-up over {floor}{plus}", ratios, Measured(seconds))


def measure(spec: Path, ray: bool) -> dict[str, float]:
    """Seconds of each process of one round."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = {"floor": timed(FLOOR), "least": timed(LEAST)}
        if ray:
            seconds["ray"] = timed(RAY)
        seconds["first step"] = first_step(spec, ray, Path(folder))
    return seconds


def timed(code: str) -> float:
    """Seconds of a process that runs `code` and ends at once, without Python's own tidying up."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"{code}; import os; os._exit(0)"], check=True, capture_output=True)
    return time.perf_counter() - begin


def first_step(spec: Path, ray: bool, folder: Path) -> float:
    """Seconds from the command to its first step."""
    hook, reached = folder / "hooks", folder / "reached"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text((SUPPORT / "trainings" / "first_step.py").read_text())
    kept = Path(tempfile.gettempdir(), "ditlab-start-up-home")  # built-in data are made once
    environment = os.environ | {"DITLAB_HOME": str(kept), "FIRST_STEP": str(reached), "PYTHONPATH": str(hook)}
    changes = [word for change in SHORT for word in ("--set", change)]
    where = [] if ray else ["--local"]
    begin = time.time()
    command = [sys.executable, "-m", "ditlab", "train", str(spec), "--no-figures", *where, *changes]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return float(reached.read_text()) - begin


if __name__ == "__main__":
    main()
