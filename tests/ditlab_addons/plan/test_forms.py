"""Predicted memory of passes with compiled blocks, and of activations in the host's memory."""

import pytest

from ditlab.data.splits import open_data
from ditlab.engine import memory
from ditlab.home import Home
from ditlab.inputs.meta_step import DataShape
from ditlab.inputs.model_inputs import data_shape
from ditlab.spec.files import load_experiment
from ditlab_addons.plan.pass_memory import pass_memory
from support.clusters.nodes import CHECKOUT
from support.trainings.allocated import SavedElsewhere, allocated_peak
from support.trainings.tracked import track_step

SMALL = ("digits/dit", "digits/unet", "region/small", "dlm/small", "pixelhdm/small")
TINY = ("batch.size=32", "model.depth=2", "model.width=64")


def experiment_of(name, *changes):
    return load_experiment(
        CHECKOUT / "experiments" / f"{name}.yaml",
        ["training.precision=fp32", "engine.compile=false", *changes],
    )


def passes_of(experiment, home, on_gpu):
    shape = data_shape(experiment, open_data(experiment.data, Home(home)))
    return pass_memory(experiment, shape, experiment.micro_size, on_gpu)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_compiled_passes_take_no_more_than_is_predicted(tmp_path):
    """Fused kernels write less than blocks as they are, which a plan counts: at most, and not by
    far.
    """
    for name in SMALL:
        experiment = load_experiment(
            CHECKOUT / "experiments" / f"{name}.yaml", ["engine.compile=true"]
        )
        predicted = passes_of(experiment, tmp_path, on_gpu=False).peak
        assert 0.4 * predicted < allocated_peak(experiment, tmp_path) < 1.05 * predicted, name


def check_offloaded(experiment, home, monkeypatch):
    """Compare what stays on the device with a tracker's count of real steps whose saved tensors are
    elsewhere.
    """
    monkeypatch.setattr(memory, "save_on_cpu", SavedElsewhere)
    experiment = experiment.replace("engine.activation_offload", "cpu")
    tracked, predicted = track_step(experiment, home), passes_of(experiment, home, on_gpu=True)
    assert predicted.peak == pytest.approx(tracked.passes - tracked.state, rel=0.1), experiment.name
    monkeypatch.undo()


def test_activations_in_the_hosts_memory(tmp_path, monkeypatch):
    experiment = experiment_of("digits/dit", *TINY)
    check_offloaded(experiment, tmp_path, monkeypatch)
    kept = pass_memory(experiment, DataShape(), 32, True)
    offloaded = experiment.replace("engine.activation_offload", "cpu")
    moved = pass_memory(offloaded, DataShape(), 32, True)
    assert moved.activations < 0.1 * kept.activations and moved.peak < 0.5 * kept.peak
    assert moved.moved > kept.activations - moved.activations and moved.host >= moved.moved
    assert pass_memory(offloaded, DataShape(), 32, False) == kept  # a CPU has them already
    assert (kept.host, kept.moved) == (0, 0)
    inputs = pass_memory(
        offloaded.replace("engine.activation_checkpointing", True), DataShape(), 32, True
    )
    assert inputs.moved < 0.1 * moved.moved


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_activations_in_the_hosts_memory_of_every_family(tmp_path, monkeypatch):
    for name in SMALL:
        for checkpointing in ("false", "true"):
            experiment = experiment_of(name, f"engine.activation_checkpointing={checkpointing}")
            check_offloaded(experiment, tmp_path, monkeypatch)
