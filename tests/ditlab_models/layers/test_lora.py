"""LoRA: closed form, its start, merged weights, roles, and peft's own layer."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from ditlab_models.finetuning import matches, select
from ditlab_models.layers.attention import QKV
from ditlab_models.layers.lora import LowRank, adapt, adapted_names, is_adaptable, merge
from ditlab_models.parameters import parameter_roles
from support.damage import refused
from support.models.draws import seeded


def adapted(module, rank=2, alpha=6.0):
    """A module whose B is not zero."""
    adapt(module, rank, alpha, seed=3)
    with torch.no_grad():
        module.lora_B.normal_(generator=seeded(1))
    return module


def test_output_and_gradients_are_those_of_the_formula():
    torch.manual_seed(0)
    linear, x = adapted(nn.Linear(5, 4)), torch.randn(7, 5)
    assert isinstance(linear, LowRank) and list(dict(linear.named_parameters())) == [
        "weight",
        "bias",
        "lora_A",
        "lora_B",
    ]
    weight, bias, a, b = (each.detach() for each in linear.parameters())
    y = linear(x)
    assert_close(y, x @ (weight + 6.0 / 2 * b @ a).T + bias)
    upstream = torch.randn_like(y)
    y.backward(upstream)
    dense = upstream.T @ x  # of the loss by the whole matrix
    assert_close(linear.lora_A.grad, 3.0 * b.T @ dense)
    assert_close(linear.lora_B.grad, 3.0 * dense @ a.T)


def test_a_fresh_adapter_changes_nothing_and_is_drawn_by_kaiming_uniform():
    linear, x = nn.Linear(300, 4), torch.randn(2, 300)
    before = linear(x)
    adapt(linear, 8, 16.0, seed=1)
    assert torch.equal(linear(x), before) and not linear.lora_B.any()
    bound = 300**-0.5  # of Kaiming uniform with a = sqrt(5), as a Linear's own weight is drawn
    assert 0.95 * bound < linear.lora_A.abs().max() <= bound
    assert float(linear.lora_A.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.05)


@pytest.mark.parametrize("queries", [False, True])
def test_fused_queries_keys_and_values_agree_with_their_merged_weights(queries):
    torch.manual_seed(0)
    qkv, merged = QKV(8), QKV(8)
    merged.load_state_dict(qkv.state_dict())
    adapted(qkv)
    weights = merge({f"qkv.{name}": each.detach() for name, each in qkv.named_parameters()}, 3.0)
    assert adapted_names({"qkv.lora_A": 0, "other.weight": 0}) == ["qkv"] and set(weights) == {
        "qkv.weight",
        "qkv.bias",
    }
    merged.load_state_dict({name.removeprefix("qkv."): each for name, each in weights.items()})
    inputs = [torch.randn(2, 5, 8), *([torch.randn(2, 3, 8)] if queries else [])]
    for found, expected in zip(qkv(*inputs), merged(*inputs), strict=True):
        assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_an_adapters_two_matrices_are_one_each():
    qkv = adapted(QKV(8))
    roles = {name: (each.role, each.num_parts) for name, each in parameter_roles(qkv).items()}
    assert roles["weight"] == ("matrix", 3) and roles["lora_A"] == roles["lora_B"] == ("matrix", 1)
    assert (
        not is_adaptable(qkv)
        and not is_adaptable(nn.Conv1d(2, 2, 1))
        and is_adaptable(nn.Linear(2, 2))
    )


def test_patterns():
    names = ["blocks.0.mlp.weight", "blocks.10.mlp.weight", "head.weight"]
    assert (
        matches("blocks.0", names[0])
        and not matches("blocks.1", names[1])
        and matches("*.mlp.*", names[1])
    )
    assert select("o", ["blocks.*", "head"], names, "x") == set(names)
    with refused(r"training.freeze='blocs.0' matches no parameter; .*blocks.0", ValueError):
        select("training.freeze", ["head", "blocs.0"], names, "parameter")
