"""Proofs of many experiments in one group of worker processes, as a start of each would take longer
than its proof.
"""

import tempfile
import traceback
from pathlib import Path

import torch

from ditlab.data.splits import open_data
from ditlab.engine.distributed import single_process
from ditlab.home import Home
from ditlab.spec.experiment import class_for
from ditlab_addons.check import process_group
from ditlab_addons.check.process_group import run_workers
from ditlab_addons.check.prove.findings import ProofComparison
from ditlab_addons.check.prove.life import prove_run
from support.garbage import exempt_imports
from support.trainings.groups import warm_processes

MIXTURE = {
    "kind": "mixture",
    "weights": {"a": 2.0, "b": 1.0},
    "parts": {"a": {"kind": "digits"}, "b": {"kind": "digits", "hold_out": 0.2}},
}
"""Data of two parts."""


def prove_here(experiment, home):
    """Prove an experiment of one worker in this process."""
    with tempfile.TemporaryDirectory() as folder, single_process(use_gpu=False) as rank:
        found = _prove(experiment, rank, home, Path(folder))
    exempt_imports()
    return found


def prove_all(experiments, home, monkeypatch):
    """Prove experiments of equally many workers one after the other on the same processes; each
    one's comparisons.
    """
    num = experiments[0].resources.max_workers
    for experiment in experiments:
        open_data(experiment.data, Home(home))  # prepared once, not by two workers at a time
    monkeypatch.setattr(process_group, "_context", warm_processes)
    with tempfile.TemporaryDirectory() as folder:
        specs = [experiment.to_dict() for experiment in experiments]
        workers = run_workers(_body, (specs, str(home), folder), num, threads=1)
    return [[each for part in parts for each in part] for parts in zip(*workers, strict=True)]


def off(comparisons):
    """Return a line for each comparison that does not hold, or one that says that there are none at
    all.
    """
    lines = [
        (
            f"{each.phase}: {each.module} {each.what}: {each.distance:.3g} > {each.bound:.3g} "
            f"({each.detail})"
        )
        for each in comparisons
        if not each.holds
    ]
    return lines if comparisons else ["nothing was compared"]


def _body(rank, specs, home, folder):
    torch.set_num_threads(1)
    found = []
    for number, spec in enumerate(specs):
        experiment = class_for(spec).model_validate(spec)
        place = Path(folder, str(number))
        place.mkdir(exist_ok=True)
        exempt_imports()
        try:
            found.append(_prove(experiment, rank, Path(home), place))
        except Exception as error:
            if rank.world_size > 1:
                raise  # the other worker waits in a collective
            where = "".join(traceback.format_exception(error)[-4:])
            found.append([ProofComparison("loss", "a proof to its end", 1.0, 0.0, where)])
    return found


def _prove(experiment, rank, home, folder):
    open_data(experiment.data, Home(home))
    return prove_run(experiment, Home(home), rank, folder).all()
