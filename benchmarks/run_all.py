"""Run every benchmark in a process of its own, one after the other; print a table of their figures.

    python benchmarks/run_all.py [--only step/step_time ...] [--device cuda] [--quick] [--out
        build/bench.json]

A benchmark's figures are those that it hands to `rounds.report`. Those that need Ray, MLflow or
DeepSpeed are skipped where these are not installed, and on CUDA those of steps and sampling that
compute on a CPU alone; benchmarks of data, tracking and runs are of the machine, and run for both.
Full sizes run on CUDA alone. `--quick` takes the sizes of `small_sizes.py`, which measure nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("", "tests"))

from benchmarks.rounds import MOST_LOAD, RESULTS, Peer
from benchmarks.small_sizes import SMALL

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
NEEDS = {
    "data/streaming": ("moto",),
    "runs/average_errors": ("deepspeed",),
    "runs/beside_work": ("mlflow", "deepspeed"),
    "runs/checkpoint_stall": ("deepspeed",),
    "runs/commands_beside_work": ("mlflow", "deepspeed"),
    "runs/command_start_up": ("mlflow", "deepspeed"),
    "runs/async_evaluation": ("ray", "deepspeed"),
    "runs/prove_cost": ("mlflow", "deepspeed"),
    "runs/recovery_time": ("ray", "deepspeed"),
    "runs/start_up": ("ray", "mlflow", "deepspeed"),
    "runs/sweep_cost": ("ray", "mlflow", "deepspeed"),
    "sampling/dit_peers": ("diffusers",),
    "step/averages_cost": ("deepspeed",),
    "step/dit_peers": ("deepspeed", "diffusers", "accelerate"),
    "step/ejected_step": ("deepspeed",),
    "step/engine_cost": ("deepspeed",),
    "step/phase_cost": ("deepspeed",),
    "step/planned_step": ("deepspeed",),
    "step/receipts_cost": ("deepspeed",),
    "step/step_time": ("deepspeed",),
    "step/workers_step": ("deepspeed",),
    "sweeps/many_trials": ("ray", "mlflow", "deepspeed", "playwright"),
    "sweeps/pair_correlation": ("deepspeed",),
    "sweeps/race_errors": ("deepspeed",),
    "sweeps/excess_loss": ("ray", "optuna", "deepspeed"),
    "tracking/journal_cost": ("mlflow", "deepspeed"),
    "tracking/long_run_in_mlflow": ("mlflow", "playwright"),
    "tracking/tracking_outage": ("mlflow", "deepspeed"),
}
"""Packages that a benchmark cannot run without, beside torch and those that a spec is read with."""
TAKES_DEVICE = (
    "sampling/dit_peers",
    "sampling/dlm_block_sampling",
    "sampling/family_sampling",
    "step/dit_peers",
    "step/dlm_loss",
    "step/family_step",
    "step/full_size",
)
"""Benchmarks with an argument `--device`."""
NEEDS_GPU = ("step/full_size",)
"""Benchmarks of sizes that no CPU bears; with `--quick` it bears them."""
COMPUTES = ("sampling/", "step/")
"""Folders whose benchmarks compute on a device."""


@dataclass(frozen=True)
class BenchmarkResult:
    """One benchmark's outcome."""

    name: str
    state: Literal["done", "skipped", "failed"]
    reason: str
    """Reason of others than `done`."""
    seconds: float
    """Seconds of its process."""
    figures: tuple[dict[str, Any], ...] = ()
    """`rounds.BenchmarkFigure` as JSON."""


