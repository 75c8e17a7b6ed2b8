"""The traced forward pass."""

import torch

from denoisers.dit.spec import DiTSpec
from denoisers.parameters import count_parameters
from denoisers.shape_trace import trace_shapes


def test_dit_shape_by_shape():
    rows = {row.path: row for row in trace_shapes(DiTSpec(), batch_size=4)}
    assert rows[""].inputs == [(4, 1, 28, 28), (4,)]
    assert rows[""].outputs == [(4, 1, 28, 28)]
    assert rows["patch_embedding"].outputs == [(4, 49, 256)]
    assert rows["time"].outputs == [(4, 1024)]
    assert rows["blocks.0"].parameters == 1_838_336
    assert rows["blocks.5.attention.qkv"].outputs == 3 * [(4, 49, 256)]
    assert rows["head"].outputs == [(4, 49, 16)]
    assert rows["head"].kind == "Linear"


def test_rows_come_in_call_order_parents_first_and_nest(small):
    rows = trace_shapes(small(num_classes=10))
    assert rows[0].path == "" and rows[0].depth == 0
    seen = set()
    for row in rows:
        parent = row.path.rpartition(".")[0]
        # Plain containers (a list of blocks) are never called, so they have no row.
        assert parent in seen or parent in ("", "blocks")
        seen.add(row.path)


def test_tracing_allocates_nothing_and_draws_nothing(small):
    state = torch.get_rng_state()
    rows = trace_shapes(small(image_size=4096), batch_size=4096)
    assert rows[0].parameters == count_parameters(small(image_size=4096)).total
    assert torch.equal(torch.get_rng_state(), state)
