"""Rows as families look at them: whatever the batches, the same rows, names and draws."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ditlab.data.stores.manifest import Column
from ditlab.data.stores.view import View
from ditlab.engine.distributed import Rank
from ditlab.inputs.conditions import num_selected_rows, row_set, sample_conditions
from ditlab.inputs.model_inputs import ModelInputs
from ditlab_models.contract import BatchField, SampleRequest
from support.damage import refused
from support.datasets.writing import written
from support.trainings.held_out import held_out_metrics

CPU = torch.device("cpu")
FIELDS = (BatchField("scores", (2, 3), "float32"),)
INPUTS = ModelInputs(FIELDS, (), CPU)
NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    """100 rows of a store in reverse order; a row's scores are its number."""
    folder = tmp_path_factory.mktemp("rows") / "store"
    columns = {
        "scores": Column(dtype="float64", shape=(2, 3), names=NAMES),
        "kind": Column(dtype="int64", num_classes=2, names=("even", "odd")),
        "grade": Column(dtype="int64", num_classes=3),
    }
    number = np.arange(100)
    scores = np.broadcast_to(number[:, None, None], (100, 2, 3)).astype(np.float64)
    store = written(folder, columns, {"scores": scores, "kind": number % 2, "grade": number % 3})
    return View(store, number[::-1].copy(), "data.path=rows")


class Completing:
    """Wants rows of one kind."""

    takes_rows = "completed"
    max_batch_size = None

    def __init__(self, kind):
        self.kind, self.seen = kind, 0

    def select_rows(self, rows):
        assert not rows.batch
        self.seen += len(rows.columns["kind"])
        return rows.columns["kind"] == self.kind

    def note(self, rows):
        return f"no {self.kind} among {len(rows.columns['kind'])}"

    def conditions(self, num, request):
        if request.label is not None:
            raise ValueError("label is not known")
        return {
            "scores": request.rows.batch["scores"],
            "draw": request.rows.noise.uniform("draw", (num,)),
        }


class Unchoosy(Completing):
    """Takes whatever rows there are."""

    def select_rows(self, rows):
        return None


class Free:
    takes_rows = "none"
    max_batch_size = None

    def conditions(self, num, request):
        assert request.rows is None
        return {"label": torch.full((num,), request.label or 0)}


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_rows_do_not_depend_on_the_batches(view, size):
    rows = row_set(view, INPUTS)
    for _ in range(2):  # as often as one likes
        batches = list(rows.batches(size))
        scores = torch.cat([batch.batch["scores"] for batch in batches])
        assert scores.dtype == torch.float32 and scores[:, 0, 0].tolist() == list(range(99, -1, -1))
        kinds = np.concatenate([batch.columns["kind"] for batch in batches])
        assert kinds.tolist() == ["odd", "even"] * 50  # names where classes have them, else numbers
        assert np.concatenate([batch.columns["grade"] for batch in batches])[:3].tolist() == [
            0,
            2,
            1,
        ]
        draws = torch.cat(
            [batch.noise.uniform("mask", (len(batch.batch["scores"]), 4)) for batch in batches]
        )
        (whole,) = rows.batches(100)
        assert torch.equal(draws, whole.noise.uniform("mask", (100, 4)))
    assert rows.num == 100


def test_columns_are_those_that_the_model_does_not_take_and_names_are_those_of_entries(view):
    (rows,) = row_set(view, INPUTS).batches(100)
    assert set(rows.batch) == {"scores"} and set(rows.columns) == {"kind", "grade"}
    assert rows.names == {"scores": NAMES}


def test_draws_are_those_of_held_out_metrics(view):
    """Evaluators at a metric's mask ratio mask the same regions as the metric."""

    class Objective:
        def metrics(self, network, batch, noise):
            return {"draw": noise.uniform("mask", (len(batch["scores"]),)).mean()}

        def summary(self, means):
            return means

    rank = Rank(0, 1, 0, CPU)
    channel = SimpleNamespace(gather=lambda thing: [thing])
    found = held_out_metrics(None, Objective(), view, INPUTS, 30, 100, rank, channel)
    (rows,) = row_set(view, INPUTS).batches(100)
    assert found["draw"] == pytest.approx(
        float(rows.noise.uniform("mask", (100,)).mean()), rel=1e-6
    )


def test_conditions_are_of_the_first_selected_rows(view):
    found = sample_conditions(Completing("even"), 3, view, INPUTS)
    assert found.num == 3 and found.tensors["scores"][:, 0, 0].tolist() == [98, 96, 94]
    assert found.rows is not None and found.rows.columns["kind"].tolist() == ["even"] * 3
    more = sample_conditions(Completing("even"), 5, view, INPUTS)
    for name, values in found.tensors.items():
        assert torch.equal(more.tensors[name][:3], values)


def test_no_more_rows_are_read_than_needed(view, monkeypatch):
    monkeypatch.setattr("ditlab.inputs.conditions.SCAN_ROWS", 10)
    sampler = Completing("odd")
    assert sample_conditions(sampler, 7, view, INPUTS).tensors["scores"][:, 0, 0].tolist() == list(
        range(99, 85, -2)
    )
    assert sampler.seen == 20


def test_fewer_rows_than_requested_and_none(view):
    assert sample_conditions(Completing("odd"), 1000, view, INPUTS).num == 50
    expected = r"data\.path=rows holds no row that `sampling` would complete \(no neither among 100\); .*--data train"
    with refused(expected):
        sample_conditions(Completing("neither"), 4, view, INPUTS)


def test_without_a_number_a_selecting_sampler_gets_all_its_rows(view, monkeypatch):
    monkeypatch.setattr("ditlab.inputs.conditions.SCAN_ROWS", 10)
    monkeypatch.setattr("ditlab.inputs.conditions.DEFAULT_NUM_SAMPLES", 8)
    assert sample_conditions(Completing("odd"), None, view, INPUTS).num == 50
    assert sample_conditions(Unchoosy("odd"), None, view, INPUTS).num == 8
    assert sample_conditions(Free(), None, None, INPUTS).num == 8
    assert num_selected_rows(Completing("odd"), view, FIELDS) == 50
    assert num_selected_rows(Unchoosy("odd"), view, FIELDS) is None


def test_samplers_that_complete_nothing_need_no_rows(view):
    found = sample_conditions(Free(), 4, None, INPUTS, SampleRequest(label=2))
    assert found.num == 4 and found.rows is None and found.tensors["label"].tolist() == [2] * 4
    with refused("label is not known"):
        sample_conditions(Completing("odd"), 1, view, INPUTS, SampleRequest(label=2))
