"""A proof of an experiment in processes of its own, which leaves no run behind."""

import os
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ditlab.checking.process_group import open_in_worker, run_workers
from ditlab.checking.prove.findings import Proof, ProofComparison
from ditlab.checking.prove.life import prove_run
from ditlab.checking.prove.scaled_down import scale_down
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import open_data
from ditlab.engine.distributed import Rank
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.spec.experiment import Experiment
from ditlab.spec.plugins import plugin_packages
from ditlab.training.plan import TrainingRun, plan_run
from ditlab.training.receipts import code_digest, library_versions
from ditlab.training.recovery import OutOfMemory

LEAST_PROCESSES = 4
"""Worker processes that a machine of fewer cores starts too."""


def prove_experiment(experiment: Experiment, home: Home, progress: Progress = ignore_progress) -> Proof:
    """Prove an experiment's engine on this machine, with as many workers as it has; nothing of it is kept.

    Raises:
        UserError: the data are not here, or there are more workers than this machine starts.
        RunFailed: a step does not fit into this machine's memory.
    """
    begun, workers = time.monotonic(), experiment.resources.max_workers
    wants_gpu = experiment.resources.gpus_per_worker > 0
    devices = torch.cuda.device_count() if wants_gpu else 0
    use_gpu = devices >= workers
    most = max(LEAST_PROCESSES, os.cpu_count() or 1)
    if not use_gpu and workers > most:
        raise UserError(
            f"resources.workers={workers} are more processes than this machine proves with ({most}); set "
            f"resources.workers={most} for the proof (--set), or prove where the run will train."
        )
    on_cpu = wants_gpu and not use_gpu
    scaled_down = scale_down(experiment.replace("resources.gpus_per_worker", 0) if on_cpu else experiment)
    own, noun = scaled_down.experiment, f"{workers} worker{'s' if workers > 1 else ''}"
    plan_run(own, open_data(own.data, home, verify=False))  # a mistake shows before processes start
    progress(f"training twenty steps on {noun}, and comparing each with the reference", 0, None, "")
    with tempfile.TemporaryDirectory(prefix="ditlab-prove-") as folder:
        threads = None if use_gpu else max(1, torch.get_num_threads() // workers)
        try:
            parts = run_workers(prove_worker, (own.to_dict(), str(home.root), folder), workers, use_gpu, threads)
        except OutOfMemory as error:
            raise RunFailed(
                f"a step does not fit into this machine's memory ({error.message}); set a smaller batch.micro.",
                kind="out_of_memory",
            ) from error
    engine = describe_engine(own, use_gpu)
    if on_cpu:
        engine += f"; the spec asks for GPUs ({workers}), this machine has {devices}: a proof on the CPU"
    code = code_digest(tuple(plugin_packages(experiment.to_dict())))
    made_by = {
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "spec_hash": experiment.content_hash(), "code": code,
        **library_versions(),
    }  # fmt: skip
    comparisons = tuple(each for found, _ in parts for each in found)
    untold = tuple(sentence for _, sentences in parts for sentence in sentences)
    seconds = time.monotonic() - begun
    return Proof(comparisons, experiment.name, engine, scaled_down.describe(), seconds, made_by, untold)


def prove_worker(
    rank: Rank, spec: Mapping[str, Any], root: str, folder: str
) -> tuple[list[ProofComparison], list[str]]:
    """Prove on one worker; the body of its process."""
    experiment, home, data = open_in_worker(spec, root)
    checkpoints, swap = CheckpointStore.at(Path(folder, "checkpoints")), Path(folder, "swap")
    run = TrainingRun(experiment, data, plan_run(experiment, data), checkpoints, home, swap)
    return prove_run(run, rank, Path(folder))


def describe_engine(experiment: Experiment, use_gpu: bool) -> str:
    """Return the engine as configured, in words."""
    spec, training, workers = experiment.engine, experiment.training, experiment.resources.max_workers
    device = torch.cuda.get_device_name() if use_gpu else "CPU"
    parts = {
        f"{workers} worker{'s' if workers > 1 else ''} on {device}": True,
        f"ZeRO {spec.zero.stage}": True,
        training.precision: True,
        f"{experiment.accumulation} pass{'es' if experiment.accumulation > 1 else ''} a step": True,
        f"offload to {spec.zero.offload}": spec.zero.offload != "none",
        "activation checkpointing": spec.activation_checkpointing,
        "activation offload": spec.activation_offload != "none",
        "compile: auto" if spec.compile == "auto" else "compiled": bool(spec.compile),
        f"clipping: {training.clip.kind}": True,
        experiment.optimizer.kind: True,
    }
    return ", ".join(part for part, holds in parts.items() if holds)
