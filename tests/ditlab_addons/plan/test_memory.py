"""Predicted memory against what a tracker counts in real training, and closed forms."""

from functools import partial
from itertools import product

import pytest

from ditlab.inputs.meta_step import DataShape
from ditlab.spec.files import load_experiment
from ditlab_addons.plan.pass_memory import pass_memory
from ditlab_addons.plan.plan import CPU_GAPS
from ditlab_addons.plan.worker_memory import (
    ParameterGroup,
    ParameterSizes,
    WorkerShape,
    ZeroSetting,
    state_memory,
)
from ditlab_models.parameters import MetaModel
from support.clusters.nodes import CHECKOUT
from support.peak_memory import peak_bytes
from support.trainings.predicted import predicted_memory
from support.trainings.tracked import first_step, track_step, track_workers

SMALL = ("digits/dit", "digits/unet", "region/small", "dlm/small", "pixelhdm/small")


def experiment_of(name, *changes):
    return load_experiment(
        CHECKOUT / "experiments" / f"{name}.yaml", ["engine.compile=false", *changes]
    )


def check(experiment, tracked, home, tolerance=0.1):
    """State exact to the byte; the peak of the step within the tolerance."""
    worker = predicted_memory(experiment, home)
    device, host = worker.state.device, worker.state.host
    named = (experiment.name, experiment.engine.zero.stage)
    assert device.parameters + host.parameters == tracked.parameters, named
    assert device.optimizer + host.optimizer == tracked.optimizer, named
    assert device.average + host.average == tracked.average, named
    assert device.total + host.total == pytest.approx(tracked.state, rel=0.02), named
    peak = max(worker.passes.total, worker.update.total) + host.total
    assert peak == pytest.approx(tracked.peak, rel=tolerance), named


def check_all(specs, workers, home):
    for experiment, tracked in zip(specs, track_workers(specs, home, workers), strict=True):
        check(experiment, tracked, home)


TINY = ("batch.size=8", "batch.micro=4", "model.depth=1", "model.width=64")


@pytest.mark.parametrize(
    "changes",
    [
        ("training.precision=bf16", "engine.zero={stage: 2}", "optimizer={kind: muon}"),
        ("training.precision=fp32", "engine.zero={stage: 1, offload: cpu}"),
    ],
)
def test_a_tracker_counts_what_is_predicted(tmp_path, changes):
    """Micro-batches that accumulate, in half precision: parts and peak of a real step."""
    experiment = experiment_of("digits/dit", *TINY, *changes)
    check(experiment, track_step(experiment, tmp_path), tmp_path)


