"""Published weights that do not hold what they seem to: each is one sentence, whatever a file has
been changed to.
"""

import json
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab.weights.initial import InitialWeights
from ditlab_addons.interop.commands import inspect_weights
from ditlab_models.families import find_family
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
        (changed(dit, pos_embed=torch.zeros_like), HEADS, TABLE),
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
    with pytest.raises(AssertionError, match=said):
        assert not found.fit.problems, "; ".join(found.fit.problems)
    model = find_family(found.model["family"]).model.model_validate(
        {**found.model, "init": {"from": found.place}}
    )
    network = find_family(found.model["family"]).build_network(model)
    with pytest.raises(UserError, match=said):
        InitialWeights(model, Home(tmp_path), {}).load(network)
    loose = model.model_copy(update={"init": model.init.model_copy(update={"strict": False})})
    before = {name: each.clone() for name, each in network.state_dict().items()}
    InitialWeights(loose, Home(tmp_path), {}).load(network)
    after = network.state_dict()
    assert all(bool(each.isfinite().all()) for each in after.values())
    assert any(not torch.equal(before[name], after[name]) for name in before)


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
        (
            {name: each for name, each in sedd().items() if "inv_freq" not in name},
            {**SEDD, "model": {"n_heads": "4"}},
            r"model\.n_heads=4 of its config\.json divides no tokens",
        ),
        (dit(), {"num_heads": 0}, "num_heads"),
        (dit(), {"num_heads": [4]}, "num_heads"),
    ],
)
def test_shapes_and_configurations_give_a_network_or_a_sentence(tmp_path, tensors, config, said):
    if not said:
        assert not inspected(tmp_path, tensors, config).fit.problems
        return
    with pytest.raises(UserError, match=said) as caught:
        inspected(tmp_path, tensors, config)
    assert "\n" not in str(caught.value)


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
    "one more": lambda x: torch.cat([x, x[:1]]) if x.dim() else x,
    "turned": lambda x: x.transpose(0, -1).contiguous() if x.dim() else x,
    "NaN": lambda x: x * torch.nan,
    "int": lambda x: x.int(),
    "bool": lambda x: x.bool(),
    "complex": lambda x: x.to(torch.complex64),
    "half precision": lambda x: x.half(),
    "float64": lambda x: x.double(),
    "a number": lambda x: 3,
    "a list": lambda x: [x, x],
    "nested": lambda x: {"weight": x},
    "gone": None,
}
VALUES = st.sampled_from([0, -1, 10**12, 1.5, "4", None, [], {}, True])


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_change_of_a_file_is_a_right_load_or_one_sentence(tmp_path, data):
    name = data.draw(st.sampled_from(sorted(FORMATS)))
    make, config, format = FORMATS[name]
    folder = folder_of(name, tmp_path)
    tensors = make()
    for _ in range(data.draw(st.integers(1, 2))):
        name = data.draw(st.sampled_from(sorted(tensors)))
        change = CHANGES[data.draw(st.sampled_from(sorted(CHANGES)))]
        if change is None:
            del tensors[name]
        elif isinstance(tensors[name], torch.Tensor):
            tensors[name] = change(tensors[name])
    tensors = data.draw(
        st.sampled_from([tensors, {"model": tensors}, {"ema": tensors, "model": make()}])
    )
    if config and data.draw(st.booleans()):
        config = {**config, data.draw(st.sampled_from([*sorted(config), "x"])): data.draw(VALUES)}
    began = time.perf_counter()
    try:
        found = inspected(folder, tensors, config, format)
        if found.fit.problems:
            return
        family = find_family(found.model["family"])
        init = {"from": found.place, "format": format}
        model = family.model.model_validate({**found.model, "init": init})
        network = family.build_network(model)
        InitialWeights(model, Home(tmp_path), {}).load(network)
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
        return
    finally:
        assert time.perf_counter() - began < 30
    state = network.state_dict()
    for name, value in found.fit.values.items():
        assert torch.equal(state[name], value.to(state[name].dtype))


def test_index_and_shards_are_compared(tmp_path):
    tensors = get()
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[:5]}, tmp_path / "1.safetensors")
    save_file({name: tensors[name] for name in names[5:]}, tmp_path / "2.safetensors")
    index = {name: "1.safetensors" if name in names[:5] else "2.safetensors" for name in names}
    place = tmp_path / "model.safetensors.index.json"
    place.write_text(json.dumps({"weight_map": index}))
    torch.save(tensors, tmp_path / "weights.bin")
    found = inspect_weights(str(tmp_path), Home(tmp_path / "home"), "auto")
    assert not found.fit.problems
    [choice] = found.to_dict()["choices"]
    assert choice["taken"] == "its model.safetensors.index.json"
    assert choice["skipped"] == ["weights.bin"]
    place.write_text(json.dumps({"weight_map": {**index, "more": "2.safetensors"}}))
    with pytest.raises(UserError, match=r"its index lists 1 tensors that its files lack \(more\)"):
        inspect_weights(str(tmp_path), Home(tmp_path / "home"), "auto")
    place.write_text(json.dumps({"weight_map": index}))
    other = {names[4]: tensors[names[4]] + 1, "left": torch.zeros(1)}
    save_file({name: tensors[name] for name in names[5:]} | other, tmp_path / "2.safetensors")
    found = inspect_weights(str(tmp_path), Home(tmp_path / "home"), "auto")
    assert torch.equal(found.weights.tensors[names[4]], tensors[names[4]])
    skipped = found.to_dict()["choices"][1]["skipped"]
    assert skipped == sorted(f"{name} of 2.safetensors" for name in other)
