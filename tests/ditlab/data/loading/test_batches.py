"""Batches of a store's rows: ranges mapped to those of a model, held-out rows in the view's
order.
"""

import numpy as np
import pytest
import torch

from ditlab.data.loading.batches import held_out_batches, to_device
from ditlab.data.stores.manifest import Column
from ditlab.data.stores.view import View
from ditlab_models.contract import BatchField

IMAGE = BatchField("image", (1, 3, 4), "float32", value_range=(-1, 1))
LABEL = BatchField("label", (), "int64", num_classes=5)


@pytest.mark.parametrize("high", [255, 16])
def test_the_stores_range_becomes_the_fields(high):
    """(x/255 - 0.5)/0.5, both ends exact."""
    values = torch.arange(high + 1, dtype=torch.uint8)
    field = BatchField("x", (), "float32", value_range=(-1, 1))
    mapped = to_device(
        {"x": values}, [field], {"x": Column(dtype="uint8", value_range=(0, high))}, "cpu"
    )["x"]
    assert mapped.dtype == torch.float32
    assert (mapped[0], mapped[-1]) == (-1, 1)
    torch.testing.assert_close(
        mapped, ((values.double() / high - 0.5) / 0.5).float(), rtol=0, atol=1.2e-7
    )


def test_other_ranges_are_mapped_too_and_labels_and_rangeless_fields_keep_their_values():
    batch = {
        "x": torch.tensor([-3.0, 1.0, 5.0]),
        "label": torch.tensor([0, 9]),
        "byte": torch.tensor([0, 200], dtype=torch.uint8),
    }
    columns = {
        "x": Column(dtype="float32", value_range=(-3, 5)),
        "label": Column(dtype="int64", num_classes=10),
        "byte": Column(dtype="uint8", value_range=(0, 255)),
    }
    fields = [
        BatchField("x", (), "float32", value_range=(0, 1)),
        BatchField("label", (), "int64", num_classes=10),
        BatchField("byte", (), "float32"),
    ]
    converted = to_device(batch, fields, columns, "cpu")
    found = {name: values.tolist() for name, values in converted.items()}
    assert found == {"x": [0.0, 0.5, 1.0], "label": [0, 9], "byte": [0, 200]}
    assert converted["label"].dtype == torch.int64 and converted["byte"].dtype == torch.float32
    assert batch["x"].tolist() == [-3.0, 1.0, 5.0], "the batch itself stays as it is"


@pytest.mark.parametrize(
    ("size", "limit", "sizes"), [(40, None, [40, 40, 20]), (40, 50, [40, 10]), (128, 500, [100])]
)
def test_held_out_batches_are_the_views_first_rows(make_store, size, limit, sizes):
    view = View(make_store(), np.arange(99, -1, -1), "data.kind=test")
    batches = list(held_out_batches(view, [IMAGE, LABEL], size, limit))
    assert [len(batch["label"]) for batch in batches] == sizes
    whole = torch.cat([batch["image"] for batch in batches])
    assert whole.dtype == torch.uint8
    assert torch.equal(whole, view.store.tensor("image").flip(0)[: sum(sizes)])
