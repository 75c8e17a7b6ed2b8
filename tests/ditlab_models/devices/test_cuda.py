"""Loss and gradients of every family on a GPU are those of the CPU. Needs torch alone: no Ray,
MLflow or DeepSpeed.
"""

import copy
from types import MethodType

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.dlm import network
from ditlab_models.layers.attention import attention_backend, can_compile_kernels
from support.devices.variants import Parts, variants
from support.models.draws import KeyedNoise

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
TOLERANCE = 1e-9
"""Share of the largest entry: sums of up to 10^6 products in float64 err by 10^6 units of 1.1e-16
at worst.
"""
OF_LEVELS = 1e-5
"""Share for `dlm`: its noise levels are float32, where exp and log of a CPU and a GPU differ by
units of 6e-8.
"""


def loss_and_gradients(parts, device):
    """The loss, then the gradient of every parameter, on the CPU."""
    parts.network.zero_grad()
    components = parts.objective.loss(parts.network, parts.batch, KeyedNoise(device=device))
    total = sum(parts.objective.weights[name] * value for name, value in components.items())
    total.backward()
    trained = [
        *parts.network.parameters(),
        *(parts.objective.modules or torch.nn.Module()).parameters(),
    ]
    return [total.detach().cpu(), *(each.grad.cpu().clone() for each in trained)]


def test_loss_and_gradients_are_those_of_the_cpu():
    for name, model, objective in variants():
        torch.manual_seed(0)
        on_cpu = Parts(name, model, objective, torch.float64, "cpu")
        for parameter in on_cpu.network.parameters():  # what starts at zero hides errors
            parameter.data.add_(0.05 * torch.randn_like(parameter))
        on_gpu = copy.copy(on_cpu)
        on_gpu.network = copy.deepcopy(on_cpu.network).cuda()
        on_gpu.objective = copy.deepcopy(on_cpu.objective)
        if on_gpu.objective.modules is not None:
            on_gpu.objective.modules.cuda()
        on_gpu.batch = {each: values.cuda() for each, values in on_cpu.batch.items()}
        pairs = zip(
            loss_and_gradients(on_cpu, "cpu"), loss_and_gradients(on_gpu, "cuda"), strict=True
        )
        for expected, found in pairs:
            largest = max(1e-6, expected.abs().max().item())
            tolerance = (OF_LEVELS if name == "dlm" else TOLERANCE) * largest
            away = (found - expected).abs().max().item()
            assert away <= tolerance, f"{name} {model}: {away / largest:.2g} of the largest"


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.1)])
def test_attention_by_tiles_is_that_under_the_dense_mask(
    is_compiled, dtype, tolerance, monkeypatch
):
    """Within 1e-3 of the largest gradient in float32 and 0.1 in bfloat16, which has 8 bits, by
    blocks and documents.
    """
    if not can_compile_kernels():
        pytest.skip("no kernels are made here")
    for block_size in (None, 64):
        sizes = {"length": 640, "width": 64, "block_size": block_size, "depth": 3}
        parts = Parts("dlm", sizes, {}, dtype, "cuda")
        parts.batch["tokens"] = torch.randint(11, (3, 640), device="cuda")  # some end documents
        for parameter in parts.network.parameters():
            parameter.data.add_(0.05 * torch.randn_like(parameter))
        if is_compiled:
            forward = torch.compile(
                type(parts.network.blocks[0]).forward, dynamic=True, fullgraph=True
            )
            for block in parts.network.blocks:
                block.forward = MethodType(forward, block)
        assert attention_backend("cuda", dtype, 32, 640) == "flex"
        by_tiles = loss_and_gradients(parts, "cuda")
        with monkeypatch.context() as patched:
            patched.setattr(network, "attention_backend", lambda *of: "dense")
            dense = loss_and_gradients(parts, "cuda")
        for found, expected in zip(by_tiles, dense, strict=True):
            largest = max(1e-6, expected.abs().max().item())
            assert_close(found, expected, rtol=0, atol=tolerance * largest)
