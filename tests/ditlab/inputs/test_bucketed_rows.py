"""Images of several sizes: plans, held-out figures and conditions."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ditlab.data.stores.view import View
from ditlab.engine.distributed import Rank
from ditlab.inputs.conditions import row_set, sample_conditions
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.training.plan import RunPlan, plan_run
from ditlab_models.contract import ANY, BatchField
from support.datasets.bucketed import bucketed
from support.trainings.held_out import held_out_metrics
from support.trainings.workers import tiny

CPU = torch.device("cpu")
FIELDS = (
    BatchField("image", (3, ANY, ANY), "float32", value_range=(-1, 1)),
    BatchField("words", (ANY,), "float32"),
)
INPUTS = ModelInputs(FIELDS, ("image", "words"), CPU)


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    """40 rows of 8x8, 9 of 16x4 and 23 of 8x12, mixed."""
    store = bucketed(tmp_path_factory.mktemp("bucketed") / "s")
    return View(store, np.random.default_rng(0).permutation(72), "data.path=s")


def data(view, held_out=0):
    return SimpleNamespace(train=view, held_out=range(held_out), mixture=None)


def test_batches_of_each_size_make_an_epoch(view):
    plan = plan_run(tiny(batch={"size": 8}, training={"epochs": 3}), data(view, 5))
    assert plan == RunPlan(
        3 * (5 + 1 + 2), 8, train_samples=72, held_out_samples=5, left_out_samples=0 + 1 + 7
    )


def test_sizes_that_fill_no_batch_are_named_with_the_remedy(view):
    plan = plan_run(tiny(batch={"size": 20}), data(view))
    assert (plan.epoch_steps, plan.left_out_samples) == (3, 9 + 3)
    assert (
        plan.note
        == "data.path=s: image sizes with fewer training samples than batch.size=20 are never trained on: 16x4 (9); lower batch.size, or import the images again with fewer sizes."
    )


class Channel:
    """Channel of workers that are done one after the other: the last one sees what all have
    given.
    """

    def __init__(self):
        self.given = []

    def gather(self, thing):
        self.given.append(thing)
        return self.given


class Objective:
    """Numbers that depend on every pixel and draw; counts its passes."""

    def __init__(self):
        self.passes = 0

    def metrics(self, network, batch, noise):
        self.passes += 1
        image = batch["image"]
        drawn = noise.normal("noise", image.shape) * noise.uniform("time", (len(image), 1, 1, 1))
        return {
            "product": (image * drawn).mean((1, 2, 3)).mean(),
            "words": batch["words"].sum(1).mean(),
        }

    def summary(self, means):
        return means


def measure(view, batch_size, limit, rank=0, world_size=1, channel=None):
    objective = Objective()
    found = held_out_metrics(
        None,
        objective,
        view,
        INPUTS,
        batch_size,
        limit,
        Rank(rank, world_size, rank, CPU),
        channel or Channel(),
    )
    return found, objective.passes


@pytest.mark.parametrize("limit", [50, 1000])
def test_figures_do_not_depend_on_the_batches_or_the_workers(view, limit):
    """Workers take equally many passes, whatever the sizes."""
    whole, _ = measure(view, 64, limit)
    for batch_size in (1, 7):
        assert measure(view, batch_size, limit)[0] == pytest.approx(whole, rel=1e-4)
    alone, _ = measure(view, 7, limit)
    for world_size in (2, 3, 5):
        channel = Channel()
        parts = [measure(view, 7, limit, rank, world_size, channel) for rank in range(world_size)]
        assert parts[-1][0] == alone, "to the bit"
        assert len({passes for _, passes in parts}) == 1


def test_rows_of_a_limit_are_those_of_the_whole(view):
    """Draws of a row depend on its place in the view alone; sizes share none."""
    draws = {}
    for limit in (30, 72):
        part = View(view.store, view.rows[:limit], view.origin)
        for rows in row_set(part, INPUTS).batches(16):
            time = rows.noise.uniform("time", (len(rows.columns["number"]),)).tolist()
            for number, size, drawn in zip(
                rows.columns["number"],
                [rows.batch["image"].shape[2:]] * len(time),
                time,
                strict=True,
            ):
                assert draws.setdefault((int(number), size), drawn) == drawn
    assert len(draws) == len(set(draws.values())) == 72


class Captioned:
    takes_rows = "conditions"
    row_fields = ("words",)
    max_batch_size = None

    def conditions(self, num, request):
        return {"words": request.rows.batch["words"]} if request.rows else {}


def test_conditions_of_several_sizes_are_padded_and_images_not_read(view, monkeypatch):
    read = []
    padded = View.padded
    monkeypatch.setattr(
        View, "padded", lambda self, name, rows: read.append(name) or padded(self, name, rows)
    )
    words = sample_conditions(Captioned(), 80, view, INPUTS).tensors["words"]
    assert words.shape == (80, 12) and "image" not in read
    numbers = view.padded("number", np.arange(72))
    lengths = torch.from_numpy(np.array([8, 4, 12])[view.buckets])
    assert torch.equal(words[:72].sum(1), torch.minimum(numbers % 4 + 1, lengths).float())
    assert torch.equal(words[72:], words[:8]), "over and over"
