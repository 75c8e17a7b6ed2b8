"""An ejected file has the bits of the run: every family, precision and number of workers, over a kill
and a resume, where DiTLab cannot be imported.
"""

import pytest
import torch
from safetensors.torch import load_file

from ditlab.api.training import train
from ditlab.data.splits import open_data
from ditlab.home import Home
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.training.evaluation import draw_samples, evaluated_modules
from support.trainings.ejected import differing, eject_into, kill_after_first_checkpoint, train_file
from support.trainings.family_specs import FAMILIES, smallest
from support.trainings.workers import newest

CPU = torch.device("cpu")


def of_spec(family, workers, **changes):
    return smallest(
        family,
        workers,
        training__steps=30,
        checkpoint__every=10,
        evaluation__every=None,
        evaluation__samples=3,
        **changes,
    )


def samples_of(experiment, out):
    """Return the samples that the run's own code draws from the file's averaged weights."""
    home = Home.from_environment()
    data = open_data(experiment.data, home)
    state = load_file(out / "step-00000030.safetensors")

    def weights(prefix):
        found = {}
        for name, values in state.items():
            kind, _, path = name.partition("/")
            if kind in ("ema", "buffer") and path.startswith(prefix):
                found[path.removeprefix(prefix)] = values
        return found

    workers = experiment.resources.max_workers
    precision = experiment.training.precision
    network, _ = evaluated_modules(experiment, weights, data.text, CPU, precision, workers)
    inputs = ModelInputs.from_experiment(experiment, data.train.columns, CPU, home=home)
    with torch.no_grad():
        _, drawn = draw_samples(network, experiment, data, 3, inputs)
    return drawn.values.float()


def assert_same_bits(experiment, workers, tmp_path):
    found = train(experiment, local=workers == 1)
    out = tmp_path / "out"
    file = eject_into(experiment, tmp_path)
    kill_after_first_checkpoint(file, out, workers)
    train_file(file, out, workers)
    with newest(found.folder / "checkpoints") as reader:
        assert differing(out, reader) == []
    samples = load_file(out / "samples.safetensors")["samples"]
    assert torch.equal(samples, samples_of(experiment, out))


@pytest.fixture(autouse=True)
def one_thread(home, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_samples_are_those_of_the_run(family, precision, workers, tmp_path):
    experiment = of_spec(family, workers, training__precision=precision)
    assert_same_bits(experiment, workers, tmp_path)


OTHERS = {
    "muon": {"optimizer": {"kind": "muon", "lr": 1e-2, "adamw_lr": 1e-3, "no_decay": ["bias"]}},
    "zclip": {"training__clip": {"kind": "zclip", "warmup": 3}},
    "ratio": {"training__clip": {"kind": "zclip_ratio", "ratio": 1.0}},
    "averages": {"training__averages": {"lengths": [0.05, 0.1]}},
    "groups": {"optimizer": {"kind": "adamw", "no_decay": ["norm"], "lr_patterns": {"head": 2.0}}},
    "restarts": {"schedule": {"kind": "stepped_cosine_restart", "cycle": 5}},
    "whole": {"batch__micro": None},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_settings_have_the_bits_of_the_run(name, tmp_path):
    assert_same_bits(of_spec("dit", 1, **OTHERS[name]), 1, tmp_path)
