"""The plan of a run: memory of every setting, step time, length, cost, the setting to take, and a spec that sets it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ditlab.averages import snapshot_steps
from ditlab.errors import UserError
from ditlab.planning.hardware import GPUS, Device
from ditlab.planning.settings import SETTINGS, PlannedSetting, Planner, checkpoint_bytes, snapshot_bytes
from ditlab.planning.step_time import Rates
from ditlab.planning.worker_memory import ZeroSetting
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_experiment
from ditlab.spec.yaml_text import dump_yaml
from ditlab.storage.files import write_durably

SLOWER = 1.03
"""Ratio of step times up to which a spec's own setting, or a plainer one, is preferred to a faster one."""
MOST_WORKERS = 4096


@dataclass(frozen=True)
class Plan:
    """Memory, time and cost of a run on a kind of device."""

    experiment: Experiment
    device: Device
    rates: Rates
    parameters: int
    own: PlannedSetting
    """The spec as it is."""
    settings: Sequence[PlannedSetting]
    """Every setting, with and without activation checkpointing."""
    recommended: PlannedSetting | None
    """Setting to take; None where nothing fits."""
    why: str
    """Reason for it in a sentence, or what would make the run fit."""
    steps: int | None
    """Optimiser steps; None where they depend on data that are not here."""
    data_bytes: int | None
    """Bytes of the training store; None where it is not here."""
    checkpoint_bytes: int
    """Bytes of one checkpoint."""
    checkpoints: int
    """Checkpoints that are kept at once."""
    snapshot_bytes: int
    """Bytes of one snapshot of averages; 0 where none are kept."""
    snapshots: int | None
    """Snapshots of averages, all kept; None for a run of unknown length."""
    encoder_flops: int
    """Operations of frozen encoders in a step."""
    optimizer_flops: int
    """Operations of Muon's iterations in a step; 0 for AdamW."""
    left_out: Sequence[str]
    """Parts that are not counted, each as the end of a sentence."""

    @property
    def workers(self) -> int:
        """Workers, one a GPU."""
        return self.experiment.resources.max_workers

    def run_seconds(self, setting: PlannedSetting) -> float | None:
        """Return the duration of all steps under a setting, without evaluations and saves."""
        return None if self.steps is None else self.steps * setting.seconds.total

    def gpu_hours(self, setting: PlannedSetting) -> float | None:
        """Return the hours of all workers together."""
        seconds = self.run_seconds(setting)
        return None if seconds is None else seconds * self.workers / 3600