@pytest.mark.parametrize("stage", [1, 3])
def test_frozen_parameters_take_their_own_room_alone(tmp_path, stage):
    lora = 'training.lora={rank: 4, targets: ["blocks"]}'
    changes = (lora, "training.freeze=[blocks]", "training.precision=bf16")
    experiment = experiment_of("digits/dit", *TINY, *changes, f"engine.zero.stage={stage}")
    sizes = ParameterSizes.of_experiment(experiment, DataShape())
    counts = MetaModel.build(experiment.model, experiment.objective, experiment.training).counts
    assert (sizes.total, sizes.frozen) == (counts.trainable, counts.frozen)
    assert sizes.frozen > sizes.total / 2
    check(experiment, track_step(experiment, tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_setting_of_one_network(tmp_path):
    """Accumulation, half precision and offload, on one worker and on two."""
    changes = ("batch.size=16", "model.depth=2")
    zeros = [
        f"{{stage: {stage}, offload: {where}}}" for stage in (1, 2, 3) for where in ("none", "cpu")
    ]
    specs = []
    for zero, micro, precision in product(["{stage: 0}", *zeros], (4, 8), ("fp32", "bf16")):
        if (zero, precision) != ("{stage: 0}", "bf16"):
            own = (f"batch.micro={micro}", f"training.precision={precision}", f"engine.zero={zero}")
            specs.append(experiment_of("digits/dit", *changes, *own))
    check_all(specs, 1, tmp_path)
    check_all([each.replace("resources.workers", 2) for each in specs], 2, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_every_family_at_every_stage(tmp_path, workers):
    for name in SMALL:
        zeros = [f"engine.zero.stage={stage}" for stage in (1, 2, 3)]
        specs = [experiment_of(name, zero, f"resources.workers={workers}") for zero in zeros]
        check_all(specs, workers, tmp_path)


def state_of(sizes, zero, compute, averages=1):
    """Return device and host of one of four workers."""
    state = state_memory(
        WorkerShape(sizes, zero, 4, compute, accumulates=False, on_gpu=False), averages
    )
    return state.device, state.host


def test_state_by_hand():
    """1,000 values on four workers, bfloat16: 2 bytes of weights, 12 of masters and moments, 4 of
    average.
    """
    sizes = ParameterSizes([ParameterGroup((600, 400), 2)])

    def parts(zero, compute=2, averages=1):
        """Parameters, optimiser, average and gradients of a device, and of the host."""
        return [
            (each.parameters, each.optimizer, each.average, each.gradients)
            for each in state_of(sizes, zero, compute, averages)
        ]

    assert parts(ZeroSetting(0), 4)[0][:3] == (4000, 8000, 4000)
    assert parts(ZeroSetting(1))[0] == (2000, 3000, 1000, 0)
    assert parts(ZeroSetting(3), averages=0)[0] == (500, 3000, 0, 500)
    device, host = parts(ZeroSetting(1, "cpu"))
    assert (device[:2], host[1:3]) == ((2000, 0), (3000, 1000))
    device, host = parts(ZeroSetting(3, "cpu", "cpu"))
    assert (device[0], host[:2]) == (0, (500, 3000))


def test_moments_by_role():
    """Muon's matrices have one moment, the rest two; each group is padded by itself."""
    sizes = ParameterSizes([ParameterGroup((600, 399), 1), ParameterGroup((9,), 2)])
    assert state_of(sizes, ZeroSetting(1), 4, averages=0)[0].optimizer == 4 * 250 * 2 + 4 * 4 * 3


def test_uneven_parameters_are_padded():
    sizes = ParameterSizes([ParameterGroup((7, 6), 2)])
    assert (sizes.share(0, 2), sizes.share(1, 2), sizes.share(3, 2)) == (13, 8, 7)


@pytest.mark.slow
def test_activations_are_linear_in_the_micro_batch():
    """Three sizes on one line, of each family, within one part in a hundred."""
    for name in SMALL:
        experiment = experiment_of(name)
        shape = (
            DataShape({"image": (3, 16, 16), "caption": (15,)})
            if "pixelhdm" in name
            else DataShape()
        )
        low, middle, high = (
            pass_memory(experiment, shape, size, False).activations for size in (8, 16, 24)
        )
        assert (low + high) / 2 == pytest.approx(middle, rel=0.01), name


def test_checkpointing_saves_activations():
    experiment = experiment_of("digits/dit")
    plain, saved = (
        pass_memory(
            experiment.replace("engine.activation_checkpointing", on), DataShape(), 64, False
        )
        for on in (False, True)
    )
    assert saved.activations < 0.3 * plain.activations
    assert saved.peak < 0.5 * plain.peak


@pytest.mark.slow
def test_resident_memory_grows_as_predicted(tmp_path):
    """A step of more than 1 GiB, in a process of its own: its tensors, and no more than is left
    free for their gaps.
    """
    experiment = experiment_of("digits/dit", "batch.size=1760", "data.hold_out=0.01")
    worker = predicted_memory(experiment, tmp_path)
    predicted = worker.passes.total - worker.state.device.total
    assert predicted > 2**30
    assert (
        0.95
        < peak_bytes(partial(first_step, experiment.to_dict(), tmp_path)) / predicted
        < 1 + CPU_GAPS
    )
