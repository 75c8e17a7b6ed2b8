"""Receipts of a run in training: digests of the samples that its steps consume, and facts of its
attempts.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import math
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch

from ditlab.engine.distributed import Rank
from ditlab.numerics import NUMERICS_VERSION
from ditlab.receipts.records import (
    LEFT_OUT,
    NOT_APPLIED,
    ORIGIN,
    VERBS,
    RecordedAttempt,
    draw_places,
    joined_digest,
    samples_digest,
)
from ditlab.receipts.writer import ReceiptWriter
from ditlab.spec.compiling import compile_decision
from ditlab.spec.plugins import installed_version, plugin_packages
from ditlab.storage.plain_files import MIB, read_plain
from ditlab.training.hooks import ConsumedPass, StepHook
from ditlab.training.plan import TrainingRun
from ditlab.training.recovery import MemoryPlan
from ditlab.training.reporting import AgreedRequest
from ditlab.training.stepping import Stepper

LIBRARIES = ("torch", "deepspeed", "numpy")
"""Libraries that a step's numbers come from."""
OWN_PACKAGES = ("ditlab", "ditlab_models")


class StepReceipts(StepHook):
    """Receipts of one worker's steps; the first worker writes those of all.

    A step is written once all workers' digests of its samples and its metrics are there; metrics of
    a GPU come later.
    """

    def __init__(
        self, run: TrainingRun, rank: Rank, writer: ReceiptWriter | None, request: AgreedRequest
    ) -> None:
        """`writer` None: digests are exchanged, and nothing is written. `request`: a hook before
        this one.
        """
        self._run = run
        self._rank = rank
        self._writer = writer
        self._request = request
        self._own = 0
        self._digests: dict[int, int] = {}
        """Digest of the samples of a step, of all workers."""
        self._values: dict[int, tuple[float, float, float]] = {}
        """Loss, gradient norm and learning rate of a step."""
        self._asked: dict[int, int] = {}
        """Place, from 1, of the verb that was agreed on after a step."""
        self._skipped: set[int] = set()
        self._next = 0

    def attempt_begun(self, stepper: Stepper, memory: MemoryPlan, saved: Mapping[str, str]) -> None:
        """Begin an attempt; one that goes on with the state as it is has the receipts so far as
        `saved`.
        """
        self._digests.clear()
        self._values.clear()
        self._asked.clear()
        self._skipped = {number + 1 for number in memory.skipped_steps}
        self._next = stepper.state.step + 1
        if self._writer is not None:
            self._writer.begin(
                attempt_facts(self._run, self._rank, memory, stepper.state.step), saved
            )

    def consumed(self, step: int, passes: Sequence[ConsumedPass]) -> None:
        """Digest the samples and draws of a step's passes on this worker."""
        self._own = passes_digest(passes)

    def pack(self) -> list[int]:
        """Return this worker's digest of the last step."""
        return [self._own]

    def merge(self, step: int, records: Sequence[Sequence[int]]) -> None:
        """Take in the digests of all workers for a step; the end of a training brings its last step
        again.
        """
        if self._writer is not None and step >= self._next:
            self._digests[step] = joined_digest([digest for (digest,) in records])
            if self._request.verb:
                self._asked[step] = VERBS.index(self._request.verb) + 1
            self._write()

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        """Take in the `loss`, `grad_norm` and `lr` of a step."""
        if self._writer is not None and step >= self._next:
            self._values[step] = (values["loss"], values["grad_norm"], values["lr"])
            self._write()

    def saving(self) -> dict[str, str]:
        """Return what a checkpoint of now holds of the receipts; {} where none are written."""
        if self._writer is None:
            return {}
        assert not self._values, "a step is saved before its workers' digests are there"
        return self._writer.receipt()

    def _write(self) -> None:
        assert self._writer is not None
        while self._next in self._digests and (
            self._next in self._values or self._next in self._skipped
        ):
            step = self._next
            digest = self._digests.pop(step)
            asked = self._asked.pop(step, 0)
            if step in self._skipped:
                self._writer.add(step, digest, flags=LEFT_OUT, asked=asked)
            else:
                loss, norm, lr = self._values.pop(step)
                is_applied = math.isfinite(loss) and math.isfinite(norm)
                flags = 0 if is_applied else NOT_APPLIED
                self._writer.add(step, digest, loss, norm, lr, flags, asked)
            self._next += 1


def passes_digest(passes: Sequence[ConsumedPass]) -> int:
    """Return the digest of the samples of a step's passes on one worker; 0 for none."""
    digests = []
    for each in passes:
        num = len(each.row_ids)
        places = np.arange(each.place, each.place + num)
        draws = draw_places(each.micro_index, each.start, num)
        digests.append(samples_digest(each.row_ids, places, draws, each.step, each.seed))
    return joined_digest(digests)


def attempt_facts(run: TrainingRun, rank: Rank, memory: MemoryPlan, step: int) -> RecordedAttempt:
    """Return what an attempt trains with, from `step` steps on."""
    experiment = run.experiment
    device = rank.device
    spec = experiment.to_dict()
    return RecordedAttempt(
        attempt=1,
        chain=ORIGIN,  # which the writer fills in
        step=step,
        workers=rank.world_size,
        microbatch_splits=memory.microbatch_splits,
        left_out=[number + 1 for number in memory.skipped_steps],
        device=device_name(device),
        processor=processor_name(),
        threads=torch.get_num_threads(),
        versions=library_versions(),
        code=code_digest(tuple(plugin_packages(spec))),
        data=run.data.fingerprint,
        spec_hash=experiment.content_hash(),
        numerics=NUMERICS_VERSION,
        blocks=compile_decision(experiment, device.type).numbers,
    )


def device_name(device: torch.device) -> str:
    """Return `cpu`, or a GPU's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type


@cache
def processor_name() -> str:
    """Return the model of this machine's CPU."""
    try:
        text = Path("/proc/cpuinfo").read_bytes()[: 64 * 1024].decode("utf-8", "replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def library_versions() -> dict[str, str]:
    """Return the versions of Python, DiTLab and the libraries that a step's numbers come from."""
    versions = {name: installed_version(name) for name in ("ditlab", *LIBRARIES)}
    return {"python": platform.python_version(), **versions}


@cache
def code_digest(packages: tuple[str, ...] = ()) -> str:
    """Return a SHA-256 over the Python sources of ditlab and ditlab_models, and of other packages
    by their names.

    Comments count, as a digest of the text cannot tell them from code.
    """
    digest = hashlib.sha256()
    for name in (*OWN_PACKAGES, *packages):
        for label, path in sorted(_sources(name)):
            if path.is_file():
                digest.update(f"{name}/{label}\n".encode())
                digest.update(hashlib.sha256(read_plain(path, 16 * MIB, follow=True)).digest())
    return digest.hexdigest()


def _sources(package: str) -> list[tuple[str, Path]]:
    """Return the Python files of a package, each with its path within the package."""
    if package in OWN_PACKAGES or "/" in package:  # a folder on the Python path
        found = []
        spec = importlib.util.find_spec(package.replace("/", "."))
        for folder in (spec and spec.submodule_search_locations) or []:
            for path in Path(folder).rglob("*.py"):
                found.append((path.relative_to(folder).as_posix(), path))
        return found
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [(str(file), Path(str(file.locate()))) for file in files if file.suffix == ".py"]
