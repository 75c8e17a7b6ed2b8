"""A proof of an experiment in processes of its own, which leaves no run behind."""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from ditlab.data.splits import open_data
from ditlab.engine.distributed import Rank
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
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

LEAST_PROCESSES = 4
"""Worker processes that a machine of fewer cores starts too."""


def prove_experiment(
    experiment: Experiment,
    home: Home,
    progress: Progress = ignore_progress,
    threads: int | None = None,
) -> Proof:
    """Prove an experiment's engine on this machine, with as many workers as it has; nothing of it
    is kept.

    `threads`: of each worker on a CPU; None: as many as a new run would take.

    Raises:
        UserError: the data are not here, or there are more workers than this machine starts.
        RunFailed: a step does not fit into this machine's memory.
    """
    if experiment.optimizer.kind not in ("adamw", "muon"):
        raise UserError(
            f"optimizer.kind={experiment.optimizer.kind} is an add-on's, and the reference "
            "knows adamw and muon; prove the rest with --set optimizer.kind=adamw."
        )
    begun = time.monotonic()
    workers = experiment.resources.max_workers
    wants_gpu = experiment.resources.gpus_per_worker > 0
    num_gpus = torch.cuda.device_count() if wants_gpu else 0
    use_gpu = num_gpus >= workers
    most = max(LEAST_PROCESSES, os.cpu_count() or 1)
    if not use_gpu and workers > most:
        raise UserError(
            f"resources.workers={workers} are more processes than this machine proves with "
            f"({most}); set resources.workers={most} for the proof (--set), or prove where the "
            "run will train."
        )
    own = experiment
    lacks = ""
    if wants_gpu and not use_gpu:
        own = experiment.replace("resources.gpus_per_worker", 0)
        lacks = (
            f"; the spec asks for GPUs ({workers}), this machine has {num_gpus}: a proof on the CPU"
        )
    if use_gpu:
        threads = None
    elif not threads:
        threads = worker_threads(own.resources).number
    data = open_data(own.data, home, verify=False)
    check_stored(own, data)  # a mistake shows before processes start
    num = RunStages.of(own, plan_run(own, data)).num_compared
    what = (
        f"training steps on {workers} worker{'s' * (workers > 1)}, and comparing each with the "
        "reference"
    )
    compared = partial(progress, what, total=num, unit="steps")
    compared(0)
    with tempfile.TemporaryDirectory(prefix="ditlab-prove-") as folder:
        task = own.to_dict(), str(home.root), folder
        try:
            parts: list[Findings] = run_workers(
                prove_worker, task, workers, use_gpu, threads, on_done=compared
            )
        except OutOfMemory as error:
            raise RunFailed(
                f"a step does not fit into this machine's memory ({error.message}); set a "
                "smaller batch.micro.",
                kind="out_of_memory",
            ) from error
    made_by = {
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "spec_hash": experiment.content_hash(),
        "code": code_digest(tuple(plugin_packages(experiment.to_dict()))),
        **library_versions(),
    }
    engine = describe_engine(own, use_gpu, threads) + lacks
    return join_findings(parts, experiment.name, engine, time.monotonic() - begun, made_by)


def join_findings(
    parts: Sequence[Findings], spec: str, engine: str, seconds: float, made_by: Mapping[str, str]
) -> Proof:
    """Return the proof that all workers' findings are together."""
    return Proof(
        tuple(chain.from_iterable(part.all() for part in parts)),
        spec,
        engine,
        seconds,
        made_by,
        untold=tuple(chain.from_iterable(part.untold for part in parts)),
        unchecked=tuple(chain.from_iterable(part.unchecked for part in parts)),
        untrained=tuple(chain.from_iterable(part.untrained for part in parts)),
    )


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
    return ", ".join(
        [
            f"{workers} worker{'s' * (workers > 1)} on {device}",
            f"ZeRO {engine.zero.stage}",
            training.precision,
            f"{accumulation} pass{'es' * (accumulation > 1)} a step",
            f"offload {engine.zero.offload}",
            f"activation checkpointing {engine.activation_checkpointing}",
            f"compile {engine.compile}",
            f"clipping {training.clip.kind}",
            experiment.optimizer.kind,
        ]
    )
