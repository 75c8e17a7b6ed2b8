"""Savers in several processes, agreeing over a gloo group of their own."""

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from ditlab.checkpoints.saving import BackgroundSaver
from ditlab.checkpoints.store import CheckpointStore
from support.trainings.groups import warm_processes


def _worker(
    rank: int,
    world_size: int,
    rendezvous: str,
    body: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    body(rank, world_size, *arguments)
    distributed.destroy_process_group()


def workers(body: Callable[..., None], *arguments: Any, world_size: int = 2) -> list[int | None]:
    """Runs `body(rank, world_size, *arguments)` in each of `world_size` processes; returns their
    exit codes.
    """
    context = warm_processes()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(
                target=_worker, args=(rank, world_size, f"{folder}/rendezvous", body, arguments)
            )
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        try:
            for process in processes:
                process.join(60)
            return [process.exitcode for process in processes]
        finally:
            for process in processes:
                process.kill()


def saver_of(
    rank: int, world_size: int, place: str, keep: int = 9, **options: Any
) -> BackgroundSaver:
    """This worker's saver of the run at `place`."""
    group = distributed.new_group(backend="gloo")

    def gather(mine: Any) -> list[Any]:
        everyone: list[Any] = [None] * world_size
        distributed.all_gather_object(everyone, mine, group=group)
        return everyone

    return BackgroundSaver(CheckpointStore.at(place), rank, world_size, gather, keep, **options)
