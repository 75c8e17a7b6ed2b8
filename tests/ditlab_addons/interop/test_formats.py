"""Formats of published weights: equal outputs and gradients, round trips, published counts, specs
from shapes.
"""

import json
import math
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from ditlab.home import Home
from ditlab.weights.files import WeightFiles
from ditlab.weights.published import PublishedWeights, known_formats, outline
from ditlab.weights.rules import read_published
from ditlab_models.families import find_family
from support.damage import refused
from support.models.published_networks import (
    get_forward,
    get_shapes,
    random_weights,
    sedd_forward,
    sedd_shapes,
    sedd_weights,
)

DTYPE = torch.float64
TOLERANCE = 1e-10


def opened(name, tensors):
    no_files = WeightFiles("PATH=weights", (Path("/no/such/weights.pt"),))
    return PublishedWeights(no_files, known_formats()[name], tensors, ())


def imported(name, tensors):
    """Our network with published weights, of the spec that their shapes give."""
    found = opened(name, tensors)
    model = found.model()
    family = find_family(model["family"])
    torch.manual_seed(0)
    network = family.build_network(family.model(**model)).to(DTYPE)
    fit = found.fit(network)
    assert not fit.problems
    network.load_state_dict(fit.values, strict=False)
    return network


def gradients(output, weights):
    generator = torch.Generator().manual_seed(1)
    (output * torch.randn(output.shape, generator=generator, dtype=output.dtype)).sum().backward()
    return {name: each.grad for name, each in weights.items() if each.grad is not None}


def compared_gradients(ours, theirs, network, weights):
    """Check that outputs are equal; return the published gradients and our own by name."""
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE * 10)
    published = gradients(theirs, weights)
    gradients(ours, {})
    return published, {name: each.grad for name, each in network.named_parameters()}


def assert_alike(value, expected):
    """Equal in the scale of the largest."""
    scale = expected.abs().max()
    torch.testing.assert_close(value / scale, expected / scale, rtol=0, atol=20 * TOLERANCE)


def test_sedd_gives_the_published_outputs_and_gradients():
    weights = sedd_weights(23, 32, 2, 4, DTYPE)
    network = imported("sedd", weights)
    x, sigma = (
        torch.randint(23, (3, 10), generator=torch.Generator().manual_seed(2)),
        torch.tensor([0.1, 1.0, 5.0]),
    )
    for name, each in weights.items():
        each.requires_grad_(name != "rotary_emb.inv_freq")
    theirs, ours = sedd_forward(weights, x, sigma.to(DTYPE), 4), network(x, sigma.to(DTYPE))
    published, own = compared_gradients(ours, theirs, network, weights)
    assert len(own) == len(published)
    for name, grad in read_published(known_formats()["sedd"].rules, published, {}).tensors.items():
        torch.testing.assert_close(own[name], grad, rtol=100 * TOLERANCE, atol=100 * TOLERANCE)


def test_get_gives_the_published_outputs_and_gradients():
    weights = random_weights(get_shapes(7, 128, 2), dtype=DTYPE)
    network = imported("get", weights)
    generator = torch.Generator().manual_seed(2)
    x, mask = (
        torch.rand(3, 5, 7, generator=generator, dtype=DTYPE),
        torch.rand(3, 5, generator=generator) < 0.5,
    )
    for each in weights.values():
        each.requires_grad_()
    theirs, ours = get_forward(weights, x, mask, 2), network(x, mask, torch.tensor([0, 3, 999]))
    published, own = compared_gradients(ours, theirs, network, weights)
    for name, ours_name in (
        ("region_embed.embed.weight", "embedding.weight"),
        ("head_mask.bias", "head.bias"),
        ("encoder.blocks.1.attn.qkv.weight", "blocks.1.attention.qkv.weight"),
        ("encoder.blocks.0.mlp.fc1.weight", "blocks.0.mlp.hidden.weight"),
    ):
        assert_alike(own[ours_name], published[name])
    shift, scale, _, mlp_shift, mlp_scale, _ = own["blocks.0.adaln.modulation.bias"].chunk(6)
    for norm, pair in (("norm1", (scale, shift)), ("norm2", (mlp_scale, mlp_shift))):
        for kind, value in zip(("weight", "bias"), pair, strict=True):
            assert_alike(value, published[f"encoder.blocks.0.{norm}.{kind}"])


def count(model):
    return sum(each.numel() for each in outline(model).parameters())


def numbers(shapes):
    return sum(map(math.prod, shapes.values()))


def meta(shapes):
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def test_sizes_of_the_published_networks():
    """SEDD's counts are those of the paper's code: small and medium, uniform graph, 50,257 tokens.
    GET's file has 85,484,059 numbers; ours adds time and modulation, and has no bias of keys to
    leave out."""
    for expected, sizes in ((169_625_681, (768, 12, 12)), (424_474_961, (1024, 24, 16))):
        shapes = sedd_shapes(50_257, *sizes)
        found = opened("sedd", meta(shapes))
        shapes.pop("rotary_emb.inv_freq")
        assert numbers(shapes) == count(found.model()) == expected
        assert found.model()["num_heads"] == sizes[2]
    shapes = get_shapes(283, 768, 12)
    assert numbers(shapes) == 85_484_059
    found = opened("get", meta(shapes))
    assert count(found.model()) == count({"family": "region"}) == 128_767_003


def test_absorbing_networks_are_refused_with_the_reason(tmp_path):
    save_file(sedd_weights(24, 32, 1, 4, torch.float32), tmp_path / "model.safetensors")

    def of_graph(kind):
        config = {"graph": {"type": kind}, "model": {"n_heads": 4, "length": 128}, "tokens": 23}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return PublishedWeights.open(str(tmp_path), "PATH", Home(tmp_path))

    found = of_graph("absorb")
    with refused(r"its 24 tokens have a mask among them, the absorbing graph's"):
        found.model()
    found = of_graph("uniform")
    assert (found.format.name, found.model()["length"]) == ("sedd", 128)
    with refused("50,258 tokens"):
        opened("sedd", meta(sedd_shapes(50_258, 768, 1, 12))).model()


def test_a_fine_tuned_get_lacks_its_heads():
    """The expression head of GET's fine-tuning has no counterpart: 85,267,202 numbers with it."""
    shapes = get_shapes(283, 768, 12)
    lost = ("mask_token", "head_mask")
    tuned = {name: shape for name, shape in shapes.items() if not name.startswith(lost)}
    tuned |= {"head_exp.head.weight": (2, 768), "head_exp.head.bias": (2,)}
    assert numbers(tuned) == 85_267_202
    found = replace(opened("get", {}), tensors=meta(tuned))
    fit = found.fit(outline(found.model()))
    assert fit.missing == ["tokens.mask", "head.weight", "head.bias"] and len(fit.unread) == 2
    assert "does not fit the network in 5 tensors: tokens.mask is missing" in found.refusal(fit)
