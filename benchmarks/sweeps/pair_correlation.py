"""Gain of pairing: correlation over seeds of two configurations that differ along one axis, by kind
of axis, on digits and text.

Configurations of one seed share the start of the network, the order of samples and all random
numbers, as far as the axis leaves them alike. With a correlation r (and equal variances) the
variance of a difference of two configurations is 1 - r times that between configurations of
different seeds. The figure of an axis is the standard deviation of paired differences over that of
unpaired ones; `other seed` pairs seeds that have nothing to do with each other: 1 but for chance.

    python benchmarks/sweeps/pair_correlation.py [--seeds 12] [--processes 2] [--only digits]
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

import numpy as np

from benchmarks.rounds import report
from benchmarks.short_trainings import HOMES, final_value, in_processes
from ditlab.data.splits import open_data
from ditlab.home import Home
from ditlab.spec.files import build_experiment

COMMON: dict[str, Any] = {
    "optimizer": {"kind": "adamw", "lr": 2e-3, "weight_decay": 0.01},
    "schedule": {"kind": "warmup_cosine", "warmup": 20, "final": 0.05},
    "checkpoint": {"every": None},
    "tracking": {"system_metrics": False},
}
DIT = {"family": "dit", "image_size": 8, "patch_size": 2, "width": 32, "depth": 2, "num_heads": 2}
DLM = {"family": "dlm", "length": 64, "vocabulary": 256, "width": 32, "depth": 2, "num_heads": 2}
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("eval/velocity", {"model": DIT, "data": {"kind": "digits"}, "batch": {"size": 64}}),
    "text": (
        "eval/bound",
        {
            "model": {**DLM, "condition_width": 32, "time_width": 32},
            "objective": {"noise": {"sigma_max": 20.0}},
            "data": {"kind": "text", "length": 64},
            "batch": {"size": 16},
        },
    ),
}
"""Metric and experiment of each data set."""
AXES: dict[str, dict[str, Any]] = {
    "rate": {"optimizer.lr": 3e-3},
    "schedule": {"schedule": {"kind": "constant", "warmup": 20}},
    "loss weight": {"objective.weights.direction": 0.5},
    "time density": {"objective.time": {"kind": "logit_normal"}},
    "width": {"model.width": 48},
    "micro-batch": {"batch.micro": 8},
    "order of samples": {},
    "other seed": {},
}
"""Changes of the second configuration; the micro-batch is what random numbers but the order and the
start are keyed by. The order of samples is that by streams, with another tenth of them held out, as
another seed of the data would give."""
OTHER = 1_000_000
"""Distance of the seeds of `other seed`."""


def configuration(job: tuple[str, str, int], steps: int) -> float:
    """Train one configuration of a seed (axis "": the base), and return its metric."""
    name, axis, seed = job
    metric, own = BASES[name]
    evaluation = {"every": steps, "samples": 0, "limit": 180}
    training = {"steps": steps, "ema": {"decay": 0.97}}
    base = build_experiment(
        {"name": name, **COMMON, **own, "training": training, "evaluation": evaluation}, name
    )
    changes = {**AXES.get(axis, {}), "seed": seed + (OTHER if axis == "other seed" else 0)}
    if axis == "order of samples":
        store, order = (
            open_data(base.data, Home(HOMES)).train.store.path,
            {"kind": "interleaved", "streams": 4},
        )
        changes["data"] = {"kind": "arrow", "path": str(store), "hold_out": 0.1, "order": order}
    return final_value(base.replace_all(changes), metric)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", choices=BASES)
    parser.add_argument("--axis", choices=AXES, help="this one alone")
    options = parser.parse_args()
    pairs = [
        (name, axis)
        for name in BASES
        for axis in AXES
        if options.only in (None, name)
        and options.axis in (None, axis)
        and (name, axis) != ("text", "loss weight")  # it has one component
    ]
    configurations = [*dict.fromkeys((name, "") for name, _ in pairs), *pairs]
    jobs = [(*each, seed) for each in configurations for seed in range(options.seeds)]
    values = np.array(
        in_processes(partial(configuration, steps=options.steps), jobs, options.processes)
    )
    by_configuration = dict(
        zip(configurations, values.reshape(len(configurations), -1), strict=True)
    )
    print(
        "correlation of the configurations, mean difference and its standard deviation over seeds, "
        "paired and unpaired:"
    )
    for name, axis in pairs:
        one, two = by_configuration[name, ""], by_configuration[name, axis]
        difference, apart = (two - one).std(ddof=1), (one.var(ddof=1) + two.var(ddof=1)) ** 0.5
        correlation = np.corrcoef(one, two)[0, 1]
        note = (
            f"correlation {correlation:.2f}; difference {(two - one).mean():+.4f}, std "
            f"{difference:.4f} ({apart:.4f})"
        )
        report(
            f"{name}, {axis}: std of paired over unpaired differences",
            [float(difference / apart)],
            note=note,
        )


if __name__ == "__main__":
    main()
