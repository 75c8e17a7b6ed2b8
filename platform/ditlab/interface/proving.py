"""Proof of an experiment's engine: what `ditlab prove` calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.spec.experiment import Experiment
from ditlab.spec.loading import load_experiment

if TYPE_CHECKING:
    from ditlab.checking.prove.findings import Proof


def prove(
    experiment: Experiment | str | Path, overrides: Sequence[str] = (), *, on_progress: Progress = ignore_progress
) -> Proof:
    """Compare the engine that an experiment configures with plain float64 and float32 readings of the same steps.

    `experiment`: validated, or the path of its YAML; `overrides`: `field.path=value` changes of it. A large one is
    proved on a twin of less width, depth and batch (`Proof.twin`). The proof runs in processes of its own and leaves no
    run behind: a program that calls this keeps its start behind `if __name__ == "__main__"`.

    Raises:
        UserError: the spec is wrong, its data are not here, or it has more workers than this machine starts.
        RunFailed: a step does not fit into this machine's memory.
    """
    from ditlab.checking.prove.proving import prove_experiment

    if isinstance(experiment, str | Path):
        experiment = load_experiment(Path(experiment), overrides)
    elif overrides:
        raise UserError(f"overrides={list(overrides)} change a YAML file, and none is given; pass its path.")
    return prove_experiment(experiment, Home.from_environment(), on_progress)
