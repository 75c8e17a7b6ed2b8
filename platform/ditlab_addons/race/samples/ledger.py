"""Folder of a sweep over samples: that of any sweep, with the samples of each configuration and
seed.

A draw's samples are on the disk before its line of the ledger, so what a killed sweep leaves is
whole draws, and files that the next one replaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from ditlab.errors import UserError
from ditlab.home import Below, Home
from ditlab.reports.sweep_records import Trial
from ditlab.spec.files import load_recorded, read_with_parents
from ditlab.spec.overrides import changed_values
from ditlab.spec.values import format_value
from ditlab.storage.files import append_json_line, write_durably
from ditlab.sweeps.folder import SweepFolder
from ditlab.tracking.records import find_run, list_runs
from ditlab_addons.race.samples.spec import SamplingSweep, load_sampling_sweep


class SampledFolder(SweepFolder):
    """Paths of a sweep over samples in its run's folder, and access to its files."""

    ledger = Below("points.jsonl")
    """One line a draw (JSON), a trial without a run of its own."""

    def samples(self, configuration: int, seed: int) -> Path:
        """File of a draw: as `samples.safetensors` of `ditlab sample`."""
        return self.path / "points" / f"{configuration:04d}" / f"seed{seed}.safetensors"

    def add(self, drawn: Trial, tensors: Mapping[str, Tensor]) -> None:
        """Write a draw's samples, then its line. Raises OSError where the disk refuses."""
        path = self.samples(drawn.configuration, drawn.seed or 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, save(dict(tensors)))
        more = {
            name: getattr(drawn, name)
            for name in ("status", "step", "total_steps", "seconds", "metrics")
        }
        append_json_line(self.ledger, {**drawn.to_dict(), **more})

    def draws(self) -> dict[tuple[int, int], Trial]:
        """Whole draws by configuration and seed, without a torn line."""
        return {(drawn.configuration, drawn.seed or 0): drawn for drawn in self.planned_trials()}

    def stored(self) -> SamplingSweep | None:
        """The spec; None in the folder of another run or sweep."""
        if not self.spec.exists() or "run" not in read_with_parents(self.spec).get("base", {}):
            return None
        return load_recorded(self.spec, load_sampling_sweep)


def find_sampled(
    home: Home, name: str, given: SamplingSweep | None
) -> tuple[SampledFolder, SamplingSweep]:
    """Find the sweep that is resumed by its id or name; return its folder, and its spec with the
    changes of `given`.

    Raises UserError for an unknown one, and where its configurations or draws would be others; it
    may have more seeds.
    """
    folder = SampledFolder(find_run(home, name).folder)
    stored = folder.stored()
    if stored is None:
        raise UserError(f"run '{name}' is no sweep over samples; name one, or leave --resume out.")
    if given is None:
        return folder, stored
    changed = differences(stored, given)
    if changed:
        raise UserError(
            f"sweep {folder.sweep_id} was started as another one: {'; '.join(changed)}. Resume "
            "it with its own file, or without one, or start a new sweep without --resume."
        )
    return folder, given


def find_unfinished_sampled(home: Home, given: SamplingSweep) -> SampledFolder | None:
    """The newest unfinished sweep over samples with this content, for `--resume auto`."""
    for record in list_runs(home):
        if record.trials and record.name == given.name and record.status != "finished":
            folder = SampledFolder(home.run(record.run_id))
            with suppress(UserError):  # a damaged spec is no equal one
                stored = folder.stored()
                if stored is not None and not differences(stored, given):
                    return folder
    return None


def differences(stored: SamplingSweep, given: SamplingSweep) -> list[str]:
    """Changes by which configurations or draws of `given` are others than those of `stored`:
    `samples=30 (was 20)`.
    """
    return [
        f"{path}={format_value(value)} (was {format_value(earlier)})"
        for path, earlier, value in changed_values(stored.to_dict(), given.to_dict())
        if path != "seeds" or given.seeds < stored.seeds
    ]
