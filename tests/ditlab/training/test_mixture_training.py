"""Training on mixtures: as exact as on one source, whatever stops it and however many workers there
are.
"""

import dataclasses

import pytest

from ditlab.data.splits import open_data
from ditlab.home import Home
from ditlab.runs.launch import build_model
from ditlab.training.metrics import metric_names
from ditlab.training.plan import plan_run
from support.damage import refused
from support.datasets.bucketed import SMALL_PIXELHDM, bucketed
from support.trainings.workers import TINY, newest, resumed_exactly, tiny, train_here, train_workers

STEPS = 10
DIT = {**TINY["model"], "channels": 3, "width": 16, "depth": 1}
PIXELHDM = {
    "model": SMALL_PIXELHDM,
    "objective": {"weights": {"velocity": 1.0, "frequency": 1.0, "alignment": 0.0}},
    "sampling": {"height": 16, "width": 16},
}


def experiment(folder, parts, draw="auto", **changes):
    return tiny(
        data={
            "kind": "mixture",
            "parts": {name: {"kind": "arrow", "path": str(folder / name)} for name in parts},
            "weights": {name: 1.0 + number for number, name in enumerate(parts)},
            "draw": draw,
        },
        batch__size=4,
        batch__micro=1,
        training__steps=STEPS,
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
    recorder = resumed_exactly(spec, folder, tmp_path, 4)
    parts = ("", "few/", f"{spec.data.names[1]}/")
    assert {f"eval/{part}velocity" for part in parts} <= recorder.values[5].keys()
    draws = [newest(tmp_path / name).manifest.draws for name in ("whole", "parts")]
    assert draws[0] == draws[1] and sum(draws[0]) == STEPS * (4 if kind == "sample" else 1)


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
    mixed = KINDS["sample"](folder).replace_all(limit)

    def measured(name, spec):
        return train_here(spec, folder, tmp_path / name)[1].values[0]

    even = measured("even", mixed)
    assert even == measured("steep", mixed.replace("data.weights.few", 50.0))
    single = {}
    for name in ("many", "few"):
        data = {"kind": "arrow", "path": str(folder / name)}
        alone = tiny(model=DIT, batch__size=4, batch__micro=1, data=data, **limit)
        single[name] = measured(name, alone)["eval/velocity"]
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
    objective = build_model(spec).objective
    together, found = (
        [name for name in metric_names(spec, each, objective) if "eval/" in name]
        for each in (dataclasses.replace(data, mixture=None), data)
    )
    parts = ("eval/", "eval/few/", "eval/many/")
    assert found == [name.replace("eval/", part) for part in parts for name in together]


def test_sizes_that_fill_no_batch_of_their_part_are_named(folder):
    spec = KINDS["sizes"](folder)
    data = open_data(spec.data, Home(folder))
    assert "data.parts.sizes.path=" in plan_run(spec.replace("batch.size", 8), data).note
    with refused(r"^data\.parts\.few: batch\.size=12 is larger than the 11 training samples"):
        plan_run(spec.replace("batch.size", 12), data)
