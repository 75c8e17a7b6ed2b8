"""A proof of an experiment in processes of its own, which leaves no run behind; a large one is scaled down before."""

import os
import re
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ditlab.data.splits import open_data
from ditlab.engine.distributed import Rank
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.inputs.flops import step_flops
from ditlab.inputs.stored_fields import check_stored
from ditlab.progress import Progress, ignore_progress
from ditlab.runs.cores import thread_text, worker_threads
from ditlab.spec.experiment import Experiment
from ditlab.spec.plugins import plugin_packages
from ditlab.training.plan import plan_run
from ditlab.training.receipts import code_digest, library_versions
from ditlab.training.recovery import OutOfMemory
from ditlab_addons.check.process_group import open_in_worker, run_workers
from ditlab_addons.check.prove.findings import Findings, Proof
from ditlab_addons.check.prove.life import RunStages, prove_run
from ditlab_models.parameters import count_parameters

LEAST_PROCESSES = 4
"""Worker processes that a machine of fewer cores starts too."""
MOST_PARAMETERS = 4_000_000
"""Parameters up to which widths and depths stay: what is compared of each step takes half a second."""
MOST_BATCH_FLOPS = 2e9
MOST_FLOPS = 1e10
"""Floating-point operations of a step up to which the batch stays, and with a batch of a few samples widths and depths:
a proof does some sixty such steps, two seconds and ten on two cores."""
MOST_PASSES = 2
"""Micro-batches of a worker that the batch goes down to."""
HALVED = {("width", "heads"): 16, ("depth", "block"): 2}
"""Last words of the fields that are halved, first widths, then depths, and below which none goes;
`objective.alignment_block` is the number of one of `model.patch_depth`."""


def prove_experiment(
    experiment: Experiment, home: Home, progress: Progress = ignore_progress, threads: int | None = None
) -> Proof:
    """Prove an experiment's engine on this machine, with as many workers as it has; nothing of it is kept.

    `threads`: of each worker on a CPU; None: as many as a new run would take.

    Raises:
        UserError: the data are not here, or there are more workers than this machine starts.
        RunFailed: a step does not fit into this machine's memory.
    """
    if experiment.optimizer.kind not in ("adamw", "muon"):
        raise UserError(
            f"optimizer.kind={experiment.optimizer.kind} is an add-on's, and the reference knows adamw and muon; prove "
            "the rest with --set optimizer.kind=adamw."
        )
    begun = time.monotonic()
    workers = experiment.resources.max_workers
    wants_gpu = experiment.resources.gpus_per_worker > 0
    num_gpus = torch.cuda.device_count() if wants_gpu else 0
    use_gpu = num_gpus >= workers
    most = max(LEAST_PROCESSES, os.cpu_count() or 1)
    if not use_gpu and workers > most:
        raise UserError(
            f"resources.workers={workers} are more processes than this machine proves with ({most}); set "
            f"resources.workers={most} for the proof (--set), or prove where the run will train."
        )
    on_cpu = wants_gpu and not use_gpu
    scaled_down = scale_down(experiment.replace("resources.gpus_per_worker", 0) if on_cpu else experiment)
    own = scaled_down.experiment
    if use_gpu:
        threads = None
    elif not threads:
        threads = worker_threads(own.resources).number
    parts = _prove_in_processes(own, home, progress, use_gpu, threads)
    engine = describe_engine(own, use_gpu, threads)
    if on_cpu:
        engine += f"; the spec asks for GPUs ({workers}), this machine has {num_gpus}: a proof on the CPU"
    made_by = {
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "spec_hash": experiment.content_hash(),
        "code": code_digest(tuple(plugin_packages(experiment.to_dict()))), **library_versions(),
    }  # fmt: skip
    comparisons = tuple(each for part in parts for each in part.all())
    untold = tuple(sentence for part in parts for sentence in part.untold)
    seconds = time.monotonic() - begun
    return Proof(comparisons, experiment.name, engine, scaled_down.describe(), seconds, made_by, untold)


def _prove_in_processes(
    experiment: Experiment, home: Home, progress: Progress, use_gpu: bool, threads: int | None
) -> list[Findings]:
    """Prove an experiment in a group of workers; return what each found."""
    workers = experiment.resources.max_workers
    data = open_data(experiment.data, home, verify=False)
    check_stored(experiment, data)  # a mistake shows before processes start
    num = RunStages.of(experiment, plan_run(experiment, data)).num_compared
    what = f"training steps on {workers} worker{'s' * (workers > 1)}, and comparing each with the reference"
    compared = partial(progress, what, total=num, unit="steps")
    compared(0)
    with tempfile.TemporaryDirectory(prefix="ditlab-prove-") as folder:
        task = experiment.to_dict(), str(home.root), folder
        try:
            return run_workers(prove_worker, task, workers, use_gpu, threads, on_done=compared)
        except OutOfMemory as error:
            raise RunFailed(
                f"a step does not fit into this machine's memory ({error.message}); set a smaller batch.micro.",
                kind="out_of_memory",
            ) from error


