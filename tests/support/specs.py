"""Specs of tests: axes of sweeps, shipped files, and the sentence that refuses a spec."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ditlab.errors import UserError
from ditlab.spec.files import find_file_kind, is_sweep

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
TRAINED = [path for path in sorted(EXPERIMENTS.glob("*/*.yaml")) if not find_file_kind(path)]
SWEEPS = [path for path in TRAINED if is_sweep(path)]
FILES = [path for path in TRAINED if path not in SWEEPS]
RATE = {"kind": "loguniform", "low": 1e-4, "high": 1e-2}
RATES = {"optimizer.lr": RATE}
"""A space of learning rates."""


def whole(low, high):
    return {"kind": "int", "low": low, "high": high}


def uniform(low, high):
    return {"kind": "uniform", "low": low, "high": high}


def grid(*values):
    return {"kind": "grid", "values": list(values)}


def choice(*values, **when):
    """`schedule__kind="constant"` is a condition on `schedule.kind`."""
    return {"kind": "choice", "values": list(values), "when": dotted(when)}


def dotted(values):
    return {path.replace("__", "."): value for path, value in values.items()}


def refusal(load: Callable, *arguments: Any) -> str:
    """The one line that refuses what a call reads."""
    with pytest.raises(UserError) as error:
        load(*arguments)
    message = str(error.value)
    assert "\n" not in message
    return message
