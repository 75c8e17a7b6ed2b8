"""Published weights that do not hold what they seem to: each is one sentence, whatever a file has
been changed to.
"""

import json
import random
import re

import pytest
import torch
from safetensors.torch import save_file

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab.weights.initial import InitialWeights
from ditlab_addons.interop.commands import inspect_weights
from ditlab_models.families import find_family
from support.damage import refused
from support.models.published_dit import PublishedDiT
from support.models.published_networks import get_shapes, random_weights, sedd_weights
from support.trainings.workers import TINY, tiny

HEADS = {"num_heads": 4}
SEDD = {"graph": {"type": "uniform"}, "model": {"n_heads": 4, "length": 16}}


def dit():
    torch.manual_seed(0)
    return {
        name: each.clone() for name, each in PublishedDiT(8, 2, 3, 32, 1, 4, 5).state_dict().items()
    }


def sedd():
    return sedd_weights(37, 32, 1, 4, torch.float32)


def get():
    return random_weights(get_shapes(5, 64, 1), dtype=torch.float32)


def diffusers_dit():
    block = "transformer_blocks.0"
    layers = {
        "pos_embed.proj": (32, 3, 2, 2),
        f"{block}.norm1.emb.timestep_embedder.linear_1": (32, 256),
        f"{block}.norm1.emb.timestep_embedder.linear_2": (32, 32),
        f"{block}.norm1.linear": (192, 32),
        **{f"{block}.attn1.to_{part}": (32, 32) for part in ("q", "k", "v", "out.0")},
        f"{block}.ff.net.0.proj": (128, 32),
        f"{block}.ff.net.2": (32, 128),
        "proj_out_1": (64, 32),
        "proj_out_2": (24, 32),
    }
    shapes = {f"{name}.weight": shape for name, shape in layers.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in layers.items()}
    shapes[f"{block}.norm1.emb.class_embedder.embedding_table.weight"] = (6, 32)
    return random_weights(shapes, dtype=torch.float32)


def export():
    spec = tiny()
    torch.manual_seed(0)
    return spec.family.build_network(spec.model).state_dict()


FORMATS = {
    "dit": (dit, HEADS, "auto"),
    "sit": (dit, HEADS, "sit"),
    "sedd": (sedd, SEDD, "auto"),
    "get": (get, {}, "auto"),
    "diffusers_dit": (diffusers_dit, {"num_attention_heads": 4, "sample_size": 8}, "auto"),
    "export": (export, {}, "auto"),
}
"""Tensors, config.json, and the format that is asked for."""


def inspected(folder, tensors, config, format="auto"):
    torch.save(tensors, folder / "weights.pt")
    (folder / "config.json").write_text(json.dumps(config))
    return inspect_weights(str(folder / "weights.pt"), Home(folder / "home"), format)


def folder_of(name, folder):
    folder = folder / name
    folder.mkdir(exist_ok=True)
    if name == "export":
        (folder / "spec.yaml").write_text(dump_yaml(TINY))
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_whole_files_of_every_format_fit(tmp_path, name):
    make, config, format = FORMATS[name]
    found = inspected(folder_of(name, tmp_path), make(), config, format)
    assert found.weights.format.name == name and not found.fit.problems


def swapped(table):
    side = int(table.shape[1] ** 0.5)
    return table.unflatten(1, (side, side)).transpose(1, 2).flatten(1, 2).contiguous()


def changed(make, **changes):
    tensors = make()
    for name, change in changes.items():
        [key] = [each for each in tensors if each.replace(".", "_").endswith(name)]
        tensors[key] = change(tensors[key])
    return tensors


TABLE = r"pos_embed differs by up to \S+ from the table that the network computes"


@pytest.mark.parametrize(
    ("tensors", "config", "said"),
    [
        (changed(dit, pos_embed=swapped), HEADS, TABLE),
        (changed(dit, pos_embed=lambda x: x * torch.nan), HEADS, TABLE),
        (changed(dit, pos_embed=lambda x: x + 0.02 * torch.randn(x.shape)), HEADS, TABLE),
        (changed(dit, pos_embed=lambda x: x[:, :15]), HEADS, "the tokens are no square"),
        (changed(sedd, inv_freq=lambda x: x * 2), SEDD, r"inv_freq differs by up to 1 from"),
        (
            changed(dit, qkv_bias=lambda x: x.index_fill(0, torch.arange(3), torch.inf)),
            HEADS,
            r"qkv\.bias has 3 of 96 numbers that are NaN or infinite in float32",
        ),
        (
            changed(dit, qkv_bias=lambda x: x.double() + 1e300),
            HEADS,
            r"qkv\.bias has 96 of 96 numbers that are NaN or infinite in float32",
        ),
        (
            changed(dit, qkv_weight=lambda x: (127 * x).to(torch.int8)),
            HEADS,
            "has numbers of int8, the network's are float32",
        ),
        (changed(get, norm1_weight=lambda x: x[None]), {}, "cannot become blocks.0.adaln.mod"),
        (
            changed(get, attn_q_bias=lambda x: x[:, None]),
            {},
            "cannot become blocks.0.attention.qkv",
        ),
    ],
)
def test_tensors_are_compared_with_what_is_known(tmp_path, tensors, config, said):
    found = inspected(tmp_path, tensors, config)
    assert re.search(said, "; ".join(found.fit.problems))
    model = find_family(found.model["family"]).model.model_validate(
        {**found.model, "init": {"from": found.place}}
    )
    network = find_family(found.model["family"]).build_network(model)
    with refused(said):
        InitialWeights(model, Home(tmp_path), {}).load(network)
    loose = model.model_copy(update={"init": model.init.model_copy(update={"strict": False})})
    InitialWeights(loose, Home(tmp_path), {}).load(network)
    assert all(bool(each.isfinite().all()) for each in network.state_dict().values())


