"""The published DiT and SiT, and diffusers' DiT: exact counts, equal outputs and gradients with the
same weights.

Counts of the release (facebookresearch/DiT, DiT-XL/2 and so on) hold the fixed table of positions,
a parameter without gradient there and a buffer here: it is added to ours. diffusers' table is a
buffer too, and in neither count.
"""

import re

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.dit.family import FAMILY
from ditlab_models.dit.spec import DiTSpec
from ditlab_models.parameters import count_parameters
from support.models.draws import seeded
from support.models.published_dit import PublishedDiT

PUBLISHED = {
    "num_classes": 1000,
    "patch_size": 2,
    "channels": 4,
    "image_size": 32,
    "adaln": "zero",
    "condition_ratio": 1,
    "time_frequencies": "dit",
    "positions": "column_first",
    "gelu": "tanh",
    "norm_eps": 1e-6,
    "final_norm": "adaln",
    "variance_channels": "predicted",
}
DIFFUSERS = {
    **PUBLISHED,
    "time_frequencies": "diffusers",
    "mlp_norm_eps": 1e-5,
    "embeddings": "per_block",
}
SMALL = {"image_size": 8, "channels": 3, "num_classes": 5, "width": 32, "depth": 3, "num_heads": 4}
SIZES = {"XL": (28, 1152, 16), "L": (24, 1024, 16), "B": (12, 768, 12), "S": (12, 384, 6)}
NAMES = (
    (r"x_embedder\.proj", "patch_embedding.projection"),
    (r"t_embedder\.mlp\.0", "time.hidden"),
    (r"t_embedder\.mlp\.2", "time.out"),
    (r"y_embedder\.embedding_table", "label.vectors"),
    (r"attn\.qkv", "attention.qkv"),
    (r"attn\.proj", "attention.out"),
    (r"mlp\.fc1", "mlp.hidden"),
    (r"mlp\.fc2", "mlp.out"),
    (r"final_layer\.adaLN_modulation\.1", "final_norm.modulation"),
    (r"adaLN_modulation\.1", "adaln.modulation"),
    (r"final_layer\.linear", "head"),
)


def size_of(name: str) -> dict[str, int]:
    return dict(zip(("depth", "width", "num_heads"), SIZES[name], strict=True))


@pytest.mark.parametrize(
    ("name", "image_size", "published"),
    [
        ("XL", 32, 675_129_632),
        ("L", 32, 458_102_816),
        ("B", 32, 130_512_416),
        ("S", 32, 32_963_360),
        ("XL", 64, 676_014_368),
    ],
)
@pytest.mark.parametrize("channels", ["predicted", "unused"])
def test_counts_of_dit_and_sit(name, image_size, published, channels):
    spec = DiTSpec(
        **{**PUBLISHED, "image_size": image_size, "variance_channels": channels}, **size_of(name)
    )
    table = spec.num_rows**2 * spec.width
    assert count_parameters(spec).total + table == published


def test_count_of_diffusers_dit():
    assert count_parameters(DiTSpec(**DIFFUSERS, **size_of("XL"))).total == 749_826_464


def renamed(tensors, names):
    found = {}
    for name, tensor in tensors.items():
        for pattern, ours in names:
            name = re.sub(pattern, ours, name, count=1)
        found[name] = tensor
    return found


def randomised(network, dtype):
    """Every parameter is random: none of the zeros that a trained network would have left
    behind.
    """
    generator = seeded(3)
    network = network.to(dtype)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.copy_(
                    0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                )
    return network


def inputs(dtype):
    x = torch.randn(4, 3, 8, 8, generator=seeded(4), dtype=torch.float64).to(dtype)
    return x, torch.tensor([0, 1, 500, 999]), torch.tensor([0, 4, 5, 2])  # 5 is the null class


