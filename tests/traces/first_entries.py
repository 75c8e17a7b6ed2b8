"""Prints the files that a spec passes from the command to the first step, and a batch from the
store to the journal.

    python tests/traces/first_entries.py [--ray] [--json] [SPEC]

A short training runs with a profile hook in every process that it starts. The way of a spec: in
order, each file with a function that holds the spec (an argument is the experiment, or a record
with it among its fields) until the first step begins. The way of a batch: each file with a function
that is given the batch or what is computed of it (tensors, arrays, tables, metrics by name) during
the steps. Base records (specs, the contract, errors, home: fields and checks, which everybody
holds) are dropped. The script also counts all first entries until the first step, and lists calls
that go from a lower room into a higher one.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]
SOURCES = (CHECKOUT / "platform" / "ditlab", CHECKOUT / "models" / "ditlab_models")
SPEC = CHECKOUT / "experiments" / "digits" / "dit.yaml"
SHORT = (
    "training.steps=40",
    "schedule.warmup=0",
    "evaluation.every=null",
    "evaluation.samples=0",
    "checkpoint.every=null",
    "batch.size=8",
    "batch.micro=8",
    "resources.workers=1",
    "tracking.system_metrics=false",
    # the page at a run's end reads the files that the run left, its spec among them
    "tracking.report=false",
)
ROOMS = (
    "cli",
    "api",
    "sweeps analysis",
    "cluster",
    "runs",
    "training",
    "quality",
    "inputs",
    "engine data checkpoints tracking reports",
    "encoders weights",
    "spec",
    "receipts averages",
    "home",
    "storage",
    "parts secrets errors numerics progress",
    "ditlab_models",
)
"""Top to bottom; rooms of one line do not call each other."""
UPLOAD = (
    "ditlab/tracking/backend.py",
    "ditlab/tracking/mlflow_backend.py",
    "ditlab/tracking/upload.py",
)
"""Files of the thread that sends the journal to MLflow at a pace of its own."""
BASE = (
    "ditlab/spec/",
    "ditlab/errors",
    "ditlab/home",
    "ditlab/secrets",
    "ditlab/__main__",
    "ditlab_models/contract",
)
BASE_NAMES = ("spec.py", "model_spec.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("spec", nargs="?", type=Path, default=SPEC)
    parser.add_argument(
        "--ray", action="store_true", help="train on Ray, as `ditlab train` does; else --local"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    found = trace(arguments.spec, arguments.ray)
    if arguments.json:
        print(json.dumps(found))
        return
    for way in ("spec", "batch"):
        print(f"The way of a {way}: {len(found[way])} files")
        print("".join(f"  {number:2} {line}\n" for number, line in enumerate(found[way], 1)))
    print(f"All first entries until the first step, base records among them: {found['all']}")
    print(f"Validations of the spec, by process: {', '.join(map(str, found['validations']))}")
    print(f"Calls from a lower room into a higher one: {len(found['upward'])}")
    print("".join(f"  {line}\n" for line in found["upward"]))


def trace(spec: Path = SPEC, ray: bool = False) -> dict[str, Any]:
    """Return `spec` and `batch`, files in order of first entry; `all`, a number; `upward`, calls as
    `caller -> callee`; `validations` of the spec by process."""
    with tempfile.TemporaryDirectory() as folder:
        hooks = Path(folder, "hooks")
        hooks.mkdir()
        shutil.copy(Path(__file__).with_name("trace_hook.py"), hooks / "sitecustomize.py")
        environment = {
            **os.environ,
            "DITLAB_HOME": str(Path(folder, "home")),
            "TRACE_FOLDER": folder,
            "OMP_NUM_THREADS": "1",
            "TRACE_SOURCES": os.pathsep.join(map(str, SOURCES)),
            "PYTHONPATH": os.pathsep.join([str(hooks), *(str(path.parent) for path in SOURCES)]),
        }
        changes = [word for change in SHORT for word in ("--set", change)]
        command = [sys.executable, "-m", "ditlab", "train", str(spec), *changes]
        untraced = {**environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        _run([*command, "--dry-run"], untraced)  # makes the store
        # The figures of a run's end open the run as anybody would, which reads its recorded spec.
        _run([*command, "--no-figures", *([] if ray else ["--local"])], environment)
        place = Path(folder)
        spec, batch, every = (list(_files(place, way)) for way in ("spec", "batch", "all"))
        counts = [int(path.read_text()) for path in place.glob("validations-*.txt")]
        return {
            "spec": [name for name in spec if not _is_base(name)],
            # The way ends with the journal's line, which the sender's thread reads at a pace of its
            # own.
            "batch": [name for name in batch if not _is_base(name) and name not in UPLOAD],
            "all": len(every),
            "upward": sorted(set(_upward(place))),
            "validations": sorted(counts),
        }


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _is_base(name: str) -> bool:
    return name.startswith(BASE) or name.endswith(BASE_NAMES)


def _files(folder: Path, way: str) -> Iterator[str]:
    """Files in order of their first entry over all processes."""
    rows = [
        json.loads(line)
        for path in folder.glob(f"{way}-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    yield from dict.fromkeys(row["file"] for row in sorted(rows, key=lambda row: row["time"]))


def _upward(folder: Path) -> Iterator[str]:
    for path in folder.glob("calls-*.json"):
        for caller, callee in json.loads(path.read_text()):
            if not _is_base(caller) and not _is_base(callee) and _level(callee) < _level(caller):
                yield f"{caller} -> {callee}"


def _level(file: str) -> int:
    """The line of ROOMS that a file belongs to."""
    package, room = Path(file).with_suffix("").parts[:2]
    name = "ditlab_models" if package == "ditlab_models" else room
    return next(level for level, rooms in enumerate(ROOMS) if name in rooms.split())


if __name__ == "__main__":
    main()
