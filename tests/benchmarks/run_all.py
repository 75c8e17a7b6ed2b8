"""Run every benchmark in a process of its own, one after the other; print a table of their figures.

    python tests/benchmarks/run_all.py [--only step/step_time ...] [--quick] [--out build/bench.json]

A benchmark's figure is the last line that it prints. Those that need Ray or MLflow are skipped where these are not
installed. `--quick` takes the sizes of `small_sizes.py`, which measure nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.small_sizes import SMALL

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
NEEDS = {
    "data/import_rate": ("ray",),
    "runs/start_up": ("mlflow",),
    "runs/sweep_cost": ("ray", "mlflow"),
    "tracking/long_run_in_mlflow": ("mlflow",),
    "tracking/tracking_outage": ("mlflow",),
}
"""Packages that a benchmark cannot run without."""


@dataclass(frozen=True)
class BenchmarkResult:
    """One benchmark's outcome."""

    name: str
    state: Literal["done", "skipped", "failed"]
    figure: str
    """Last line that it printed; for others than `done` the reason."""
    seconds: float


def is_installed(package: str) -> bool:
    """Return True if a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def run_benchmark(
    name: str, arguments: Sequence[str], is_there: Callable[[str], bool] = is_installed
) -> BenchmarkResult:
    """Run one benchmark, showing its output as it comes."""
    missing = [each for each in NEEDS.get(name, ()) if not is_there(each)]
    if missing:
        return BenchmarkResult(name, "skipped", f"needs {' and '.join(missing)}", 0.0)
    begin, lines = time.perf_counter(), [""]
    command = [sys.executable, "-u", str(FOLDER / f"{name}.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"  {line.rstrip()}", flush=True)
            if line.strip():
                lines.append(line.strip())
    seconds = time.perf_counter() - begin
    if process.returncode:
        return BenchmarkResult(name, "failed", f"exit code {process.returncode}; its output is above", seconds)
    return BenchmarkResult(name, "done", lines[-1], seconds)


def describe(results: Sequence[BenchmarkResult]) -> str:
    """Lay results out as a table: name, seconds, figure or reason."""
    width = max(len(each.name) for each in results)
    rows = [f"{'benchmark':{width}}  seconds  figure"]
    for each in results:
        figure = each.figure if each.state == "done" else f"{each.state}: {each.figure}"
        rows.append(f"{each.name:{width}}  {each.seconds:7.0f}  {figure}")
    return "\n".join(rows)


def chosen(only: Sequence[str]) -> list[str]:
    """Return the names of the benchmarks to run: all, or those of `only`. Raises ValueError for an unknown name."""
    unknown = [name for name in only if name not in SMALL]
    if unknown:
        raise ValueError(f"--only {unknown[0]} is no benchmark; choose from {', '.join(SMALL)}.")
    return [name for name in SMALL if not only or name in only]


def write(results: Sequence[BenchmarkResult], out: Path, quick: bool) -> None:
    """Write results as JSON; a reader never sees half of them."""
    document = {"quick": quick, "cores": os.cpu_count(), "results": [asdict(each) for each in results]}
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(out.name + ".part")
    part.write_text(json.dumps(document, indent=2) + "\n")
    part.replace(out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return 1 if one failed."""
    parser = argparse.ArgumentParser(description="Run every benchmark, and print a table of their figures.")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="run this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="sizes that run all of the code and measure nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench.json", help="where the JSON goes")
    options = parser.parse_args(arguments)
    try:
        names = chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    if options.out.is_dir():
        parser.error(f"--out {options.out} is a folder; name a file in it.")
    results = []
    for name in names:
        print(name, flush=True)
        results.append(run_benchmark(name, SMALL[name] if options.quick else []))
        write(results, options.out, options.quick)
    print(f"\n{describe(results)}\n{options.out}")
    return int(any(each.state == "failed" for each in results))


if __name__ == "__main__":
    sys.exit(main())
