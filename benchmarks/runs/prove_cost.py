"""Prints the seconds of `ditlab prove` of each family's smallest spec, over those of `import torch,
deepspeed`.

    python benchmarks/runs/prove_cost.py [--rounds N] [--family NAME ...]

Processes take turns: one imports torch and deepspeed and ends, the other proves a spec to its
verdict, in worker processes that import them too. The data are written before. Nothing is asserted.
"""

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import beside
from benchmarks.runs.start_up import run
from ditlab.data.splits import open_data
from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from support.trainings.family_specs import FAMILIES, smallest

IMPORTS = "import torch, deepspeed"
AT_MOST = 6.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--family", choices=FAMILIES, nargs="*", default=FAMILIES)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ditlab-prove-cost-"))
    os.environ["DITLAB_HOME"] = str(folder / "home")
    # without Python's own tidying up
    baseline = partial(run, [sys.executable, "-c", f"{IMPORTS}; import os; os._exit(0)"])
    for family in options.family:
        experiment = smallest(family)
        open_data(experiment.data, Home(folder / "home"))
        spec = folder / f"{family}.yaml"
        spec.write_text(dump_yaml(experiment.to_dict()), encoding="utf-8")
        command = partial(run, [sys.executable, "-m", "ditlab", "prove", str(spec)])
        beside(
            f"prove {family}", IMPORTS, command, baseline, at_most=AT_MOST, rounds=options.rounds
        )


if __name__ == "__main__":
    main()
