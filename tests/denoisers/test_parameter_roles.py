"""Roles of every family's parameters."""

from collections import Counter

import pytest
import torch
from torch import nn

from denoisers.families import families
from denoisers.parameters import ParameterRole, parameter_roles


@pytest.mark.parametrize("name", ["dit", "unet", "region", "dlm", "pixelhdm"])
def test_every_weight_has_one_and_norms_and_biases_their_own(name):
    family = families()[name]
    with torch.device("meta"):
        network = family.build_network(family.model())
    roles, parameters = parameter_roles(network), dict(network.named_parameters())
    assert roles.keys() == parameters.keys()
    counts = Counter(role.role for role in roles.values())
    assert counts["head"] == 1 and counts["matrix"] > 3
    assert counts["input"] >= 1 or name == "dlm"  # which reads tokens
    for key, role in roles.items():
        weight = parameters[key]
        if role.role in ("matrix", "convolution"):
            rows = weight.shape[1 if role.is_transposed else 0]
            assert weight.ndim >= 2 and rows % role.num_parts == 0, key
        if role.role == "scalar":
            assert weight.numel() == 1, key
        if "norm" in key.rsplit(".", 2)[-2] and "modulation" not in key:
            assert role.role == "norm", key


def test_fused_weights_count_as_their_parts_and_kernels_as_theirs():
    dit = families()["dit"]
    with torch.device("meta"):
        roles = parameter_roles(dit.build_network(dit.model()))
    assert roles["blocks.0.attention.qkv.weight"] == ParameterRole("matrix", 3)
    assert roles["blocks.0.attention_norm.modulation.weight"] == ParameterRole("matrix", 2)
    assert roles["patch_embedding.projection.weight"] == ParameterRole("input")
    unet = families()["unet"]
    with torch.device("meta"):
        roles = parameter_roles(unet.build_network(unet.model()))
    assert roles["double1.weight"] == ParameterRole("convolution", is_transposed=True)
    assert roles["down1.conv1.weight"] == ParameterRole("convolution")


def test_parameters_of_no_known_module():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature, self.token = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(8))

    assert parameter_roles(Odd()) == {"temperature": ParameterRole("scalar"), "token": ParameterRole("embedding")}
