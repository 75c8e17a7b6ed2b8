"""Captions padded to their batch: losses, resume and workers do not depend on the store's longest
caption.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ditlab.data.images.captions import caption_column, encode_captions
from ditlab.data.splits import open_data
from ditlab.data.stores.manifest import Column
from ditlab.home import Home
from ditlab.inputs import model_inputs
from ditlab.inputs.model_inputs import MULTIPLE, ModelInputs, cut_padding
from ditlab.inputs.noise import KeyedNoise
from support.datasets.writing import written
from support.trainings.family_specs import PIXELHDM
from support.trainings.workers import newest, same_state, tiny, train_here, train_workers

CPU = torch.device("cpu")
ROWS, LONGEST = 24, 96
LENGTHS = [3 * number % 41 for number in range(ROWS - 1)] + [LONGEST]


def values_of():
    """Images, captions of any length (one of none), and features of as many tokens."""
    draw = np.random.default_rng(0)
    mask = np.arange(LONGEST) < np.maximum(LENGTHS, 1)[:, None]
    return {
        "image": draw.integers(0, 256, (ROWS, 3, 8, 8), dtype=np.uint8),
        "caption": encode_captions([b"x" * length for length in LENGTHS], LONGEST),
        "text": (draw.normal(size=(ROWS, LONGEST, 32)) * mask[..., None]).astype(np.float16),
        "text_mask": mask,
        "text_pooled": draw.normal(size=(ROWS, 32)).astype(np.float16),
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder, values = tmp_path_factory.mktemp("stores") / "captions", values_of()
    columns = {
        name: Column(dtype=str(each.dtype), shape=each.shape[1:]) for name, each in values.items()
    }
    columns["image"] = Column(dtype="uint8", shape=(3, 8, 8), value_range=(0, 255))
    columns["caption"] = caption_column(LONGEST)
    return written(folder, columns, values).path


def experiment(store, encoder="learned", **changes: Any):
    return tiny(
        model={**PIXELHDM, "text_encoder": encoder},
        data={"kind": "arrow", "path": str(store), "hold_out": 0.0},
        objective={"weights": {"alignment": 0.0}},
        batch={"size": 8, "micro": 2},
        sampling={"steps": 1, "height": 8, "width": 8, "guidance": 1.0},
        **changes,
    )


def losses(spec, rows, part=None):
    """Loss components and gradients of stored rows, and the batch that they are of."""
    view = open_data(spec.data, Home(Path())).train
    inputs = ModelInputs.from_experiment(spec, view.columns, CPU)
    raw = {
        field.name: view.store.gather(field.name, np.arange(ROWS)[rows]) for field in inputs.fields
    }
    batch = inputs.prepare_batch(raw, view.columns, rows=part)
    torch.manual_seed(0)
    network = spec.family.build_network(spec.model)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    objective = spec.family.build_objective(spec.objective, spec.model)
    components = objective.loss(
        network, batch, KeyedNoise(0, "train", 0, 0, len(batch["image"]), CPU)
    )
    components["velocity"].backward()
    found = {name: value.detach() for name, value in components.items()}
    return found | {
        name: each.grad for name, each in network.named_parameters() if each.grad is not None
    }, batch


@pytest.mark.parametrize("encoder", ["learned", "frozen"])
def test_rows_that_are_on_the_device_already_are_cut_and_sliced_alike(store, encoder):
    spec = experiment(store, encoder)
    view = open_data(spec.data, Home(Path())).train
    inputs = ModelInputs.from_experiment(spec, view.columns, CPU)
    raw = {field.name: view.store.gather(field.name, np.arange(6)) for field in inputs.fields}
    moved = {name: raw[name].clone() for name in inputs.names_read}
    for rows in (None, slice(2, 5)):
        expected = inputs.prepare_batch(raw, view.columns, rows=rows)
        found = inputs.prepare_batch(raw, view.columns, rows=rows, moved=moved)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    zeros = {name: torch.zeros_like(values) for name, values in moved.items()}
    read = inputs.prepare_batch(raw, view.columns, moved=zeros)
    assert all((values == values.flatten()[0]).all() for values in read.values()), (
        "these rows were not read"
    )


@pytest.mark.parametrize("encoder", ["learned", "frozen"])
def test_losses_and_gradients_do_not_depend_on_padding(store, encoder, monkeypatch):
    spec = experiment(store, encoder)
    fields = ("caption",) if encoder == "learned" else ("text", "text_mask")
    cut, batch = losses(spec, slice(0, 6))
    assert {batch[name].shape[1] for name in fields} == {MULTIPLE}
    monkeypatch.setattr(model_inputs, "cut_padding", lambda raw, fields: raw)
    whole, padded = losses(spec, slice(0, 6))
    assert {padded[name].shape[1] for name in fields} == {LONGEST}
    assert cut.keys() == whole.keys() and len(cut) > 30
    for name, value in cut.items():
        torch.testing.assert_close(value, whole[name], rtol=1e-4, atol=1e-6, msg=name)


def test_a_part_of_a_micro_batch_is_padded_as_the_whole(store):
    """As where memory halves its passes."""
    spec = experiment(store)
    _, whole = losses(spec, slice(20, ROWS))
    _, part = losses(spec, slice(20, ROWS), part=slice(0, 2))
    assert whole["caption"].shape[1] == LONGEST, "the longest caption is among them"
    assert whole.keys() == part.keys()
    assert all(torch.equal(whole[name][:2], part[name]) for name in whole)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [((0,), 16), ((1, 16), 16), ((17, 3), 32), ((90,), 90), ((81,), 90), ((80,), 80)],
)
def test_lengths_are_multiples_or_the_stores(lengths, expected):
    raw = {"caption": torch.from_numpy(encode_captions([b"x" * length for length in lengths], 90))}
    cut = cut_padding(raw, [model_inputs.CAPTION])["caption"]
    assert cut.shape == (len(lengths), expected) and torch.equal(cut, raw["caption"][:, :expected])


def test_columns_of_a_fixed_length_stay(store):
    """A model that asks for a length gets it."""
    fixed = model_inputs.BatchField("caption", (LONGEST,), "int64")
    raw = {"caption": torch.zeros(2, LONGEST, dtype=torch.uint8)}
    assert cut_padding(raw, [fixed])["caption"].shape == (2, LONGEST)


@pytest.mark.slow
def test_training_resumes_exactly_and_workers_train_on_the_same_numbers(store, tmp_path):
    spec = experiment(store, training={"steps": 4}, checkpoint={"every": 1, "keep": 9})
    home = tmp_path / "home"
    train_here(spec, home, tmp_path / "straight")
    train_here(spec, home, tmp_path / "stopped", stop_after=2)
    _, recorder = train_here(spec, home, tmp_path / "stopped")
    assert min(recorder.losses) == 3
    assert same_state(newest(tmp_path / "straight"), newest(tmp_path / "stopped"))
    _, straight = train_here(spec, home, tmp_path / "again")
    for workers in (2, 4):
        several = spec.replace("resources.workers", workers)
        (found,) = train_workers([(several, home, tmp_path / f"workers-{workers}")], workers)
        assert found == pytest.approx(straight.losses, rel=1e-5)
