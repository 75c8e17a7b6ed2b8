"""Detection of random draws without a key, and a record of those with one."""

import hashlib
import json
import random
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ditlab.engine.distributed import single_process
from ditlab.home import RunFolder
from ditlab.receipts.reading import read_receipts
from ditlab.receipts.writer import ReceiptWriter
from ditlab.spec.experiment import class_for
from ditlab.training.trainer import train
from support.garbage import exempt_imports
from support.trainings.groups import joined, run_group
from support.trainings.workers import Recorder, training_run


def global_states():
    """Return the states of torch's, numpy's and Python's global generators."""
    numpy_state = np.random.get_state(legacy=False)
    return (
        torch.get_rng_state().numpy().tobytes(),
        repr(numpy_state).encode(),
        repr(random.getstate()).encode(),
    )


class UnkeyedDraws(TorchDispatchMode):
    """Record of random operations without a generator of their own, in this thread and torch's
    backward passes.

    Not those on the meta device, where a step's operations are counted: they draw no number.
    """

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            names = [argument.name for argument in func._schema.arguments]
            given = dict(zip(names, args, strict=False)) | kwargs
            tensors = [one for one in given.values() if isinstance(one, Tensor)]
            is_meta = str(given.get("device")) == "meta" or any(one.is_meta for one in tensors)
            drops_out = given.get("dropout_p", 0.0) > 0 or "attention" not in str(func)
            if drops_out and not is_meta and given.get("generator") is None:
                self.found.append(str(func))
        return func(*args, **kwargs)


@dataclass
class Watched(Recorder):
    """Recorder of unkeyed draws from the first report of the step loop on; weights may be drawn
    before it.
    """

    unkeyed: UnkeyedDraws = field(default_factory=UnkeyedDraws)
    before: tuple[bytes, ...] | None = None

    def progress(self, progress):
        if self.before is None:
            self.before = global_states()
            self.unkeyed.__enter__()
        super().progress(progress)

    def escaped(self):
        """Return unkeyed draws: operations, and global generators whose state changed."""
        assert self.before is not None, "the step loop never reported"
        self.unkeyed.__exit__(None, None, None)
        names = ("torch", "numpy", "random")
        moved = [
            name
            for name, old, new in zip(names, self.before, global_states(), strict=True)
            if old != new
        ]
        return self.unkeyed.found + [f"{name}'s global generator" for name in moved]


def train_watched(experiment, home, checkpoints):
    """Train in this process; return the recorder, and the unkeyed draws."""
    recorder = Watched()
    run = training_run(experiment, home, checkpoints)
    with single_process(use_gpu=False) as rank:
        train(run, rank, recorder)
        escaped = recorder.escaped()
    exempt_imports()
    return recorder, escaped


@contextmanager
def recorded_draws(experiment):
    """Record every draw of the experiment's objective in the body, sample by sample.

    The assignment of draws to micro-batches is under test, so a sample is identified by its own
    bytes.
    """
    record = {}
    cls = type(experiment.family.build_objective(experiment.objective, experiment.model))
    originals = {name: getattr(cls, name) for name in ("loss", "metrics")}

    def writing(original):
        def call(self, network, batch, noise):
            return original(self, network, batch, _RecordingNoise(noise, batch, record))

        return call

    with mock.patch.multiple(
        cls, **{name: writing(original) for name, original in originals.items()}
    ):
        yield record


class _RecordingNoise:
    """Noise source that records its numbers."""

    def __init__(self, noise, batch, record):
        self._noise, self._record = noise, record
        step = getattr(noise, "step", "fixed")
        rows = zip(*(_digests(values) for _, values in sorted(batch.items())), strict=True)
        self._keys = [f"{noise.stream}/{step}/{'-'.join(row)}" for row in rows]

    def uniform(self, name, shape):
        return self._write(name, self._noise.uniform(name, shape))

    def normal(self, name, shape):
        return self._write(name, self._noise.normal(name, shape))

    def _write(self, name, values):
        for key, digest in zip(self._keys, _digests(values), strict=True):
            drawn = self._record.setdefault(f"{key}/{name}", [])
            if digest not in drawn:
                drawn.append(digest)
                drawn.sort()
        return values


def _digests(values):
    return [
        hashlib.blake2b(row.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
        for row in values
    ]


def train_recorded_draws(experiment, home, folder, world_size):
    """Train on workers, each of several in a process; return the `record` and the `values` by step
    of each.
    """
    folder.mkdir()
    if world_size == 1:
        with single_process(use_gpu=False) as alone:
            _train_and_write(experiment, home, folder, alone)
    else:
        run_group(_worker, (experiment.to_dict(), home, folder, world_size), world_size)
    return [json.loads((folder / f"record-{rank}.json").read_text()) for rank in range(world_size)]


def _worker(rank, spec, home, folder, world_size):
    with joined(rank, world_size, folder) as place:
        _train_and_write(class_for(spec).model_validate(spec), home, folder, place)


def _train_and_write(experiment, home, folder, rank):
    recorder = Recorder()
    if rank.is_first:
        recorder.receipts = ReceiptWriter(RunFolder(folder), recorder.warn)
    with recorded_draws(experiment) as record:
        train(training_run(experiment, home, folder / "checkpoints"), rank, recorder)
    left = {"record": record, "values": recorder.values}
    if recorder.receipts:
        recorder.receipts.close()
        left["samples"] = read_receipts(RunFolder(folder)).rows["samples"].tolist()
    (folder / f"record-{rank.rank}.json").write_text(json.dumps(left))
