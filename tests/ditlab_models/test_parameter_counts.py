"""Parameters: counts by component, roles, and the shapes of a forward pass."""

from collections import Counter

import pytest
import torch
from torch import nn

from ditlab_models.dit.spec import DiTSpec
from ditlab_models.families import families
from ditlab_models.parameters import ParameterRole, count_network, count_parameters, parameter_roles
from ditlab_models.shape_trace import trace_shapes


class Pair(nn.Module):
    def __init__(self, groups) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 4, bias=False)
        self.groups = groups

    def components(self):
        return self.groups(self)


def test_trainable_leaves_out_what_takes_no_gradient():
    network = Pair(lambda n: {"a": [n.first], "b": [n.second]})
    network.first.bias.requires_grad_(False)
    count = count_network(network, nn.ModuleDict({"critic": nn.Linear(5, 1)}))
    assert (count.total, count.trainable) == (21, 18)
    assert count.components == {"a": 9, "b": 12}
    assert count.training_only == {"critic": 6}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (lambda n: {"a": [n.first]}, "no component holds second.weight"),
        (
            lambda n: {"a": [n.first, n.second], "b": [n.second]},
            "second.weight is counted twice: in 'a' and in 'b'",
        ),
        (
            lambda n: {"a": [n], "b": [nn.Linear(1, 1)]},
            "component 'b' holds a parameter that the network does not",
        ),
    ],
)
def test_components_must_cover_every_parameter_once(groups, message):
    with pytest.raises(AssertionError, match=message):
        count_network(Pair(groups))


@pytest.mark.parametrize("name", ["dit", "unet", "region", "dlm", "pixelhdm"])
def test_every_weight_has_one_and_norms_and_biases_their_own(name):
    family = families()[name]
    with torch.device("meta"):
        network = family.build_network(family.model())
    roles, parameters = parameter_roles(network), dict(network.named_parameters())
    held = sum(
        each.numel() for part in network.checkpointed_modules() for each in part.parameters()
    )
    assert held > 0.5 * sum(each.numel() for each in network.parameters()) or name == "dlm"
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

    assert parameter_roles(Odd()) == {
        "temperature": ParameterRole("scalar"),
        "token": ParameterRole("embedding"),
    }


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
