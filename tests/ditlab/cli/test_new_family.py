"""A family is one folder: written anywhere on the Python path, it trains and samples, and nothing
else changes.
"""

import sys
import textwrap
from pkgutil import extend_path

import pytest
from safetensors.torch import load_file

import ditlab_models
from support.command import run_inside, run_process

SPEC = '''
"""A toy family: a multilayer perceptron over all pixels."""

from __future__ import annotations

from typing import Literal

from ditlab_models.contract import BatchField, ModelSpec, ObjectiveSpec, SamplingSpec, Spec


class ToySpec(ModelSpec):
    """A multilayer perceptron."""

    family: Literal["toy"] = "toy"
    """The toy."""
    width: int = 16
    """Hidden units."""

    def batch_fields(self):
        return (BatchField("image", (1, 8, 8), "float32", value_range=(-1.0, 1.0)),)


class ToyWeights(Spec):
    """Loss weights."""

    error: float = 1.0
    """Squared error."""


class ToyObjectiveSpec(ObjectiveSpec):
    """Velocity regression."""

    weights: ToyWeights = ToyWeights()
    """Loss weights."""


class ToySamplingSpec(SamplingSpec):
    """Euler."""

    steps: int = 4
    """Euler steps."""
'''

FAMILY = '''
"""The toy family."""

from ditlab_models.contract import Family
from ditlab_models.toy.spec import ToyObjectiveSpec, ToySamplingSpec, ToySpec


class ToyFamily(Family[ToySpec, ToyObjectiveSpec, ToySamplingSpec]):
    name = "toy"
    model = ToySpec
    objective = ToyObjectiveSpec
    sampling = ToySamplingSpec

    def build_network(self, model):
        from ditlab_models.toy.network import Toy

        return Toy(model.width)

    def build_objective(self, objective, model, text=None):
        from ditlab_models.toy.network import ToyObjective

        return ToyObjective(objective.weights.model_dump())

    def build_sampler(self, sampling, model, objective, text=None):
        from ditlab_models.toy.network import ToySampler

        return ToySampler(sampling.steps)

    def example_inputs(self, model, batch_size, device="meta"):
        import torch

        return (torch.zeros(batch_size, 1, 8, 8, device=device), torch.zeros(batch_size, device=device))


FAMILY = ToyFamily()
'''

NETWORK = '''
"""The toy's network, objective and sampler."""

import torch
from torch import nn

from ditlab_models.contract import Samples
from ditlab_models.figures import Figure, ImageGrid
from ditlab_models.processes.flow_figures import to_pictures


class Toy(nn.Module):
    """(B, 1, 8, 8), (B,) -> (B, 1, 8, 8)."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(65, width), nn.SiLU(), nn.Linear(width, 64))

    def forward(self, x, t):
        return self.layers(torch.cat([x.flatten(1), t[:, None]], 1)).view_as(x)

    def components(self):
        return {"layers": [self.layers]}

    def checkpointed_modules(self):
        return [self.layers]


class ToyObjective:
    modules = None

    def __init__(self, weights):
        self.weights = weights

    def loss(self, network, batch, noise_source):
        x0 = batch["image"]
        t = noise_source.uniform("time", (len(x0),))
        x1 = noise_source.normal("noise", x0.shape)
        shape = (-1, 1, 1, 1)
        predicted = network((1 - t.view(shape)) * x0 + t.view(shape) * x1, t)
        return {"error": (predicted - (x1 - x0)).square().mean()}

    metrics = loss

    def summary(self, means):
        return dict(means)

    def metric_names(self):
        return ("error",)

    def figures(self, network, batch, sampler, generator, kinds=None):
        return iter(())

    def figure_kinds(self):
        return ()


class ToySampler:
    takes_rows = "none"
    draws_per_prompt = False
    max_batch_size = None

    def __init__(self, steps):
        self.steps = steps

    def conditions(self, num, request):
        return {}

    @torch.no_grad()
    def sample(self, network, conditions, num, generator, trajectory=False):
        x = torch.stack([torch.randn(1, 8, 8, generator=generator) for _ in range(num)])
        for step in range(self.steps):
            x = x - network(x, torch.full((num,), 1 - step / self.steps)) / self.steps
        return Samples(x, {})

    def show(self, samples):
        return Figure([ImageGrid(to_pictures(samples.values))])
'''

EXPERIMENT = """\
name: toy-run
model: {family: toy, width: 24}
batch: {size: 32}
training: {steps: 3}
evaluation: {every: 3, samples: 4, limit: 32}
tracking: {system_metrics: false, uri: "http://127.0.0.1:9"}  # nothing answers: MLflow is not what is tested
"""


@pytest.mark.slow
def test_a_folder_on_the_path_is_a_family(tmp_path, monkeypatch):
    """It trains in this process, and another finds it on its Python path to sample the run."""
    folder = tmp_path / "plugins" / "ditlab_models" / "toy"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text('"""A toy."""\n')
    (folder / "spec.py").write_text(textwrap.dedent(SPEC))
    (folder / "family.py").write_text(textwrap.dedent(FAMILY))
    (folder / "network.py").write_text(textwrap.dedent(NETWORK))
    experiment = tmp_path / "toy.yaml"
    experiment.write_text(EXPERIMENT)
    place = {"home": tmp_path / "home", "cwd": tmp_path}

    run_inside("validate", experiment, **place).refused("model.family='toy' is no known family")

    monkeypatch.syspath_prepend(folder.parents[1])
    monkeypatch.setattr(
        ditlab_models, "__path__", extend_path(ditlab_models.__path__, "ditlab_models")
    )
    try:
        trained = run_inside("train", experiment, "--local", "--json", **place)
    finally:
        for name in [name for name in sys.modules if name.startswith("ditlab_models.toy")]:
            del sys.modules[name]
        vars(ditlab_models).pop("toy", None)
    assert trained.code == 0, trained.err
    assert trained.json["step"] == 3 and {"train/error", "eval/error"} <= set(
        trained.json["metrics"]
    )

    path = str(folder.parents[1])
    words = ("sample", "toy-run", "--num", "5", "--out", tmp_path / "out", "--json")
    run_process(*words, **place, PYTHONPATH=path).ok()
    assert load_file(tmp_path / "out" / "samples.safetensors")["values"].shape == (5, 1, 8, 8)
