"""Training on mixtures: as exact as on one source, whatever stops it and however many workers there
are.
"""

import dataclasses
import shutil

import numpy as np
import pytest

from ditlab.data.orders import training_order
from ditlab.data.splits import open_data
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.inputs.model_inputs import check_inputs
from ditlab.runs.launch import build_model
from ditlab.runs.prepare import portable
from ditlab.spec.experiment import validate_experiment
from ditlab.training.metrics import metric_names
from ditlab.training.plan import plan_run
from support.datasets.bucketed import bucketed
from support.trainings.workers import newest, same_state, tiny, train_here, train_workers

STEPS = 10
DIT = {
    "family": "dit",
    "image_size": 8,
    "channels": 3,
    "patch_size": 4,
    "width": 16,
    "depth": 1,
    "num_heads": 2,
}
PIXELHDM = {
    "model": {
        "family": "pixelhdm",
        "width": 32,
        "pixel_width": 4,
        "patch_size": 4,
        "patch_depth": 1,
        "pixel_depth": 1,
        "num_heads": 4,
        "num_kv_heads": 2,
        "mrope_widths": [4, 2, 2],
        "bottleneck_width": 8,
        "time_width": 8,
        "max_resolution": 16,
        "text_encoder": "learned",
        "text_length": 4,
        "text_depth": 1,
    },
    "objective": {"weights": {"velocity": 1.0, "frequency": 1.0, "alignment": 0.0}},
    "sampling": {"height": 16, "width": 16},
}


