"""Training in the order of streams: as exact as in the full order, and never resumed in another
one.
"""

import re

import numpy as np
import pytest

from ditlab.data.splits import open_data
from ditlab.home import Home
from ditlab.training.checkpointing import check_same_order
from ditlab.training.plan import plan_run
from support.damage import refused
from support.datasets.bucketed import bucketed
from support.trainings.family_specs import smallest
from support.trainings.workers import train_here

STREAMS = {"kind": "interleaved", "streams": 4, "window": 2}


def experiment(folder, order=STREAMS, **changes):
    """Nine steps an epoch."""
    data = {"kind": "arrow", "path": str(folder / "set"), "hold_out": 0.1, "order": order}
    sizes = {"model__channels": 3, "model__num_classes": None, "batch": {"size": 4, "micro": 1}}
    return smallest("dit", data=data, **{"training__steps": 10, **sizes, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("streams")
    bucketed(path / "set", {(8, 8): 40})
    return path


def test_a_run_is_planned_without_a_list_of_its_rows(folder):
    spec = experiment(folder)
    data = open_data(spec.data, Home(folder))
    plan = plan_run(spec, data)
    assert (plan.train_samples, plan.held_out_samples) == (36, 4) and plan.epoch_steps == 9
    assert plan.left_out_samples == 0 and not plan.note
    assert not isinstance(data.train.rows, np.ndarray)
    assert len(data.held_out.rows[np.arange(4)]) == 4


def test_a_checkpoint_of_another_order_is_refused():
    streams = {"kind": "interleaved", "streams": 8, "window": 16}
    own = {"data": {"kind": "arrow", "order": streams}}
    check_same_order(own, 5, own)

    sentence = (
        "data.order={kind: interleaved, streams: 8, window: 16} is not the order in which the "
        "checkpoint of step 5 has taken its samples ({kind: full}); set data.order to that, or "
        "begin a new run from it with --from in place of --resume."
    )
    with refused(f"^{re.escape(sentence)}$"):
        check_same_order({"data": {"kind": "arrow"}}, 5, own)
    parts = {"data": {"parts": {"a": {"order": streams}, "b": {}}}}
    check_same_order(parts, 5, parts)
    with refused(r"data\.parts\.a\.order=\{kind: full\} is not the order"):
        check_same_order(parts, 5, {"data": {"parts": {"a": {}, "b": {}}}})


def test_a_resumed_worker_refuses_a_checkpoint_of_another_order(folder, tmp_path):
    train_here(experiment(folder, training__steps=4), folder, tmp_path / "run")
    with refused(r"data\.order=\{kind: interleaved, streams: 2, window: 2\} is not the order"):
        train_here(experiment(folder, STREAMS | {"streams": 2}), folder, tmp_path / "run")
