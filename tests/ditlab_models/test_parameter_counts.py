"""Parameters: counts by component, roles, and the shapes of a forward pass."""

from collections import Counter

import pytest
import torch
from torch import nn

from ditlab_models.families import families
from ditlab_models.parameters import ParameterRole, count_network, count_parameters, parameter_roles
from ditlab_models.shape_trace import trace_shapes


class Pair(nn.Module):
    def __init__(self, groups):
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


@pytest.mark.parametrize(
    ("name", "changes", "total"),
    [
        ("dit", {"adaln": "zero"}, 15_500_560),
        ("dit", {"num_classes": 10}, 12_351_760 + 11 * 1024),  # a vector each, and the null class's
        ("unet", {"num_classes": 10}, 1_837_185 + 11 * 128),
        ("region", {"positions": "sinusoidal", "num_regions": 200}, 128_767_003),
        ("dlm", {"length": 128}, 79_245_649),
        ("dlm", {"block_size": 128}, 79_245_649),
    ],
)
def test_totals(name, changes, total):
    """No length, block or position changes the number of the default setting."""
    assert count_parameters(families()[name].model(**changes)).total == total


@pytest.mark.parametrize(
    ("name", "total", "components"),
    [
        (
            "dit",
            12_351_760,
            {
                "patch_embedding": 4_352,
                "time": 1_312_768,
                "blocks": 6 * 1_838_336,
                "final_norm": 512,
                "head": 4_112,
            },
        ),
        (
            "unet",
            1_837_185,
            {
                "time": 33_024,
                "conv_in": 640,
                "down": 513_664,
                "middle": 624_384,
                "up": 664_768,
                "head": 705,
            },
        ),
        (
            "region",
            128_767_003,
            {
                "embedding": 218_112,
                "time": 787_968,
                "blocks": 12 * 10_628_352,
                "final_norm": 1_536,
                "head": 217_627,
                "tokens": 1_536,
            },
        ),
        (
            "dlm",
            79_245_649,
            {
                "embedding": 25_731_584,
                "sigma_map": 49_408,
                "blocks": 6 * 4_591_616,
                "norm": 512,
                "output": 25_914_449,
            },
        ),
        (
            "pixelhdm",
            356_705_879,
            {
                "patch_embedding": 458_752,
                "pixel_embedding": 64,
                "time": 1_312_768,
                "patch_blocks": 16 * 18_376_705,
                "pixel_blocks": 4 * 15_226_737,
                "output_norm": 16,
                "head": 51,
            },
        ),
    ],
)
def test_components_of_the_default_setting(name, total, components):
    """The published numbers; every component is counted, and apart from them the objective's own
    modules, here the head of alignment.
    """
    family = families()[name]
    count = count_parameters(family.model(), family.objective())
    assert count.components == components and count.total == count.trainable == total
    assert sum(count.training_only.values()) == (7_078_656 if name == "pixelhdm" else 0)


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        (
            "dit",
            {
                "": [(2, 1, 28, 28)],
                "patch_embedding": [(2, 49, 256)],
                "time": [(2, 1024)],
                "blocks.5.attention.qkv": [(2, 49, 768)],
                "head": [(2, 49, 16)],
            },
        ),
        (
            "unet",
            {
                "down1": [(2, 64, 28, 28)],
                "down2": [(2, 128, 14, 14)],
                "middle1": [(2, 128, 7, 7)],
                "middle2": [(2, 128, 7, 7)],
                "up2": [(2, 64, 14, 14)],
                "up1": [(2, 64, 28, 28)],
            },
        ),
        ("region", {"blocks.0": [(2, 901, 768)], "head": [(2, 900, 283)]}),
        ("dlm", {"": [(2, 1024, 50257)]}),
    ],
)
def test_shapes_of_the_default_setting(name, outputs):
    rows = {row.path: row for row in trace_shapes(families()[name].model(), batch_size=2)}
    assert {path: rows[path].outputs for path in outputs} == outputs


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        (
            "region",
            {
                "blocks.0.attention.qkv": 1_771_776,
                "blocks.0.attention.out": 590_592,
                "blocks.0.mlp": 2_362_368 + 2_360_064,
                "blocks.0.adaln": 3_543_552,
            },
        ),
        (
            "dlm",
            {
                "blocks.5.attention": 1_048_576,
                "blocks.5.mlp": 3_145_728,
                "blocks.5.modulation": 396_288,
                "blocks.5.attention_norm": 512,
                "blocks.5.mlp_norm": 512,
                "output.log_scores": 25_781_841,
                "output.modulation": 132_096,
                "output.norm": 512,
            },
        ),
    ],
)
def test_parameters_of_parts(name, parameters):
    rows = {row.path: row for row in trace_shapes(families()[name].model())}
    assert {path: rows[path].parameters for path in parameters} == parameters


def test_rows_come_in_call_order_parents_first_and_nest(small):
    rows = trace_shapes(small(num_classes=10))
    assert rows[0].path == "" and rows[0].depth == 0
    assert rows[0].inputs == [(1, 1, 8, 8), (1,), (1,)]
    assert "Linear" in {row.kind for row in rows}
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
