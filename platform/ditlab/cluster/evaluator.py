"""Asynchronous evaluations as Ray tasks, with resources of their own."""

from __future__ import annotations

import os
import threading
from typing import Any

import ray

from ditlab.cluster.ray_failures import unwrap
from ditlab.cluster.session import lost_ray
from ditlab.cluster.survey import check_joining_node
from ditlab.errors import first_line
from ditlab.runs.evaluator import POLL_INTERVAL, answer_request
from ditlab.runs.launch import Launch


def evaluate_on_ray(launch: Launch, ended: threading.Event, threads: int) -> str:
    """Have a request answered by a Ray task, as `Evaluate` says, on whatever node has its resources."""
    resources = launch.experiment.evaluation.resources
    task = ray.remote(
        num_cpus=resources.cpus or 0, num_gpus=resources.gpus, resources=resources.custom or None, max_retries=0,
        max_calls=1,  # a process for each: its memory and its priority are those of no other task
        scheduling_strategy="SPREAD",  # neither on the launcher's node first, nor in the bundle of a sweep's trial
    )(answer_on_node)  # fmt: skip
    result = task.remote(launch.to_dict(), threads)
    while not lost_ray():
        if ended.is_set():
            ray.cancel(result, force=True)
            return ""
        try:
            ray.get(result, timeout=POLL_INTERVAL)
            return ""
        except ray.exceptions.GetTimeoutError:
            continue
        except ray.exceptions.RayError as error:
            return first_line(unwrap(error) or error)
    return lost_ray()


def answer_on_node(values: dict[str, Any], threads: int) -> None:
    """Answer a run's request for an evaluation, on the node of this task, which may have joined since the run began.

    Raises UserError for a node with other versions than the workers'.
    """
    launch = Launch.from_dict(values)
    os.environ["DITLAB_HOME"] = str(launch.home.root)
    check_joining_node(launch)
    answer_request(launch, threads)
