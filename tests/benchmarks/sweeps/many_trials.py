"""Synthetic part, to be extended."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from ditlab.home import Home
from ditlab.reports.sweep_records import Trial
from ditlab.spec.sweep import build_sweep
from ditlab.storage.files import add_checksum
from ditlab.sweeps.prepare import local_nodes, prepare_sweep
from ditlab.sweeps.start import StartedSweep, create_sweep
from ditlab.tracking.history import DEVICES_TAG
from ditlab.tracking.journal import encode_record
from ditlab.tracking.names import flatten
from ditlab.tracking.records import FORMAT, RunRecord

METRIC = "eval/velocity"
STEPS = 6


def trivial(trials: int, **fields: Any) -> dict[str, Any]:
    """Six steps of a tiny network, over four axes."""
    return {
        "name": "trivial",
        "base": {
            "name": "trivial",
            "model": {"family": "dit", "image_size": 8, "patch_size": 4, "width": 32, "depth": 2, "num_heads": 2},
            "batch": {"size": 32},
            "training": {"steps": STEPS},
            "checkpoint": {"every": None},
            "evaluation": {"every": STEPS, "samples": 0, "limit": 64},
            "tracking": {"system_metrics": False},
        },
        "space": {
            "optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-2},
            "optimizer.weight_decay": {"kind": "uniform", "low": 0.0, "high": 0.1},
            "model.depth": {"kind": "int", "low": 1, "high": 3},
            "schedule.kind": {"kind": "choice", "values": ["constant", "warmup_cosine"]},
        },
        "metric": METRIC,
        "trials": trials,
        "concurrent": 1,
        **fields,
    }  # fmt: skip


def write_trial(home: Home, trial: Trial, parameters: dict[str, str], status: str = "finished") -> None:
    """Write the record and the journal that a trial of six steps leaves."""
    folder, begin = home.run(trial.run_id), 1_700_000_000_000 + trial.number * 2000
    folder.path.mkdir()
    when = "2026-01-01T00:00:00.000+00:00"
    record = asdict(RunRecord(
        trial.run_id, f"trivial-{trial.number:03d}", "dit", "", when, when, status=status, step=STEPS, total_steps=STEPS,
        trial=trial.number,
    ))  # fmt: skip
    kept = {key: value for key, value in record.items() if value or key == "step"} | {"parent": "", "message": ""}
    kept |= {"spec_hash": "", "tracking_uri": "", "trials": 0, "format": FORMAT}
    folder.record.write_bytes(add_checksum(__import__("json").dumps(kept).encode()))
    rate = float(trial.values["optimizer.lr"])
    lines = [
        encode_record(
            "start", {"time": begin, "run_id": trial.run_id, "name": "trivial", "experiment": "t", "family": "dit"}
        ),
        encode_record("params", {"time": begin, "values": parameters}),
        encode_record("tags", {"time": begin, "values": {DEVICES_TAG: "1 core", "ditlab.status": "running"}}),
    ]
    for step in range(STEPS + 1):
        loss = 1.0 + abs(rate * 1e3 - 2) / (step + 1) + (trial.number % 7) / 50
        values = {
            f"train/{name}": loss for name in ("loss", "velocity", "grad_norm", "lr", "samples_per_second", "skipped")
        }
        values |= {METRIC: loss} if step in (0, STEPS) else {}
        lines.append(encode_record("metrics", {"time": begin + 100 * step, "step": step, "values": values}))
    lines.append(encode_record("end", {"time": begin + 1000, "status": "finished"}))
    folder.journal.write_bytes(b"".join(lines))


def written(home: Home, num: int) -> StartedSweep:
    """A sweep of so many trials, all of which have ended."""
    os.environ["DITLAB_HOME"] = str(home.root)
    sweep = build_sweep(trivial(num), "trivial")
    started = create_sweep(prepare_sweep(sweep, "trivial", local_nodes(), remote=False))
    parameters = flatten(started.prepared.base.to_dict())
    for trial in started.past:
        write_trial(home, trial, parameters)
    return started
