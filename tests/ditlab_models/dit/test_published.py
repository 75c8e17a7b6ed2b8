"""The published DiT and SiT, and diffusers' DiT: exact counts, equal tables of positions and times,
initial weights. That outputs and gradients are equal with the same weights, the tests of their
formats check (interop).

Counts of the release (facebookresearch/DiT, DiT-XL/2 and so on) hold the fixed table of positions,
a parameter without gradient there and a buffer here: it is added to ours. diffusers' table is a
buffer too, and in neither count.
"""

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.dit.family import FAMILY
from ditlab_models.dit.spec import DiTSpec
from ditlab_models.parameters import count_parameters
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
SIZES = {
    "XL": {"depth": 28, "width": 1152, "num_heads": 16},
    "L": {"depth": 24, "width": 1024, "num_heads": 16},
    "B": {"depth": 12, "width": 768, "num_heads": 12},
    "S": {"depth": 12, "width": 384, "num_heads": 6},
}


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
        **{**PUBLISHED, "image_size": image_size, "variance_channels": channels}, **SIZES[name]
    )
    table = spec.num_rows**2 * spec.width
    assert count_parameters(spec).total + table == published


def test_count_of_diffusers_dit():
    assert count_parameters(DiTSpec(**DIFFUSERS, **SIZES["XL"])).total == 749_826_464


def test_tables_are_those_of_the_release_and_of_diffusers():
    """Names of those that compute theirs in float32."""
    ours = FAMILY.build_network(DiTSpec(**{**PUBLISHED, **SMALL}))
    theirs = PublishedDiT(8, 2, 3, 32, 3, 4, 5)
    assert_close(ours.positions.values(torch.float32), theirs.pos_embed[0], rtol=0, atol=1e-6)
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=3,
        out_channels=6,
        num_layers=1,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=5,
    )
    ours = FAMILY.build_network(DiTSpec(**{**DIFFUSERS, **SMALL}))
    table = theirs.pos_embed.pos_embed[0]
    assert_close(ours.positions.values(torch.float32), table, rtol=0, atol=1e-6)
    t = torch.tensor([0, 1, 500, 999])
    times = theirs.transformer_blocks[0].norm1.emb.time_proj(t)
    assert_close(ours.time.sinusoid(t), times, rtol=0, atol=2e-4)


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