@pytest.mark.parametrize(
    ("tensors", "config", "said"),
    [
        (changed(dit, x_embedder_proj_weight=lambda x: x[0]), HEADS, "and 4 axes are needed"),
        (sedd(), {**SEDD, "model": {"n_heads": 0}}, ""),
        (
            {name: each for name, each in sedd().items() if "inv_freq" not in name},
            {**SEDD, "model": {"n_heads": 0}},
            r"model\.n_heads=0 of its config\.json divides no tokens",
        ),
        (dit(), {"num_heads": 0}, "num_heads"),
        (dit(), {"num_heads": [4]}, "num_heads"),
    ],
)
def test_shapes_and_configurations_give_a_network_or_a_sentence(tmp_path, tensors, config, said):
    if not said:
        assert not inspected(tmp_path, tensors, config).fit.problems
        return
    with refused(said):
        inspected(tmp_path, tensors, config)


def test_what_nothing_says_of_a_graph_is_noted(tmp_path):
    [note] = [each for each in inspected(tmp_path, sedd(), {}).notes if "graph" in each]
    assert "the uniform one is taken for 37 tokens" in note and '"absorb"' in note
    assert not any("graph" in each for each in inspected(tmp_path, sedd(), SEDD).notes)


def test_numbers_that_float32_rounds_are_said(tmp_path):
    rounded = changed(dit, qkv_bias=lambda x: x.double() + 1e-12)
    found = inspected(tmp_path, rounded, HEADS)
    assert not found.fit.problems
    assert "1 tensors have float64 numbers that float32 rounds." in found.notes


CHANGES = {
    "an axis more": lambda x: x[None],
    "an axis less": lambda x: x[0] if x.dim() else x,
    "no numbers": lambda x: x[:0] if x.dim() else x,
    "half": lambda x: x[: max(1, len(x) // 2)] if x.dim() else x,
    "turned": lambda x: x.transpose(0, -1).contiguous() if x.dim() else x,
    "NaN": lambda x: x * torch.nan,
    "int": lambda x: x.int(),
    "complex": lambda x: x.to(torch.complex64),
    "half precision": lambda x: x.half(),
    "float64": lambda x: x.double(),
    "a number": lambda x: 3,
    "a list": lambda x: [x, x],
    "nested": lambda x: {"weight": x},
    "gone": None,
}
VALUES = [0, -1, 10**12, 1.5, "4", None, [], {}, True]


@pytest.mark.parametrize("name", FORMATS)
def test_any_change_of_a_file_is_a_right_load_or_one_sentence(tmp_path, name):
    make, config, format = FORMATS[name]
    folder = folder_of(name, tmp_path)
    draw = random.Random(name)
    for change in CHANGES.values():
        tensors = make()
        key = draw.choice(sorted(tensors))
        if change is None:
            del tensors[key]
        else:
            tensors[key] = change(tensors[key])
        content = draw.choice([tensors, {"model": tensors}, {"ema": tensors, "model": make()}])
        given = dict(config)
        if draw.random() < 0.5:
            given[draw.choice([*config, "x"])] = draw.choice(VALUES)
        try:
            found = inspected(folder, content, given, format)
            if found.fit.problems:
                continue
            family = find_family(found.model["family"])
            init = {"from": found.place, "format": format}
            model = family.model.model_validate({**found.model, "init": init})
            network = family.build_network(model)
            InitialWeights(model, Home(tmp_path), {}).load(network)
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000
            continue
        state = network.state_dict()
        for each, value in found.fit.values.items():
            assert torch.equal(state[each], value.to(state[each].dtype))


def test_index_and_shards_are_compared(tmp_path):

    def look(**more):
        text = json.dumps({"weight_map": {**index, **more}})
        (tmp_path / "model.safetensors.index.json").write_text(text)
        return inspect_weights(str(tmp_path), Home(tmp_path / "home"), "auto")

    tensors = get()
    names = sorted(tensors)
    first = {name: tensors[name] for name in names[:5]}
    second = {name: tensors[name] for name in names[5:]}
    save_file(first, tmp_path / "1.safetensors")
    save_file(second, tmp_path / "2.safetensors")
    index = dict.fromkeys(first, "1.safetensors") | dict.fromkeys(second, "2.safetensors")
    torch.save(tensors, tmp_path / "weights.bin")
    found = look()
    assert not found.fit.problems
    [choice] = found.to_dict()["choices"]
    assert choice["taken"] == "its model.safetensors.index.json"
    assert choice["skipped"] == ["weights.bin"]
    with refused(r"its index lists 1 tensors that its files lack \(more\)"):
        look(more="2.safetensors")
    other = {names[4]: tensors[names[4]] + 1, "left": torch.zeros(1)}
    save_file(second | other, tmp_path / "2.safetensors")
    found = look()
    assert torch.equal(found.weights.tensors[names[4]], tensors[names[4]])
    skipped = found.to_dict()["choices"][1]["skipped"]
    assert skipped == sorted(f"{name} of 2.safetensors" for name in other)
