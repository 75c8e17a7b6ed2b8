"""The layouts of DiT, SiT and diffusers' DiT: equal outputs and gradients, round trips, specs from
shapes.
"""

import json

import pytest
import torch
from safetensors.torch import save_file

from ditlab.home import Home
from ditlab.weights.initial import InitialWeights
from ditlab.weights.published import PublishedWeights, outline
from ditlab.weights.rules import read_published
from ditlab_models.families import find_family
from support.damage import refused
from support.models.published_dit import PublishedDiT

DTYPE = torch.float64
TOLERANCE = 1e-10


def randomised(network):
    generator = torch.Generator().manual_seed(3)
    for parameter in network.to(DTYPE).parameters():
        if parameter.requires_grad:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator, dtype=DTYPE)
    return network


def inputs():
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(4), dtype=DTYPE)
    return x, torch.tensor([0, 4, 5, 2])  # 5 is the null class


def imported(folder, format):
    """Our network with the weights of a folder, of the spec that they give."""
    found = PublishedWeights.open(str(folder), "PATH", Home(folder), format)
    family = find_family("dit")
    network = family.build_network(family.model(**found.model())).to(DTYPE)
    fit = found.fit(network)
    assert not fit.problems
    network.load_state_dict(fit.values)
    return found, network


def check_equal(found, ours, output, theirs, expected):
    atol = TOLERANCE * max(1, float(expected.detach().abs().max()))
    torch.testing.assert_close(output, expected, rtol=0, atol=atol)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    (weights * output).sum().backward()
    (weights * expected).sum().backward()
    # every rule is a rename, a join or a reflection: gradients go the way of weights
    published = {name: each.grad for name, each in theirs.named_parameters() if each.requires_grad}
    shapes = {name: tuple(each.shape) for name, each in ours.named_parameters()}
    read = read_published(found.format.rules, published, shapes).tensors
    for name, parameter in ours.named_parameters():
        largest = max(1.0, float(parameter.grad.abs().max()))
        torch.testing.assert_close(
            read[name].to(output) / largest, parameter.grad / largest, rtol=0, atol=2 * TOLERANCE
        )


@pytest.mark.parametrize("format", ["dit", "sit"])
def test_releases_give_their_outputs_and_gradients(tmp_path, format):
    """SiT's time and velocity run the other way: ours is minus theirs at 1 - t."""
    theirs = randomised(PublishedDiT(8, 2, 3, 32, 3, 4, 5, format == "dit"))
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"num_heads": 4}')
    found, ours = imported(tmp_path, "auto" if format == "dit" else "sit")
    assert found.format.name == format and outline(found.model()).spec == ours.spec
    theirs.pos_embed.data = ours.positions.values(DTYPE)[None]  # the release rounds it to float32
    x, label = inputs()
    if format == "dit":
        t = torch.tensor([0, 1, 500, 999])
        output, expected = ours(x, t, label), theirs(x, t, label)
    else:
        t = torch.tensor([0.0, 0.25, 0.6, 1.0], dtype=DTYPE)
        output, expected = ours(x, t, label), -theirs(x, 1 - t, label)
    check_equal(found, ours, output, theirs, expected)
    assert any(
        "--format sit" in note for note in found.format.notes(found.model(), found.files)
    ) == (format == "dit")


def test_a_flow_does_not_begin_from_weights_read_as_dit(tmp_path):
    """A SiT's file without its format: names and shapes fit, and the outputs would be others."""
    save_file(PublishedDiT(8, 2, 3, 32, 1, 4, 5).state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"num_heads": 4}')
    own = PublishedWeights.open(str(tmp_path), "PATH", Home(tmp_path), "sit").model()

    def check(format):
        init = {"from": str(tmp_path), "format": format}
        family = find_family("dit")
        model = family.model.model_validate({**own, "init": init})
        return InitialWeights(model, Home(tmp_path), {}).check(family.build_network(model))

    with refused(r"trained with model\.variance_channels='predicted'"):
        check("auto")
    assert check("sit").startswith("begins from sit weights")


def test_diffusers_network_gives_its_outputs_and_gradients(tmp_path, monkeypatch):
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
        norm_eps=1e-4,
    ).eval()
    randomised(theirs).save_pretrained(tmp_path)
    found, ours = imported(tmp_path, "auto")
    assert found.format.name == "diffusers_dit" and ours.spec.mlp_norm_eps == 1e-4
    # The peer computes both tables in float32, whatever the dtype; that they are ours, the dit
    # family's tests check.
    theirs.pos_embed.pos_embed = ours.positions.values(DTYPE)[None]
    first = theirs.transformer_blocks[0].norm1.emb.time_proj
    monkeypatch.setattr(type(first), "forward", lambda self, timestep: ours.time.sinusoid(timestep))
    x, label = inputs()
    t = torch.tensor([0, 1, 500, 999])
    check_equal(found, ours, ours(x, t, label), theirs, theirs(x, t, label).sample)
    config = json.loads((tmp_path / "config.json").read_text())
    for name, value, message in (
        ("activation_fn", "geglu", "=geglu, and the dit family has gelu-approximate alone"),
        ("sample_size", None, "does not give sample_size, which no shape shows"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | {name: value}))
        with refused(message):
            PublishedWeights.open(str(tmp_path), "PATH", Home(tmp_path)).model()


def test_sizes_of_the_release(tmp_path):
    """675,129,632 numbers of DiT-XL/2 at 256 px, its table of positions among them; 16 heads of
    72.
    """
    theirs = PublishedDiT(8, 2, 4, 32, 1, 4, 5)
    with torch.device("meta"):
        large = PublishedDiT(32, 2, 4, 1152, 28, 16, 1000)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    found = PublishedWeights.open(str(tmp_path), "PATH", Home(tmp_path))
    with refused(r"tokens are 32 wide, as in no released size .* put a file config\.json"):
        found.model()
    tensors = {name: each.to("meta") for name, each in large.state_dict().items()}
    assert sum(each.numel() for each in tensors.values()) == 675_129_632
    model = PublishedWeights(found.files, found.format, tensors, ()).model()
    assert model["num_heads"] == 16 and model["image_size"] == 32
    assert sum(each.numel() for each in outline(model).parameters()) == 674_834_720
