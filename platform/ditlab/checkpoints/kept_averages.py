"""Averages of other lengths, rebuilt from the kept ones of a checkpoint and of the snapshots before
it.

Snapshots are a store of their own among the run's checkpoints, which is not pruned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ditlab.averages import (
    FOLDER,
    START,
    UPDATES,
    AverageProfile,
    Combination,
    KeptAverage,
    PowerProfile,
    combine,
    field_of,
    length_of,
)
from ditlab.checkpoints.manifest import DamagedCheckpoint
from ditlab.checkpoints.reader import CheckpointReader
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import UserError
from ditlab.progress import Progress, ignore_progress

LARGEST_ERROR = 0.5
"""Distance of profiles, relative, from which on an average is refused: with four even snapshots it
is 0.39 at length 0.25, and the average off by 2 per cent."""


def average_snapshots(checkpoints: CheckpointStore) -> CheckpointStore:
    """Return the store of the snapshots of a run's averages."""
    return checkpoints.child(FOLDER)


AverageSource = tuple[CheckpointReader, KeptAverage]
"""Kept average, and the checkpoint or snapshot that holds it."""


@dataclass(frozen=True)
class RebuiltAverage:
    """Average of the weights that was not kept, as a sum of kept ones."""

    profile: AverageProfile
    combination: Combination
    sources: Sequence[AverageSource]
    checkpoint: CheckpointReader
    """Checkpoint at whose step the average ends; its buffers go with the average."""

    @property
    def num_snapshots(self) -> int:
        """Number of snapshots that take part, beside the checkpoint."""
        shares = zip(self.sources, self.combination.coefficients, strict=True)
        return len(
            {reader.location for (reader, _), share in shares if share} - {self.checkpoint.location}
        )

    def weights(self, prefix: str = "network.", merged: bool = True) -> dict[str, Tensor]:
        """Return whole float32 tensors by name; one tensor in float64 is in memory beside the
        result.
        """
        return self.checkpoint.whole(self._read, prefix, merged)

    def _read(self, name: str, numel: int) -> Tensor:
        """Return the sum of the kept averages of a tensor, float64; the checkpoint's values of one
        in no average.
        """
        own = self.checkpoint.field_of(name, "")
        if own:
            return self.checkpoint.read(own, name, 0, numel)
        total = torch.zeros(numel, dtype=torch.float64)
        for (reader, kept), share in zip(
            self.sources, self.combination.coefficients.tolist(), strict=True
        ):
            if share:
                total.add_(reader.read(field_of(kept.length), name, 0, numel), alpha=share)
        return total


@dataclass(frozen=True)
class KeptAverages:
    """All kept averages of a run up to a checkpoint."""

    checkpoint: CheckpointReader
    sources: Sequence[AverageSource]

    @property
    def num_snapshots(self) -> int:
        """Number of snapshots, without the checkpoint."""
        return len({reader.location for reader, _ in self.sources} - {self.checkpoint.location})

    def rebuild(self, profile: AverageProfile) -> RebuiltAverage:
        """Return the average of a profile that ends at the checkpoint.

        Raises UserError for a length below the shortest that was kept, and where there are too few
        snapshots.
        """
        shortest = min(kept.length for _, kept in self.sources)
        if isinstance(profile, PowerProfile) and profile.length < shortest:
            raise UserError(
                f"--ema {profile.label} is shorter than the shortest average that the run "
                f"keeps, {shortest:g}; name lengths from {shortest:g} to 0.25, or set "
                "training.averages.lengths in the next run."
            )
        combination = combine(
            [kept for _, kept in self.sources], profile, _updates(self.checkpoint)
        )
        if combination.profile_error > LARGEST_ERROR:
            raise UserError(
                f"--ema {profile.label} cannot be rebuilt from {self.num_snapshots} snapshots "
                f"and the checkpoint of step {self.checkpoint.manifest.step}: its profile "
                f"would be off by {combination.profile_error:.0%}; name a length nearer to the "
                "kept ones, or raise training.averages.snapshots in the next run."
            )
        return RebuiltAverage(profile, combination, self.sources, self.checkpoint)


@contextmanager
def open_averages(
    store: CheckpointStore,
    checkpoint: CheckpointReader,
    warn: Callable[[str], None],
    progress: Progress = ignore_progress,
) -> Iterator[KeptAverages]:
    """Open the kept averages of a checkpoint and of the snapshots before it, each hashed first.

    A damaged snapshot is skipped, with a warning. Raises UserError where the checkpoint keeps no
    averages.
    """
    start = checkpoint.manifest.scalars.get(START)
    if start is None or not _lengths(checkpoint) or _updates(checkpoint) < 1:
        raise UserError(
            f"the checkpoint of step {checkpoint.manifest.step} keeps no averages from which "
            "others could be rebuilt; leave --ema out, or set training.averages={} in the next "
            "run."
        )
    snapshots = average_snapshots(store)
    steps = [step for step in snapshots.steps() if step < checkpoint.manifest.step]
    with ExitStack() as opened:
        readers = [checkpoint]
        for number, step in enumerate(steps):
            progress("checking the snapshots of averages", number, len(steps), "snapshots")
            try:
                reader = opened.enter_context(snapshots.open(step))
            except DamagedCheckpoint as error:
                reason = str(error).removesuffix("use an earlier checkpoint.").rstrip("; ")
                warn(
                    f"the snapshot of step {step} is skipped, and averages are rebuilt from "
                    f"the others: {reason}."
                )
                continue
            if _continues_in(reader, checkpoint):
                readers.append(reader)
        kept = []
        for reader in readers:
            for length in _lengths(reader):
                kept.append((reader, KeptAverage(length, _updates(reader))))
        yield KeptAverages(checkpoint, kept)


def _continues_in(snapshot: CheckpointReader, checkpoint: CheckpointReader) -> bool:
    """Return True if the averages of a snapshot go on in a checkpoint."""
    before = snapshot.manifest
    now = checkpoint.manifest
    if before.scalars.get(START) != now.scalars.get(START):
        return False
    is_earlier = 0 < _updates(snapshot) <= _updates(checkpoint)
    return is_earlier and before.shapes.items() <= now.shapes.items()


def _lengths(reader: CheckpointReader) -> list[float]:
    fields = {field for _, field, *_ in reader.manifest.pieces}
    return sorted(length for field in fields if (length := length_of(field)) is not None)


def _updates(reader: CheckpointReader) -> int:
    scalars = reader.manifest.scalars
    return int(scalars.get(UPDATES, 0) - scalars.get(START, 0))
