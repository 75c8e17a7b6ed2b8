"""No draw of training or evaluation escapes the keyed source, and the source gives the same whoever
draws.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from ditlab.data.stores.manifest import Column, Source
from ditlab.spec.experiment import class_for
from ditlab.spec.files import load_experiment
from ditlab.spec.yaml_text import dump_yaml
from ditlab.training import timing
from ditlab_models.contract import ANY
from ditlab_models.families import families
from ditlab_models.processes.flow import VelocityObjective
from support.datasets.writing import StoreWriter
from support.marks import slow
from support.specs import EXPERIMENTS, FILES
from support.trainings.draws import train_recorded_draws, train_watched
from support.trainings.timings import TIMINGS
from support.trainings.workers import tiny

SHIPPED = [str(path.relative_to(EXPERIMENTS)) for path in FILES]
ONE_EACH = (
    "digits/dit_class.yaml",
    "digits/mixture.yaml",
    "region/small.yaml",
    "pixelhdm/small.yaml",
)
SHORT = [
    "training={steps: 2, epochs: null}",
    "batch={size: 4, micro: 2}",
    "checkpoint.every=null",
    "evaluation.every=2",
    "evaluation.samples=2",
    "evaluation.limit=4",
    "sampling.steps=2",
    "evaluation.quality=0",
    "schedule={kind: constant, warmup: 0, warmup_epochs: 0}",
    "engine.compile=false",
]
NARROW = {
    "dit": ["model={width: 32, depth: 1, num_heads: 2}"],
    "unet": ["model.width=16"],
    "dlm": ["model={length: 32, vocabulary: 64, width: 32, depth: 1, num_heads: 2}"],
    "region": ["model={num_regions: 24, width: 48, depth: 1, num_heads: 2}"],
    "pixelhdm": [
        (
            "model={width: 32, pixel_width: 4, patch_size: 8, patch_depth: 1, pixel_depth: 1, "
            "num_heads: 4, num_kv_heads: 2, mrope_widths: [4, 2, 2], bottleneck_width: 8, "
            "time_width: 8, max_resolution: 64}"
        ),
        "objective.alignment_block=1",
        "sampling.height=16",
        "sampling.width=16",
    ],
}
"""Changes by family; a family that is not here trains as it is shipped."""


def _sized(field):
    """Its shape, with images of 2 x 2 patches, and so 4 patches' features, and 4 tokens too, for
    axes of any size.
    """
    any_size = 2 * field.multiple_of if field.multiple_of > 1 else 4
    return tuple(any_size if size == ANY else size for size in field.shape)


def with_data(experiment, folder):
    """The same on a small store of random values that has what the batches of model and loss
    need.
    """
    fields = [replace(one, shape=_sized(one)) for one in experiment.batch_fields()]
    columns, values, generator = {}, {}, np.random.default_rng(0)
    for one in fields:
        shape = (40, *one.shape)
        facts = {"dtype": one.dtype}
        if one.value_range is not None:
            facts = {"dtype": "uint8", "value_range": (0, 255)}
            drawn = generator.integers(0, 256, shape)
        elif one.dtype == "int64":
            facts["num_classes"] = one.num_classes
            drawn = generator.integers(0, one.num_classes or 2, shape)
        elif one.dtype == "bool":
            drawn = np.ones(shape)
        else:
            drawn = generator.random(shape)
        columns[one.name] = Column(shape=one.shape, **facts)
        values[one.name] = drawn.astype(facts["dtype"])
    with StoreWriter(folder, columns, name="random", source=Source(kind="test")) as writer:
        writer.append(values)
    spec = experiment.to_dict()
    spec["data"] = {"kind": "arrow", "path": str(folder), "hold_out": 0.2}
    return class_for(spec).model_validate(spec)


def shortened(path):
    whole = load_experiment(path)
    return load_experiment(path, [*SHORT, *NARROW.get(whole.model.family, [])])


def family_alone(name, folder):
    """A family as it is without a word from an experiment."""
    path = folder / f"{name}.yaml"
    path.write_text(dump_yaml({"name": name, "model": {"family": name}, "training": {"steps": 2}}))
    return shortened(path)


@pytest.mark.parametrize(
    "name", [*ONE_EACH, *slow(*(name for name in SHIPPED if name not in ONE_EACH)), *families()]
)
def test_nothing_escapes(name, home, tmp_path, monkeypatch):
    """Every experiment that comes with the project, and every family that does not; operations are
    counted too.
    """
    monkeypatch.setattr(timing, "COUNTED_AFTER", 0.0)
    experiment = (
        family_alone(name, tmp_path) if name in families() else shortened(EXPERIMENTS / name)
    )
    recorder, escaped = train_watched(
        with_data(experiment, tmp_path / "store"), home, tmp_path / "run"
    )
    # it trained, evaluated and sampled
    assert sorted(recorder.losses) == [1, 2] and recorder.pictures == [0, 2]
    assert recorder.values[2].keys() > {"train/loss", "perf/mfu"}
    assert escaped == []


def in_a_forked_generator():
    """Puts torch's global generator back: its state tells nothing."""
    with torch.random.fork_rng():
        torch.rand(3)


