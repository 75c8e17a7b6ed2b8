"""Tiles of attention masks: the dense masks' entries, and the losses and gradients of dense
attention.
"""

from collections import Counter
from types import MethodType

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.attention import flex_attention as torchs
from torch.testing import assert_close

from ditlab_models.dlm import network
from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.network import TokenNoise, dense_mask, tiled_mask_of
from ditlab_models.dlm.spec import DLMSpec
from ditlab_models.layers import attention
from ditlab_models.layers.attention import TILE, attention_backend
from ditlab_models.processes.specs import TokenNoiseSchedule
from support.devices.reference_flex import use_reference_flex
from support.models.draws import seeded

CPU = torch.device("cpu")
LENGTH = 2 * TILE + 16
"""Tokens of a row: tiles do not divide it."""
DOCUMENTS = torch.stack(
    (torch.arange(LENGTH) // 120, (torch.arange(LENGTH) > 7).long() + (torch.arange(LENGTH) > 260))
)
KINDS = [
    (64, 1, None),
    (64, 2, None),
    (40, 2, None),
    (None, 1, DOCUMENTS),
    (64, 1, DOCUMENTS),
    (40, 2, DOCUMENTS),
]
"""Block size, copies, documents."""


@pytest.fixture(autouse=True)
def reference(monkeypatch):
    use_reference_flex(monkeypatch)
    network._tiles_of_blocks.cache_clear()
    yield
    network._tiles_of_blocks.cache_clear()


def both_masks(block_size, copies, documents):
    """The tiles and the dense mask of one kind, the latter (samples, 1, S, S)."""
    dense = dense_mask(LENGTH, block_size, copies, documents, CPU)
    assert dense is not None
    return tiled_mask_of(LENGTH, block_size, copies, documents, CPU), dense.view(
        -1, 1, *dense.shape[-2:]
    )


def true_by_tile(dense):
    """Number of true entries of each tile, padded with false ones: (samples, 1, tiles, tiles)."""
    missing = -dense.shape[-1] % TILE
    padded = torch.nn.functional.pad(dense, (0, missing, 0, missing))
    return padded.unflatten(-1, (-1, TILE)).unflatten(-3, (-1, TILE)).sum((-3, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_hold_the_dense_masks_true_entries(kind):
    """Entry by entry; tiles without a true one are left out, and only those; tiles of true ones
    alone need no mask.
    """
    tiled, dense = both_masks(*kind)
    tiles, size = tiled.tiles, dense.shape[-1]
    assert tiles.shape == dense.shape
    entries = torchs.create_mask(tiles.mask_mod, len(dense), 1, size, size, "cpu")
    assert torch.equal(entries, dense)
    number = true_by_tile(dense)
    full = (number == TILE * TILE).sum(-1)
    assert torch.equal(tiles.full_kv_num_blocks, full.int())
    assert torch.equal(tiles.kv_num_blocks, (number > 0).sum(-1).int() - full.int())
    assert torch.equal(tiles.to_dense().bool(), number > 0)
    assert (number == 0).any()


def losses_of(model, x0, end):
    noise = TokenNoise(TokenNoiseSchedule(), 11, model.spec.block_size, "log", end)
    draws = torch.rand(2, *x0.shape, generator=seeded(5))
    return noise.losses(
        model, x0, noise.at_time(torch.full(noise.time_shape(x0), 0.8)), draws[0], draws[1]
    ).total


def model_of(block_size, length=160):
    torch.manual_seed(0)
    spec = DLMSpec(
        length=length, vocabulary=11, depth=2, num_heads=2, width=32, block_size=block_size
    )
    model = FAMILY.build_network(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("block_size", [None, 20])
def test_losses_and_gradients_of_a_network_are_those_of_dense_attention(block_size, monkeypatch):
    """Within 1e-9 in float64 and 1e-4 in float32, of the largest gradient."""
    x0 = torch.randint(11, (3, 160), generator=seeded(3))
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        model, results = model_of(block_size).to(dtype), []
        for backend in ("flex", "dense"):
            monkeypatch.setattr(network, "attention_backend", lambda *of, backend=backend: backend)
            loss = losses_of(model, x0, end=10)
            results.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
        for found, expected in zip(*results, strict=True):
            largest = expected.detach().abs().max().item()
            assert_close(found, expected, rtol=0, atol=tolerance * largest)


def test_tiles_are_made_once_a_batch_and_those_of_blocks_once_a_length(monkeypatch):
    made = Counter()
    making = attention.create_block_mask

    def counted(*arguments):
        made["tiles"] += 1
        return making(*arguments)

    monkeypatch.setattr(attention, "create_block_mask", counted)
    model, x0 = model_of(20), torch.randint(11, (2, 160))
    for end, expected in ((10, [1, 2]), (None, [3, 3])):
        for number in expected:
            losses_of(model, x0, end)
            assert made["tiles"] == number


def test_backend_by_device_sizes_and_what_torch_compiles(monkeypatch):
    monkeypatch.setattr(attention, "can_compile_kernels", lambda: True)
    half, single = torch.bfloat16, torch.float32
    assert (
        attention_backend("cuda", half, 64, 2048)
        == attention_backend("cuda", single, 16, 512)
        == "flex"
    )
    for of in (
        ("cpu", half, 64, 2048),
        ("meta", half, 64, 2048),
        ("cuda", torch.float64, 64, 2048),
        ("cuda", half, 8, 2048),
        ("cuda", half, 64, 256),
    ):
        assert attention_backend(*of) == "dense", of
    with torch.no_grad():
        assert attention_backend("cuda", half, 64, 2048) == "dense"
    monkeypatch.setattr(attention, "can_compile_kernels", lambda: False)
    assert attention_backend("cuda", half, 64, 2048) == "dense"


def test_kernels_need_triton_a_compiler_and_tensor_cores(monkeypatch):
    parts = {"triton": object(), "gcc": "/usr/bin/gcc"}
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(attention, "find_spec", lambda name: parts.get(name))
    monkeypatch.setattr(attention.shutil, "which", lambda name: parts.get(name))
    for without, capability, expected in (
        (None, (9, 0), True),
        (None, (7, 5), False),
        ("triton", (9, 0), False),
        ("gcc", (9, 0), False),
    ):
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda capability=capability: capability
        )
        with monkeypatch.context() as patched:
            if without:
                patched.delitem(parts, without)
            assert attention.can_compile_kernels.__wrapped__() is expected


@pytest.mark.slow
@pytest.mark.parametrize("is_compiled", [False, True])
def test_one_graph_whatever_the_lengths(is_compiled, monkeypatch):
    """FlexAttention by itself between eager layers, and as a part of a compiled block."""
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    compiled = torch.compile(torchs.flex_attention, dynamic=True, backend="eager")
    monkeypatch.setattr(attention, "compiled_flex_attention", lambda: compiled)
    for block_size, end in ((32, 10), (32, None), (None, 10)):
        torch._dynamo.reset()
        counters.clear()
        model = model_of(block_size, 384)
        forward = torch.compile(
            type(model.blocks[0]).forward, dynamic=True, backend="eager", fullgraph=True
        )
        for each in model.blocks if is_compiled else ():
            each.forward = MethodType(forward, each)
        with torch.fx.experimental._config.patch(use_duck_shape=False):  # as in the engine
            for size, length in ((4, 288), (3, 320), (5, 384), (4, 288)):
                losses_of(model, torch.randint(11, (size, length)), end).backward()
        assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"], (
            block_size,
            end,
        )