def make_plan(planner: Planner, experiment: Experiment, steps: int | None, data_bytes: int | None) -> Plan:
    """Plan all settings and choose one."""
    own, settings, sizes = planner.own(), tuple(planner.settings()), planner.sizes
    recommended, why = choose(own, settings, planner)
    averages, keep_every = experiment.training.averages, experiment.checkpoint.keep_every
    snapshots = len(snapshot_steps(0, steps, averages.snapshots)) if averages and steps else None
    return Plan(
        experiment, planner.device, planner.rates, sizes.total, own, settings, recommended, why, steps, data_bytes,
        checkpoint_bytes=checkpoint_bytes(experiment, sizes),
        checkpoints=experiment.checkpoint.keep + ((steps or 0) // keep_every if keep_every else 0),
        snapshot_bytes=snapshot_bytes(experiment, sizes), snapshots=snapshots if averages else 0,
        encoder_flops=planner.encoder_flops, optimizer_flops=sum(sizes.iterations), left_out=planner.left_out(),
    )  # fmt: skip


def choose(
    own: PlannedSetting, settings: Sequence[PlannedSetting], planner: Planner
) -> tuple[PlannedSetting | None, str]:
    """Choose the fastest setting that fits, the spec's own or a plainer one where it is about as fast; and say why."""
    fitting = [each for each in settings if each.fits]
    if not fitting:
        return None, what_would_fit(planner)
    fastest = min(fitting, key=lambda each: each.seconds.total)
    limit = fastest.seconds.total * SLOWER
    if own.fits and own.seconds.total <= limit:
        return own, f"the spec's own setting fits, and no other is more than {SLOWER - 1:.0%} faster."
    best = next(each for each in fitting if each.seconds.total <= limit)
    if not own.fits:
        reason = f"the spec's own setting ({own.label}) does not fit, and of those that do this is"
        reason += " the fastest." if best is fastest else " the plainest of the fastest."
    else:
        reason = f"it is {own.seconds.total / best.seconds.total - 1:.0%} faster than the spec's own ({own.label})."
    if best.micro != own.micro:
        reason += " Other micro-batches draw other random numbers."
    return best, reason


def what_would_fit(planner: Planner) -> str:
    """Describe the least memory that the run takes on so many workers, and what would make it fit."""
    least, zero, checkpointing = min(
        ((planner.least_total(zero, checkpointing), zero, checkpointing)
         for zero in SETTINGS[1:]
         if zero.offload == "none" or planner.offloads
         for checkpointing in (False, True)),
        key=lambda each: each[0],
    )  # fmt: skip
    label = f"stage {zero.label}{', checkpointing' if checkpointing else ''}"
    larger = sorted((gpu.memory, gpu.name) for gpu in GPUS.values() if gpu.memory >= least)
    ways = [f"a GPU of that memory ({larger[0][1]})"] if larger and planner.device.is_gpu else []
    powers = (2**power for power in range(MOST_WORKERS.bit_length()) if 2**power > planner.workers)
    takes = ((each, planner.with_workers(each).least_total(ZeroSetting(3), True)) for each in powers)
    if workers := next((each for each, total in takes if total <= planner.device.memory), 0):
        ways.append(f"--gpus {workers} with stage 3 and checkpointing")
    ways.append("a smaller network, or smaller images or shorter sequences")
    return (
        f"nothing fits: with micro-batches of {planner.micro_sizes[0]} the least is {least / 2**30:,.2f} GiB a worker "
        f"({label}), and {planner.device.memory / 2**30:,.2f} GiB are there; it would fit with {', or '.join(ways)}."
    )


def recommended_experiment(plan: Plan) -> Experiment:
    """Return the experiment under the recommended setting. Raises UserError where nothing fits."""
    chosen = plan.recommended
    if chosen is None:
        raise UserError(f"--apply has no setting to write: {plan.why}")
    changes: dict[str, Any] = {
        "engine.zero.stage": chosen.zero.stage,
        "engine.zero.offload": chosen.zero.offload,
        "engine.zero.offload_parameters": chosen.zero.offload_parameters,
        "engine.activation_checkpointing": chosen.checkpointing,
    }
    if chosen.micro != plan.experiment.micro_size:
        changes["batch.micro"] = chosen.micro
    return plan.experiment.replace_all(changes)


def write_recommended(plan: Plan, source: Path, path: Path) -> Path:
    """Write the recommended setting as the spec `path`, which extends the spec `source`, and return it.

    A file that holds the same is left as it is. Raises UserError for any other file at that place, for one that cannot
    be written, and where nothing fits.
    """
    wanted = recommended_experiment(plan)
    changed = _differences(load_experiment(source, ()).to_dict(), wanted.to_dict())
    parent = os.path.relpath(source.absolute(), path.absolute().parent)
    content = dump_yaml({"extends": parent, **changed}).encode()
    try:
        if os.path.lexists(path):
            if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
                return path
            raise UserError(f"--apply {path} exists, and holds something else; name another file, or delete it.")
        return write_durably(path, content)
    except OSError as error:
        raise UserError(f"--apply {path} cannot be written ({error.strerror}); name another place.") from error


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of `new` is not in `old`; a mapping of another kind as a whole."""
    found: dict[str, Any] = {}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            same_kind = all(value.get(name) == before.get(name) for name in ("kind", "family"))
            below = _differences(before, value) if same_kind else dict(value)
            if below:
                found[key] = below
        elif value != before or key not in old:
            found[key] = value
    return found