def gradients(network, output):
    """Gradients of a fixed linear functional of the output, by parameter name."""
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    parameters = {name: each for name, each in network.named_parameters() if each.requires_grad}
    found = torch.autograd.grad((weights * output).sum(), list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def check_equal(ours, theirs, tolerance):
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        scale = max(1.0, float(theirs[name].detach().abs().max()))
        assert_close(
            tensor, theirs[name], rtol=0, atol=tolerance * scale, msg=lambda m, n=name: n + m
        )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("channels", ["predicted", "unused"])
def test_equals_a_plain_script_of_the_published_network(dtype, tolerance, channels):
    keeps_sigma = channels == "predicted"
    theirs = randomised(PublishedDiT(8, 2, 3, 32, 3, 4, 5, keeps_sigma), dtype)
    ours = FAMILY.build_network(
        DiTSpec(**{**PUBLISHED, **SMALL, "variance_channels": channels})
    ).to(dtype)
    weights = renamed(theirs.state_dict(), NAMES)
    table = weights.pop("pos_embed")[0]
    assert_close(ours.positions.values(torch.float32), table.float(), rtol=0, atol=1e-6)
    theirs.pos_embed.data = ours.positions.values(dtype)[None]  # the release rounds it to float32
    ours.load_state_dict(weights)
    x, t, label = inputs(dtype)
    expected, found = theirs(x, t, label), ours(x, t, label)
    assert found.shape == (4, 6 if keeps_sigma else 3, 8, 8)
    check_equal({"output": found}, {"output": expected}, tolerance)
    check_equal(gradients(ours, found), renamed(gradients(theirs, expected), NAMES), tolerance)


def from_diffusers(tensors):
    """Our names; q, k and v one below the other; block 0's embedding is the shared one. Of weights
    or of gradients.
    """
    found = {}
    for name, tensor in tensors.items():
        name = name.replace("transformer_blocks.", "blocks.")
        name = re.sub(r"blocks\.0\.norm1\.emb\.", "", name)
        name = re.sub(
            r"blocks\.(\d+)\.norm1\.emb\.",
            lambda number: f"block_embeddings.{int(number[1]) - 1}.",
            name,
        )
        for theirs, ours in (
            ("pos_embed.proj", "patch_embedding.projection"),
            ("timestep_embedder.linear_1", "time.hidden"),
            ("timestep_embedder.linear_2", "time.out"),
            ("class_embedder.embedding_table", "label.vectors"),
            ("norm1.linear", "adaln.modulation"),
            ("attn1.to_out.0", "attention.out"),
            ("ff.net.0.proj", "mlp.hidden"),
            ("ff.net.2", "mlp.out"),
            ("proj_out_1", "final_norm.modulation"),
            ("proj_out_2", "head"),
        ):
            name = name.replace(theirs, ours)
        found[name] = tensor
    for name in [each for each in found if ".attn1.to_q." in each]:
        parts = [found.pop(name.replace("to_q", each)) for each in ("to_q", "to_k", "to_v")]
        found[name.replace("attn1.to_q", "attention.qkv")] = torch.cat(parts)
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_equals_diffusers_dit(dtype, tolerance, monkeypatch):
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=3,
        out_channels=6,
        num_layers=3,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=5,
        attention_bias=True,
    ).eval()
    theirs = randomised(theirs, dtype)
    ours = FAMILY.build_network(DiTSpec(**{**DIFFUSERS, **SMALL})).to(dtype)
    ours.load_state_dict(from_diffusers(dict(theirs.named_parameters())))
    x, t, label = inputs(dtype)
    # The peer computes both tables in float32, whatever the dtype: close to ours, and then replaced
    # by ours.
    assert_close(
        theirs.pos_embed.pos_embed[0].float(),
        ours.positions.values(torch.float32),
        rtol=0,
        atol=1e-6,
    )
    theirs.pos_embed.pos_embed = ours.positions.values(dtype)[None]
    first = theirs.transformer_blocks[0].norm1.emb.time_proj
    assert_close(first(t).double(), ours.time.sinusoid(t).double(), rtol=0, atol=2e-4)
    monkeypatch.setattr(type(first), "forward", lambda self, timestep: ours.time.sinusoid(timestep))
    expected, found = theirs(x, t, label).sample, ours(x, t, label)
    check_equal({"output": found}, {"output": expected}, tolerance)
    check_equal(gradients(ours, found), from_diffusers(gradients(theirs, expected)), tolerance)


def test_initial_weights_as_published():
    """Glorot's uniform weights, biases 0, 0.02 in the embedding of time; blocks and head give 0 at
    first.
    """
    spec = {**PUBLISHED, **SMALL, "width": 128}
    network = FAMILY.build_network(DiTSpec(**spec, initial_weights="dit"))
    std = {
        name: float(each.detach().std())
        for name, each in network.named_parameters()
        if name.endswith("weight")
    }
    qkv, patch = (2 / (128 + 3 * 128)) ** 0.5, (2 / (3 * 4 + 128)) ** 0.5
    assert std["blocks.1.attention.qkv.weight"] == pytest.approx(qkv, rel=0.03)
    assert std["patch_embedding.projection.weight"] == pytest.approx(patch, rel=0.05)
    assert std["time.hidden.weight"] == pytest.approx(0.02, rel=0.03)
    for name, parameter in network.named_parameters():
        if name.endswith("bias") or "modulation" in name or name.startswith("head"):
            assert not parameter.any(), name
    assert not network(torch.randn(2, 3, 8, 8), torch.zeros(2), torch.tensor([0, 1])).any()
