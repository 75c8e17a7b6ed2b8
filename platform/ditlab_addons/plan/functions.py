"""Plans of experiments and profiles of their steps: what `ditlab plan` and `ditlab profile`
call.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from ditlab.analysis.user_errors import building, output_folder, writing
from ditlab.data.splits import absent_data, open_data
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.inputs.flops import step_flops
from ditlab.inputs.meta_step import DataShape
from ditlab.inputs.model_inputs import data_shape
from ditlab.inputs.stored_fields import check_stored
from ditlab.runs.cores import thread_text
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import validated
from ditlab.spec.start import first_step
from ditlab.storage.files import folder_size
from ditlab.training.plan import plan_run
from ditlab_addons.plan.frozen_encoders import encoder_work
from ditlab_addons.plan.hardware import (
    CPU,
    CPU_BANDWIDTH,
    CPU_FLOPS,
    DEFAULT,
    Device,
    device_memory,
    find_gpu,
    known_gpu,
)
from ditlab_addons.plan.plan import Plan, Planner, make_plan, planned_cores
from ditlab_addons.plan.profiling import MOST_PASSES, Profile, Say, measure_steps, profile_steps
from ditlab_addons.plan.step_time import UPDATE_BYTES, Rates, assumed_rates


def plan(
    experiment: Experiment | str | Path,
    overrides: Sequence[str] = (),
    *,
    gpus: int | None = None,
    gpu: str | None = None,
    gpu_memory: str | None = None,
    measure: bool = False,
    say: Say = lambda _: None,
) -> Plan:
    """Plan an experiment: memory under every ZeRO setting, step time, length, and the setting to
    take.

    Args:
        experiment: a validated experiment, or the path of its YAML.
        overrides: `field.path=value` changes of the YAML, as `--set` takes them.
        gpus: workers, one a GPU; None: as many as the experiment has.
        gpu: kind of GPU, or `cpu`; None: the experiment's device, this machine's GPU where there is
            one.
        gpu_memory: memory of each, such as `80GiB`; None: that of the kind.
        measure: True to take a few real steps here, and to plan with their rates.
        say: receives lines about what had to be assumed.

    Raises:
        UserError: the input is wrong; the message names the field, its value and the remedy.
    """
    experiment = validated(experiment, overrides)
    if gpus is not None and gpus < 1:
        raise UserError(f"--gpus={gpus} leaves nothing to plan for; give 1 or more.")
    device = _device(experiment, gpu, gpus, say)
    if gpu_memory is not None:
        device = replace(device, memory=device_memory(gpu_memory))
    changes: dict[str, float | int] = {} if gpus is None else {"resources.workers": gpus}
    if bool(experiment.resources.gpus_per_worker) != device.is_gpu:
        changes["resources.gpus_per_worker"] = 1 if device.is_gpu else 0
    experiment = experiment.replace_all(changes)
    home = Home.from_environment()
    data = None
    try:
        data = open_data(experiment.data, home, verify=False)
    except UserError as error:
        if not absent_data(experiment.data, home):
            raise
        say(f"the data are not here, so their sizes are assumed: {error}")
    shape = DataShape()
    steps = experiment.training.steps
    size: int | None = None
    if data:
        check_stored(experiment, data)
        shape = data_shape(experiment, data)
        size = folder_size(data.train.store.path)
    with building():
        if data:
            steps = plan_run(experiment, data).total_steps
        encoders = encoder_work(experiment, shape, home.caches / "encoders")
        planner = Planner(
            experiment,
            shape,
            device,
            assumed_rates(device, experiment.training.precision),
            encoders,
        )
        if measure:
            planner.rates = _measured_rates(experiment, planner, home, say)
        if steps is not None:
            steps -= first_step(experiment.start)
        return make_plan(planner, experiment, steps, size)


def _measured_rates(experiment: Experiment, planner: Planner, home: Home, say: Say) -> Rates:
    """Return the rates of real steps of one worker on this machine."""
    num = min(experiment.accumulation, MOST_PASSES)
    batch = {"batch.size": num * experiment.micro_size, "batch.micro": experiment.micro_size}
    found = measure_steps(experiment.replace_all({"resources.workers": 1, **batch}), home)
    counted = step_flops(experiment, planner.data).hardware + planner.encoder_flops
    flops = counted / experiment.num_micro / found.passes
    share = f"{flops / found.matrix_rate:.0%} of a large matrix product's"
    threads = ""
    if not experiment.resources.gpus_per_worker:
        threads = f", {thread_text(found.threads)}"
    source = f"{found.steps} measured steps{threads}: {flops / 1e9:,.3g} GFLOP/s, {share}"
    if found.busy:
        say(
            f"this machine was busy: {found.busy} while the steps were timed; an idle one is "
            "faster."
        )
    return Rates(flops, UPDATE_BYTES * planner.sizes.total / found.update, source, is_measured=True)


def _device(experiment: Experiment, name: str | None, workers: int | None, say: Say) -> Device:
    """Return the device that is planned for."""
    if name is None and not experiment.resources.gpus_per_worker:
        name = CPU
    if name is not None and name.strip().lower() == CPU:
        num = workers or experiment.resources.max_workers
        rate = CPU_FLOPS * planned_cores(experiment, num)
        return Device(CPU, psutil.virtual_memory().total // num, rate, rate, *(CPU_BANDWIDTH,) * 3)
    if name is None and torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        known = known_gpu(found.name)
        if known is None:
            say(
                f"rates of {found.name} are not known, and those of {DEFAULT} are taken; "
                "--measure takes its own."
            )
        return replace(known or find_gpu(DEFAULT), memory=found.total_memory)
    return find_gpu(DEFAULT if name is None else name)


def profile(
    experiment: Experiment | str | Path,
    overrides: Sequence[str] = (),
    *,
    num_steps: int = 3,
    out: Path | None = None,
    say: Say = lambda _: None,
) -> Profile:
    """Take some training steps of an experiment on one worker of this machine, and profile them.

    Leaves no run behind: a trace, `trace.json.gz`, which Perfetto and Chrome open, in the folder
    `out` (None: DITLAB_HOME/caches/profile/NAME). Raises UserError for wrong input, and without a
    GPU for a spec that needs one.
    """
    experiment = validated(experiment, overrides)
    if experiment.resources.gpus_per_worker and not torch.cuda.is_available():
        raise UserError(
            f"resources.gpus_per_worker={experiment.resources.gpus_per_worker:g}, and this "
            "machine has no GPU to profile on; set resources.gpus_per_worker to 0, or profile "
            "on a machine with one."
        )
    home = Home.from_environment().ensure()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its remarks go to standard error
    folder = output_folder(out or home.caches / "profile" / experiment.name)
    alone = experiment.replace_all(
        {"resources.workers": 1, "batch.micro": experiment.micro_size, "evaluation.every": None}
    )
    with building(), writing(folder):
        return profile_steps(alone, home, num_steps, folder / "trace.json.gz", say)