def is_installed(package: str) -> bool:
    """Return True if a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def reason_to_skip(
    name: str, device: str, is_there: Callable[[str], bool] = is_installed, quick: bool = False
) -> str:
    """Return why a benchmark cannot run here, or ""."""
    missing = [each for each in NEEDS.get(name, ()) if not is_there(each)]
    if missing:
        return f"needs {' and '.join(missing)}"
    if device != "cpu" and name.startswith(COMPUTES) and name not in TAKES_DEVICE:
        return "computes on a CPU alone"
    if device == "cpu" and name in NEEDS_GPU and not quick:
        return "needs --device cuda"
    return ""


def run_benchmark(name: str, quick: bool, device: str = "cpu") -> BenchmarkResult:
    """Run one benchmark, showing its output as it comes."""
    if reason := reason_to_skip(name, device, quick=quick):
        return BenchmarkResult(name, "skipped", reason, 0.0)
    command = [sys.executable, "-u", str(FOLDER / f"{name}.py"), *(SMALL[name] if quick else [])]
    if name in TAKES_DEVICE:
        command += ["--device", device]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder, "figures")
        lines.touch()
        environment = os.environ | {RESULTS: str(lines)}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, errors="replace", env=environment
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(f"  {line.rstrip()}", flush=True)
        figures = tuple(json.loads(line) for line in lines.read_text().splitlines())
    seconds = time.perf_counter() - begin
    if process.returncode:
        reason = f"exit code {process.returncode}; its output is above"
        return BenchmarkResult(name, "failed", reason, seconds, figures)
    if not figures:
        return BenchmarkResult(name, "failed", "it reported no figure", seconds)
    return BenchmarkResult(name, "done", "", seconds, figures)


def describe(results: Sequence[BenchmarkResult]) -> str:
    """Lay results out as a table: benchmark, seconds, and a row for each figure or the reason why
    there is none.
    """
    width = max(len(each.name) for each in results)
    rows = [f"{'benchmark':{width}}  seconds  figure"]
    for each in results:
        cells = [describe_figure(figure) for figure in each.figures]
        if each.state != "done":
            cells.append(f"{each.state}: {each.reason}")
        rows.append(f"{each.name:{width}}  {each.seconds:7.0f}  {cells[0]}")
        rows += [f"{'':{width}}           {cell}" for cell in cells[1:]]
    return "\n".join(rows)


def describe_peers(results: Sequence[BenchmarkResult]) -> str:
    """Lay the rows that have a peer out as a table; "" without any."""
    rows = [("ours beside peers", "ratio", "range", "wanted", "", "peer")]
    for figure in (figure for each in results for figure in each.figures if figure["peer"]):
        peer = Peer(**figure["peer"])
        verdict = peer.verdict(figure["ratio"])
        if peer.load > MOST_LOAD:
            verdict += f"; processor {peer.processor_ratio:.2f}, {peer.load:.1f} cores busy beside"
        cells = f"{figure['ratio']:.2f}", f"{peer.least:.2f} to {peer.most:.2f}"
        rows.append((figure["name"], *cells, peer.sign, verdict, peer.name))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines) if len(rows) > 1 else ""


def describe_figure(figure: Mapping[str, Any]) -> str:
    """Describe a figure and what was measured beside it."""
    words = [f"{figure['name']}: {figure['ratio']:.3f}"]
    if figure["rounds"] > 1:
        words[0] += f" ({figure['low']:.3f} to {figure['high']:.3f}, {figure['rounds']} rounds)"
    units = (
        ("seconds", 1e3, ".1f", " ms"),
        ("samples_per_second", 1, ".4g", " samples/s"),
        ("utilisation", 1, ".2f", " utilisation"),
        ("peak_memory", 1 / 2**20, ",.0f", " MiB"),
    )
    measured = figure["measured"]
    words += [
        f"{measured[name] * scale:{form}}{unit}"
        for name, scale, form, unit in units
        if measured[name] is not None
    ]
    return ", ".join(words)


def chosen(only: Sequence[str]) -> list[str]:
    """Return the names of the benchmarks to run: all, or those of `only`. Raises ValueError for an
    unknown name.
    """
    unknown = [name for name in only if name not in SMALL]
    if unknown:
        raise ValueError(f"--only {unknown[0]} is no benchmark; choose from {', '.join(SMALL)}.")
    return [name for name in SMALL if not only or name in only]


def machine(device: str) -> dict[str, Any]:
    """Describe the machine and the code that is measured."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    changed = subprocess.run(
        [*git, "status", "--porcelain", "-uno"], capture_output=True, check=False
    ).stdout
    return {
        "cores": os.cpu_count(),
        "device": device,
        "torch": importlib.metadata.version("torch"),
        "commit": commit or None,
        "is_changed": bool(changed),
    }


def write(results: Sequence[BenchmarkResult], out: Path, heading: Mapping[str, Any]) -> None:
    """Write results behind a heading as JSON; a reader never sees half of them."""
    document = {**heading, "results": [asdict(each) for each in results]}
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(out.name + ".part")
    part.write_text(json.dumps(document, indent=2) + "\n")
    part.replace(out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return 1 if one failed."""
    parser = argparse.ArgumentParser(
        description="Run every benchmark, and print a table of their figures."
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="run this one; may be repeated"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where steps and samplers compute"
    )
    parser.add_argument(
        "--quick", action="store_true", help="sizes that run all of the code and measure nothing"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "bench.json", help="where the JSON goes"
    )
    options = parser.parse_args(arguments)
    try:
        names = chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    if options.out.is_dir():
        parser.error(f"--out {options.out} is a folder; name a file in it.")
    results, heading = [], {"quick": options.quick, **machine(options.device)}
    for name in names:
        print(name, flush=True)
        results.append(run_benchmark(name, options.quick, options.device))
        write(results, options.out, heading)
    print(
        "\n\n".join(
            filter(None, ("", describe(results), describe_peers(results), str(options.out)))
        )
    )
    return int(any(each.state == "failed" for each in results))


if __name__ == "__main__":
    sys.exit(main())