def prove_worker(rank: Rank, spec: Mapping[str, Any], root: str, folder: str) -> Findings:
    """Prove on one worker; the body of its process."""
    return prove_run(*open_in_worker(spec, root), rank, Path(folder))


def describe_engine(experiment: Experiment, use_gpu: bool, threads: int | None = None) -> str:
    """Return the engine as configured, in words; `threads`: of each worker on a CPU."""
    engine = experiment.engine
    training = experiment.training
    workers = experiment.resources.max_workers
    accumulation = experiment.accumulation
    device = torch.cuda.get_device_name() if use_gpu else "CPU"
    if threads:
        device += f" with {thread_text(threads)}"
    parts = {
        f"{workers} worker{'s' * (workers > 1)} on {device}": True,
        f"ZeRO {engine.zero.stage}": True,
        training.precision: True,
        f"{accumulation} pass{'es' * (accumulation > 1)} a step": True,
        f"offload to {engine.zero.offload}": engine.zero.offload != "none",
        "activation checkpointing": engine.activation_checkpointing,
        "activation offload": engine.activation_offload != "none",
        "compile: auto": engine.compile == "auto",
        "compiled": engine.compile is True,
        f"clipping: {training.clip.kind}": True,
        experiment.optimizer.kind: True,
    }
    return ", ".join(part for part, holds in parts.items() if holds)


class ScaledDownSpec:
    """Experiment to prove, made smaller by changes that it accepts and that leave the fields of a batch alone."""

    def __init__(self, experiment: Experiment) -> None:
        self._whole = experiment
        self.experiment = experiment
        self.changes: dict[str, Any] = {}
        """Fields by dotted path; empty where the experiment itself is small enough."""

    def describe(self) -> str:
        """Return what was made smaller, in words; empty for nothing."""
        if not self.changes:
            return ""
        num = num_parameters(self.experiment)
        changed = ", ".join(f"{path}={value}" for path, value in self.changes.items())
        return f"Proved on a scaled-down spec of {num:,} parameters ({changed}), which takes seconds."

    def is_small(self, most_flops: float = MOST_FLOPS) -> bool:
        """Return True if it has few parameters and operations."""
        spec = self.experiment
        return num_parameters(spec) <= MOST_PARAMETERS and step_flops(spec).model <= most_flops

    def accept(self, tried: Mapping[str, Any]) -> bool:
        """Make these changes if they are acceptable; return True if they are."""
        try:
            smaller = self._whole.replace_all({**self.changes, **tried})
            num_parameters(smaller)
        except (UserError, ValueError, AssertionError, RuntimeError):
            return False
        if smaller.batch_fields() != self._whole.batch_fields():
            return False
        self.experiment = smaller
        self.changes.update(tried)
        return True

    def reduce_batch(self, samples: int) -> None:
        """Take a batch of few samples with as many workers, that still accumulates where the experiment does."""
        whole = self._whole
        size = min(samples, whole.micro_size)
        tried = {"batch.size": min(MOST_PASSES, whole.accumulation) * size * whole.resources.max_workers}
        if whole.batch.micro:
            tried["batch.micro"] = size
        self.accept(tried)

    def halve(self, fields: Mapping[str, int], least: int) -> None:
        """Halve fields of the model together, down to `least`, until it is small."""
        while not self.is_small():
            tried = {}
            for path, value in fields.items():
                half = self.changes.get(path, value) // 2
                if half >= (1 if path.endswith(("heads", "block")) else least):
                    tried[path] = half
            if not tried or not self.accept(tried):
                return


def num_parameters(experiment: Experiment) -> int:
    """Return the number of an experiment's parameters."""
    return count_parameters(experiment.model, experiment.objective, experiment.training).total


def scale_down(experiment: Experiment) -> ScaledDownSpec:
    """Return the experiment itself where it is small; else with batch, widths and depths reduced until it is small.

    Only changes that the spec accepts and that leave the fields of a batch alone are made, so that the same data fit.
    Widths, and then depths, are halved all together first, as the width of a network depends on its heads, a block's
    number on the depth; then each alone.
    """
    found = ScaledDownSpec(experiment)
    if not found.is_small(MOST_BATCH_FLOPS):
        found.reduce_batch(4)
    spec = experiment.to_dict()
    values = {f"{section}.{name}": value for section in ("model", "objective") for name, value in spec[section].items()}
    numbers = {path: value for path, value in values.items() if type(value) is int}
    for names, least in HALVED.items():
        fields = {path: value for path, value in numbers.items() if re.split("[._]", path)[-1] in names}
        found.halve(fields, least)
        for path, value in fields.items():
            found.halve({path: value}, least)
    if not found.is_small():
        found.reduce_batch(1)
    return found
