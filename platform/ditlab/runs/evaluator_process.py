"""Evaluator of a run whose evaluation is asynchronous: the launcher's thread that has requests
answered, and an answer.

The newest request names the checkpoint that is to be evaluated (`training.async_evaluation`). One
at a time is evaluated, by a Ray task (`cluster.launch`) or, without Ray, by a process of its own:
`python -m ditlab.runs.evaluator_process`. One that is lost is started again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ditlab.checkpoints.manifest import DamagedCheckpoint
from ditlab.checkpoints.reader import CheckpointReader
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.errors import Unreachable, UserError, first_line
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.quality.measurement import FLOAT
from ditlab.receipts.records import measurement_tags
from ditlab.runs.launch import Launch
from ditlab.runs.sample_files import save_samples
from ditlab.secrets import hide
from ditlab.training.evaluation import (
    Evaluated,
    Protocol,
    StateEvaluator,
    evaluated_modules,
    save_by_sample,
)
from ditlab.training.inbox import EvaluationAnswer, Inbox
from ditlab.training.plan import TrainingRun
from ditlab_models.contract import RetiringObjective

POLL_INTERVAL = 0.5
"""Seconds between looks for a request."""
MAX_LOST = 10
"""Evaluators in a row that may be lost for one answer."""
RETRY_PAUSE = 1.0
"""Seconds after the first loss; as many more after each further one."""
NICENESS = 10
"""Niceness of an evaluator's process: training comes first where both run on the same cores."""


Evaluate = Callable[[Launch, threading.Event], str]
"""Has the newest request answered by another process, which it ends at once when the event is set.

Returns why that process ended without an answer; empty where it has answered."""


@contextmanager
def async_evaluator(
    launch: Launch, evaluate: Evaluate, warn: Callable[[str], None]
) -> Iterator[None]:
    """Have a run's requests for evaluations answered during the block, where its spec wants
    that.
    """
    if launch.experiment.evaluation.mode == "inline":
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=_serve, args=(launch, evaluate, warn, ended), name="ditlab-evaluator", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _serve(
    launch: Launch, evaluate: Evaluate, warn: Callable[[str], None], ended: threading.Event
) -> None:
    inbox = Inbox(launch.folder.evaluator)
    num_lost = 0
    while not ended.wait(POLL_INTERVAL):
        request = inbox.newest()
        if request is None:
            continue
        try:
            problem = evaluate(launch, ended)
        except Exception as error:  # of whatever runs it: steps go on, and so does this thread
            problem = first_line(error)
        if ended.is_set():
            return
        if not problem:
            num_lost = 0
            continue
        num_lost += 1
        if num_lost > MAX_LOST:
            reason = f"{num_lost} evaluators in a row were lost, the last: {problem}"
            with suppress(OSError):
                inbox.answer(request, EvaluationAnswer(request.number, error=reason))
            num_lost = 0
            continue
        warn(f"the evaluator of step {request.number} was lost ({problem}); it is started again.")
        ended.wait(RETRY_PAUSE * num_lost)


