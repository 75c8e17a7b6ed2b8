"""Savers in several processes, agreeing over a gloo group of their own."""

import tempfile

from torch import distributed

from ditlab.checkpoints.saving import BackgroundSaver
from ditlab.checkpoints.store import CheckpointStore
from support.trainings.groups import joined, warm_processes


def _worker(rank, folder, body, arguments):
    with joined(rank, 2, folder):
        body(rank, 2, *arguments)


def workers(body, *arguments):
    """Runs `body(rank, 2, *arguments)` in each of two processes; returns their exit codes."""
    context = warm_processes()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_worker, args=(rank, folder, body, arguments))
            for rank in range(2)
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


def saver_of(rank, world_size, place, keep=9):
    """This worker's saver of the run at `place`."""
    group = distributed.new_group(backend="gloo")

    def gather(mine):
        everyone = [None] * world_size
        distributed.all_gather_object(everyone, mine, group=group)
        return everyone

    return BackgroundSaver(CheckpointStore.at(place), rank, world_size, gather, keep)
