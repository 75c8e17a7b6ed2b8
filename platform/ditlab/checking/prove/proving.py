"""A proof of an experiment in processes of its own, which leaves no run behind."""

import os
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ditlab.checking.process_group import run_workers
from ditlab.checking.prove.findings import Proof, ProofComparison
from ditlab.checking.prove.life import prove_run
from ditlab.checking.prove.scaled_down import scale_down
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import open_data
from ditlab.engine.distributed import Rank
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.spec.experiment import Experiment, class_for
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
    begun = time.monotonic()
    workers = experiment.resources.max_workers
    wants_gpu = experiment.resources.gpus_per_worker > 0
    devices = torch.cuda.device_count() if wants_gpu else 0
    use_gpu = devices >= workers
    lacks_gpu = wants_gpu and not use_gpu
    if not use_gpu:
        check_processes(workers)
    scaled_down = scale_down(experiment.replace("resources.gpus_per_worker", 0) if lacks_gpu else experiment)
    own = scaled_down.experiment
    data = open_data(own.data, home, verify=False)  # a mistake shows before processes start
    plan_run(own, data)
    progress(f"training twenty steps on {_num(workers, 'worker')}, and comparing each with the reference", 0, None, "")
    with tempfile.TemporaryDirectory(prefix="ditlab-prove-") as folder:
        threads = None if use_gpu else max(1, torch.get_num_threads() // workers)
        try:
            parts = run_workers(
                prove_worker, (own.to_dict(), str(home.root), folder, use_gpu), workers, use_gpu, threads
            )
        except OutOfMemory as error:
            raise RunFailed(
                f"a step does not fit into this machine's memory ({error.message}); set a smaller batch.micro.",
                kind="out_of_memory",
            ) from error
    comparisons = tuple(each for found, _ in parts for each in found)
    untold = tuple(sentence for _, sentences in parts for sentence in sentences)
    engine = describe_engine(own, use_gpu)
    if lacks_gpu:
        gpus = f"{_num(workers, 'GPU')} {'is' if workers == 1 else 'are'}"
        engine += f"; the spec's {gpus} not here ({devices} found), so this is a proof on the CPU"
    seconds = time.monotonic() - begun
    return Proof(comparisons, experiment.name, engine, scaled_down.describe(), seconds, _made_by(experiment), untold)


def prove_worker(
    rank: Rank, spec: Mapping[str, Any], root: str, folder: str, use_gpu: bool
) -> tuple[list[ProofComparison], list[str]]:
    """Prove on one worker; the body of its process."""
    home = Home(Path(root))
    for name, value in home.cache_variables().items():
        os.environ.setdefault(name, value)
    experiment = class_for(spec).model_validate(dict(spec))
    os.environ.update(experiment.resources.network.environment())
    data = open_data(experiment.data, home, verify=False)
    place = Path(folder)
    run = TrainingRun(
        experiment, data, plan_run(experiment, data), CheckpointStore.at(place / "checkpoints"), home, place / "swap"
    )
    return prove_run(run, rank, place)


def check_processes(workers: int) -> None:
    """Raise UserError for more worker processes than this machine starts."""
    most = max(LEAST_PROCESSES, os.cpu_count() or 1)
    if workers > most:
        raise UserError(
            f"resources.workers={workers} are more processes than this machine proves with ({most}); set "
            f"resources.workers={most} for the proof (--set), or prove where the run will train."
        )


def describe_engine(experiment: Experiment, use_gpu: bool) -> str:
    """Return the engine as configured, in words."""
    spec, training, workers = experiment.engine, experiment.training, experiment.resources.max_workers
    device = torch.cuda.get_device_name() if use_gpu else "CPU"
    parts = [
        f"{_num(workers, 'worker')} on {device}", f"ZeRO {spec.zero.stage}", training.precision,
        f"{experiment.accumulation} pass{'es' if experiment.accumulation > 1 else ''} a step",
    ]  # fmt: skip
    parts += [f"offload to {spec.zero.offload}"] if spec.zero.offload != "none" else []
    parts += ["activation checkpointing"] if spec.activation_checkpointing else []
    parts += ["activation offload"] if spec.activation_offload != "none" else []
    parts += ["compiled"] if spec.compile is True else ["compile: auto"] if spec.compile == "auto" else []
    return ", ".join([*parts, f"clipping: {training.clip.kind}", experiment.optimizer.kind])


def _made_by(experiment: Experiment) -> dict[str, str]:
    date = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    code = code_digest(tuple(plugin_packages(experiment.to_dict())))
    return {"date": date, "spec_hash": experiment.content_hash(), "code": code, **library_versions()}


def _num(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}"