def experiment(folder, parts, draw="auto", order=None, **changes):
    return tiny(
        data={
            "kind": "mixture",
            "parts": {
                name: {
                    "kind": "arrow",
                    "path": str(folder / name),
                    **({"order": order} if order else {}),
                }
                for name in parts
            },
            "weights": {name: 1.0 + number for number, name in enumerate(parts)},
            "draw": draw,
        },
        batch={"size": 4, "micro": 1},
        training={"steps": STEPS, "ema": {"decay": 0.9}},
        **{"model": DIT, "evaluation": {"every": 5, "samples": 0, "limit": 5}} | changes,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixture")
    bucketed(path / "many", {(8, 8): 40})
    bucketed(path / "few", {(8, 8): 12}, seed=1)
    bucketed(path / "sizes", {(8, 16): 12, (8, 8): 18, (16, 8): 5}, seed=2)
    return path


KINDS = {
    "sample": lambda folder, **more: experiment(folder, ["many", "few"], **more),
    "batch": lambda folder, **more: experiment(folder, ["many", "few"], "batch", **more),
    "sizes": lambda folder, **more: experiment(folder, ["few", "sizes"], **PIXELHDM, **more),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_goes_on_to_the_same_bits(folder, tmp_path, kind):
    spec = KINDS[kind](folder)
    whole, recorder = train_here(spec, folder, tmp_path / "whole")
    assert (whole.status, whole.step) == ("finished", STEPS)
    assert {
        f"eval/{part}velocity" for part in ("", "few/", f"{spec.data.names[1]}/")
    } <= recorder.values[5].keys()
    stopped, _ = train_here(spec, folder, tmp_path / "stopped", 4)
    assert stopped.status == "interrupted" and stopped.step < STEPS
    assert sum(newest(tmp_path / "stopped").manifest.draws) == stopped.step * (
        1 if kind in ("batch", "sizes") else 4
    )
    train_here(spec, folder, tmp_path / "stopped")
    assert same_state(newest(tmp_path / "whole"), newest(tmp_path / "stopped"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sample", "sizes"])
def test_a_killed_run_goes_on_from_its_last_checkpoint_to_the_same_bits(folder, tmp_path, kind):
    """Leave the checkpoint of step 3 and nothing later, as a kill does."""
    spec = KINDS[kind](folder)
    train_here(spec, folder, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole" / "step-00000003", tmp_path / "killed" / "step-00000003")
    train_here(spec, folder, tmp_path / "killed")
    assert same_state(newest(tmp_path / "whole"), newest(tmp_path / "killed"))
    assert newest(tmp_path / "whole").manifest.draws == newest(tmp_path / "killed").manifest.draws


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_workers_train_on_the_same_numbers(folder, tmp_path, kind):
    spec = KINDS[kind](folder, resources={"workers": {"min": 1, "max": 4}})
    _, alone = train_here(spec, folder, tmp_path / "one")
    for workers in (2, 4):
        (losses,) = train_workers([(spec, folder, tmp_path / str(workers))], workers)
        assert losses == pytest.approx(alone.losses, rel=1e-4)


@pytest.mark.slow
def test_parts_are_measured_as_by_themselves_and_together_whatever_the_weights(folder, tmp_path):
    """At step 0 the network is the same in all runs: that of the seed."""
    limit = {"evaluation": {"every": 5, "samples": 0, "limit": 6}, "training": {"steps": 5}}

    def measured(name, spec):
        return train_here(spec, folder, tmp_path / name)[1].values[0]

    even = measured("even", KINDS["sample"](folder).replace_all(limit))
    steep = measured(
        "steep", KINDS["sample"](folder).replace_all({**limit, "data.weights.few": 50.0})
    )
    assert even == steep
    single = {
        name: measured(
            name,
            tiny(
                **{
                    "model": DIT,
                    "batch": {"size": 4, "micro": 1},
                    **limit,
                    "data": {"kind": "arrow", "path": str(folder / name)},
                }
            ),
        )["eval/velocity"]
        for name in ("many", "few")
    }
    assert even["eval/few/velocity"] == pytest.approx(single["few"])  # its one held-out sample
    assert even["eval/many/velocity"] == pytest.approx(single["many"])  # four, as many as there are
    assert even["eval/velocity"] == pytest.approx((4 * single["many"] + single["few"]) / 5)


def test_a_mixture_s_plan_has_no_epoch(folder):
    spec = KINDS["sample"](folder)
    data = open_data(spec.data, Home(folder))
    plan = plan_run(spec, data)
    assert (plan.total_steps, plan.epoch_steps, plan.left_out_samples) == (STEPS, 0, 0)
    assert (plan.train_samples, plan.held_out_samples) == (36 + 11, 4 + 1)
    assert plan.mixture == (
        "mixture drawn by sample: few 0.6667 of 11 samples (2.42 passes), many 0.3333 of 36 "
        "samples (0.37 passes); no epoch of the whole"
    )
    together = [
        name
        for name in metric_names(
            spec, dataclasses.replace(data, mixture=None), build_model(spec).objective
        )
        if "eval/" in name
    ]
    assert [
        name for name in metric_names(spec, data, build_model(spec).objective) if "eval/" in name
    ] == [
        name.replace("eval/", f"eval/{part}") for part in ("", "few/", "many/") for name in together
    ]


def test_sizes_that_fill_no_batch_of_their_part_are_named(folder):
    spec = KINDS["sizes"](folder)
    assert (
        "data.parts.sizes.path="
        in plan_run(spec.replace("batch.size", 8), open_data(spec.data, Home(folder))).note
    )
    with pytest.raises(
        UserError, match=r"^data\.parts\.few: batch\.size=12 is larger than the 11 training samples"
    ):
        plan_run(spec.replace_all({"batch.size": 12}), open_data(spec.data, Home(folder)))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            "sample",
            r"^data\.draw=sample puts parts in one batch, and data\.parts\.sizes holds images of several sizes; ",
        ),
        (
            "auto",
            r"^data\.kind=mixture holds image \(3, any, any\), but the model takes \(3, 8, 8\); ",
        ),
    ],
)
def test_shapes_that_do_not_fit(folder, draw, message):
    spec = experiment(folder, ["few", "sizes"], draw)
    with pytest.raises(UserError, match=message):
        check_inputs(spec, open_data(spec.data, Home(folder)))


def test_rows_come_from_the_part_that_is_drawn(folder):
    """Rows of two stores with other pixels, in the order of a mixture, by any worker's share."""
    spec = KINDS["sample"](folder)
    data = open_data(spec.data, Home(folder))
    order = training_order(spec.data, data, 4, spec.seed)
    batches = order.batches(0, 30)
    images = data.train.gather("image", batches.reshape(-1)).reshape(30, 4, 3, 8, 8)
    few = data.mixture.parts["few"].train
    for batch, image in zip(batches, images, strict=True):
        of_few = batch < len(few)
        own = few.gather("image", batch[of_few])
        assert np.array_equal(image.numpy()[of_few], own.numpy())
        many = data.mixture.parts["many"].train.gather("image", batch[~of_few] - len(few))
        assert np.array_equal(image.numpy()[~of_few], many.numpy())


def test_paths_of_parts_are_made_absolute(folder, monkeypatch):
    monkeypatch.chdir(folder)
    data = {
        "kind": "mixture",
        "parts": {"a": {"kind": "arrow", "path": "few"}},
        "weights": {"a": 1.0},
    }
    spec = portable(tiny(data=data), None, Home(folder / "home"))
    assert spec.data.parts["a"].path == str(folder / "few")
    assert validate_experiment(spec.to_dict()) == spec


def test_positions_are_those_of_the_checkpoint(folder):
    spec = KINDS["sample"](folder)
    data = open_data(spec.data, Home(folder))
    known = [9, 31]
    assert training_order(spec.data, data, 4, spec.seed, {40: known}).counts(10).tolist() == known
    assert training_order(spec.data, data, 4, spec.seed, {40: known}).counts(9).sum() == 36