LEAKS = {
    "rand": (lambda: torch.rand(3), "aten.rand.default"),
    "normal_": (lambda: torch.empty(3).normal_(), "aten.normal_.default"),
    "dropout": (lambda: functional.dropout(torch.ones(3)), "aten.bernoulli_.float"),
    "attention": (
        lambda: functional.scaled_dot_product_attention(*torch.ones(3, 1, 2, 4, 8), dropout_p=0.5),
        "aten.bernoulli_.float",
    ),
    "forked": (in_a_forked_generator, "aten.rand.default"),
    "numpy": (lambda: np.random.rand(), "numpy's global generator"),
    "python": (lambda: random.random(), "random's global generator"),
}


@pytest.mark.parametrize("place", ["loss", "metrics"])
def test_a_draw_that_escapes_is_found(place, home, tmp_path, monkeypatch):
    """Each kind at each call, in the order of `LEAKS`; of generators that leave no trace, that they
    moved.
    """
    original, calls = getattr(VelocityObjective, place), []

    def leaking(self, *inputs):
        calls.append(place)
        for draw, _ in LEAKS.values():
            draw()
        return original(self, *inputs)

    monkeypatch.setattr(VelocityObjective, place, leaking)
    experiment = tiny(
        training__steps=1,
        checkpoint__every=None,
        evaluation__every=1,
        evaluation__samples=0,
        evaluation__limit=4,
    )
    _, escaped = train_watched(experiment, home, tmp_path)
    operations = [name for _, name in LEAKS.values() if name.startswith("aten")]
    assert escaped == operations * len(calls) + [
        f"{name}'s global generator" for name in ("torch", "numpy", "random")
    ]


def spread(workers):
    """Four micro-batches a step, for one worker, two or four; conditional, so that labels are
    dropped too.
    """
    return tiny(
        model__num_classes=10,
        training__steps=3,
        batch__size=32,
        batch__micro=8,
        resources__workers=workers,
        evaluation__every=3,
        evaluation__samples=0,
        evaluation__limit=50,
    )


@pytest.fixture(scope="module")
def alone(home, tmp_path_factory):
    """Draws of one worker that accumulates four micro-batches."""
    (left,) = train_recorded_draws(spread(1), home, tmp_path_factory.mktemp("alone") / "run", 1)
    return left


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
def test_any_number_of_workers_draws_the_same(world_size, alone, home, tmp_path):
    """Bytes of every draw, by step and sample; a worker draws for its own samples and no others."""
    expected = alone["record"]
    training = {key for key in expected if key.startswith("train/")}
    # 3 steps of 32 samples with a time, a noise and a label's dropping each, no two of them alike.
    assert len(training) == len({tuple(expected[key]) for key in training}) == 3 * 32 * 3
    assert any(key.startswith("evaluate/") for key in expected)
    left = train_recorded_draws(spread(world_size), home, tmp_path / "run", world_size)
    books = [one["record"] for one in left]
    for book in books:
        assert all(expected[key] == digests for key, digests in book.items())
        assert len(book.keys() & training) == len(training) // world_size
    assert set.union(*map(set, books)) == set(expected)
    assert left[0]["samples"] == alone["samples"] and len(set(alone["samples"])) == 3
    for step, values in alone["values"].items():
        found = left[0]["values"][step]
        for name, value in values.items():
            assert name.startswith(TIMINGS) or found[name] == pytest.approx(value, rel=1e-5), step