def evaluate_in_process(launch: Launch, ended: threading.Event) -> str:
    """Have a request answered by a process of its own on this machine, as `Evaluate` says: for a
    run without Ray.
    """
    variables = dict(os.environ)
    threads = launch.experiment.resources.cpus_per_worker
    if launch.threads:
        threads = launch.threads.number
    gpus: list[str] = []
    num_gpus = torch.cuda.device_count()
    if launch.experiment.evaluation.resources.gpus and num_gpus:
        visible = [each for each in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        gpus = (visible or [str(each) for each in range(num_gpus)])[:num_gpus]
    # the last GPU of those that this process may use: training takes the first
    variables["CUDA_VISIBLE_DEVICES"] = "".join(gpus[-1:])
    with (launch.folder.evaluator / "evaluator.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ditlab.runs.evaluator_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            env=variables,
        )
    assert process.stdin
    with suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(json.dumps({"launch": launch.to_dict(), "threads": threads}).encode())
    while process.poll() is None:
        if ended.wait(POLL_INTERVAL):
            process.kill()
            process.wait()
            return ""
    code = process.returncode
    if code:
        return f"its process ended with code {code}; evaluator/evaluator.log has its last words"
    return ""


def answer_request(launch: Launch, threads: int | None) -> None:
    """Evaluate the newest checkpoint that a run asks for, and answer; nothing where it asks for
    none any more.

    `threads`: those of a worker; None: torch's choice. Mistakes are the answer. Raises Unreachable
    and StorageOutage where a store does not answer, and OSError where the answer cannot be written.
    """
    with suppress(OSError):
        os.nice(NICENESS)
    inbox = Inbox(launch.folder.evaluator)
    while request := inbox.newest():
        try:
            answer = _evaluation(launch, request.number, threads)
        except Unreachable:
            raise
        except Exception as error:
            if isinstance(error, DamagedCheckpoint) and inbox.newest() != request:
                continue  # it was pruned just now
            if isinstance(error, UserError):
                text = str(error)
            else:
                text = f"{type(error).__name__}: {first_line(error)}"
            answer = EvaluationAnswer(request.number, error=hide(text).rstrip("."))
        inbox.answer(request, answer)
        return


def _evaluation(launch: Launch, step: int, threads: int | None) -> EvaluationAnswer:
    warnings: list[str] = []
    device = torch.device("cuda" if launch.experiment.evaluation.resources.gpus else "cpu")
    protocol = Protocol.of_run(launch.experiment, launch.folder, step)
    protocol = replace(protocol, threads=protocol.threads or threads)
    run = launch.changed(notify=warnings.append).training_run()
    with run.checkpoints.held(step, "evaluation") as reader, protocol.computing(device):
        found = evaluate_checkpoint(run, reader, device, protocol, warnings.append)
    components = run.experiment.objective.weights.model_dump()
    by_sample = {
        name: values for name, values in found.by_sample["eval"].items() if name in components
    }
    has_pictures = False
    try:
        save_by_sample(launch.folder, step, by_sample)
        if found.grid:
            save_samples(launch.folder, step, found.grid)
            has_pictures = True
    except OSError as error:
        warnings.append(
            f"samples and losses of step {step} cannot be stored ({error.strerror}); training "
            "goes on."
        )
    tags = measurement_tags(found.measurements)
    return EvaluationAnswer(step, found.values, tags, has_pictures, list(map(hide, warnings)))


def evaluate_checkpoint(
    run: TrainingRun,
    reader: CheckpointReader,
    device: torch.device,
    protocol: Protocol,
    warn: Callable[[str], None],
) -> Evaluated:
    """Evaluate the averaged weights of a checkpoint as the training does, in one process."""
    experiment = run.experiment
    data = run.data
    rank = Rank(0, 1, 0, device)
    precision: Any = experiment.training.precision
    if device.type == "cpu" and precision == "fp16":  # half of its operations are missing there
        precision = FLOAT
    inputs = ModelInputs.from_experiment(experiment, data.train.columns, device, warn, run.home)
    weights = partial(reader.weights, True, merged=False)
    network, objective = evaluated_modules(
        experiment, weights, data.text, device, precision, protocol.workers
    )
    if isinstance(objective, RetiringObjective):
        inputs.retire(objective.retired_fields(max(0, reader.manifest.step - 1)))
    evaluator = StateEvaluator(experiment, data, run.home, inputs, rank, ControlChannel(rank), warn)
    return evaluator.evaluate(
        network, objective, protocol.batch_size, precision=precision, inside=torch.no_grad()
    )


def main() -> None:
    """Answer a request for the launch on standard input."""
    given = json.load(sys.stdin)
    answer_request(Launch.from_dict(given["launch"]), given["threads"])


if __name__ == "__main__":
    main()
