"""Tensors that an objective prepares on the host: those that its loss would compute itself, for any
slice of rows.
"""

from dataclasses import replace

import torch

from ditlab.data.stores.manifest import Column
from ditlab.inputs.model_inputs import ModelInputs, prepare_on_host
from ditlab.inputs.noise import KeyedNoise
from ditlab_models.region.family import FAMILY
from ditlab_models.region.spec import RegionObjectiveSpec, RegionSpec

CPU = torch.device("cpu")
MODEL = RegionSpec(num_features=3, num_regions=20, width=8, depth=1, num_heads=1, time_width=4)
COLUMNS = {
    "regions": Column(dtype="float32", shape=(20, 3)),
    "present": Column(dtype="bool", shape=(20,)),
}
NOISE = KeyedNoise(0, "train", 3, 1, 8, CPU)


def rows_of(num_padded):
    present = torch.ones(8, 20, dtype=torch.bool)
    present[6, 20 - num_padded :] = False
    return {"regions": torch.rand(8, 20, 3), "present": present}


def test_a_loss_with_prepared_tensors_is_the_loss_without():
    network, objective = (
        FAMILY.build_network(MODEL),
        FAMILY.build_objective(RegionObjectiveSpec(), MODEL),
    )
    inputs = ModelInputs(MODEL.batch_fields(), COLUMNS, CPU)
    for num_padded in (0, 5):
        raw = rows_of(num_padded)
        for rows in (None, slice(0, 4), slice(4, 8)):
            noise = replace(NOISE, start=0 if rows is None else rows.start)
            batch = inputs.prepare_batch(raw, COLUMNS, rows=rows)
            prepared = prepare_on_host(objective, raw, COLUMNS, inputs, noise, rows)
            has_padding = num_padded > 0 and rows != slice(0, 4)
            assert {*prepared} == {
                "mask",
                "query_index",
                "query_valid",
                *(["key_mask"] if has_padding else []),
            }
            found, expected = (
                objective.loss(network, each, noise) for each in (batch | prepared, batch)
            )
            assert torch.equal(found["masked"], expected["masked"])
            nothing = {name: torch.zeros_like(values) for name, values in prepared.items()}
            assert objective.loss(network, batch | nothing, noise)["masked"] == 0, (
                "prepared tensors are read"
            )


def test_an_objective_that_prepares_nothing_adds_nothing():
    inputs = ModelInputs(MODEL.batch_fields(), COLUMNS, CPU)
    assert prepare_on_host(object(), rows_of(0), COLUMNS, inputs, NOISE) == {}
