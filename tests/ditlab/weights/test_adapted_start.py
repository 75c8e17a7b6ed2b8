"""LoRA on published weights under the defaults: each format, an exact resume, merged and peft
exports.
"""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import ditlab
from ditlab.home import Home
from ditlab.weights.initial import InitialWeights
from ditlab_addons.interop.commands import inspect_weights
from ditlab_models.families import find_family
from ditlab_models.finetuning import LoRA, fine_tune
from support.models.published_dit import PublishedDiT
from support.models.published_networks import get_shapes, random_weights, sedd_weights
from support.trainings.forks import small

LORA = {"rank": 2, "alpha": 4.0, "targets": ["*.attention", "*.mlp"]}
PUBLISHED = {
    "dit": lambda: PublishedDiT(8, 2, 3, 384, 1, 6, 5).state_dict(),
    "sedd": lambda: sedd_weights(23, 64, 1, 1, torch.float32),
    "get": lambda: random_weights(get_shapes(5, 64, 1), dtype=torch.float32),
}


@pytest.mark.parametrize("format", PUBLISHED)
def test_adapters_are_no_part_of_what_is_loaded(tmp_path, format):
    torch.save(PUBLISHED[format](), tmp_path / "weights.pt")
    found = inspect_weights(str(tmp_path / "weights.pt"), Home(tmp_path), "auto")
    assert found.weights.format.name == format
    family = find_family(found.model["family"])
    model = family.model.model_validate({**found.model, "init": {"from": found.place}})
    network = family.build_network(model)
    fine_tune(network, None, SimpleNamespace(freeze=None, lora=LoRA(**LORA)), len)
    line = InitialWeights(model, Home(tmp_path), {}).check(network)
    assert "do not fit" not in line
    InitialWeights(model, Home(tmp_path), {}).load(network)
    state = network.state_dict()
    assert any("lora_A" in name for name in state)
    for name, value in found.fit.values.items():
        assert torch.equal(state[name], value.to(state[name].dtype))


def test_adapted_published_weights_resume_exactly_and_are_exported(tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    base = ditlab.train(small(name="base", training={"steps": 2}), local=True, warn=print)
    place = tmp_path / "published"
    start = load_file(ditlab.open_run(base.run_id).export(place).files[0])

    def trained(name, steps, **options):
        training = {"steps": steps, "lora": LORA, "ema": {"decay": 0.9}}
        optimizer = {"lr": 1e-2}
        init = {"from": str(place)}
        spec = small(name=name, training=training, optimizer=optimizer, model__init=init)
        return ditlab.train(spec, local=True, warn=print, **options).run_id

    whole = trained("whole", 4)
    half = trained("half", 2)
    trained("half", 4, resume=half)
    merged = [
        load_file(ditlab.open_run(run).export(tmp_path / run).files[0]) for run in (whole, half)
    ]
    for name, value in merged[0].items():
        assert torch.equal(value, merged[1][name])
    changed = {name for name, value in merged[0].items() if not torch.equal(value, start[name])}
    layers = ("attention.out", "attention.qkv", "mlp.hidden", "mlp.out")
    assert changed == {f"blocks.{n}.{name}.weight" for n in (0, 1) for name in layers}
    adapter = ditlab.open_run(whole).export(tmp_path / "peft", format="peft").files[0]
    assert {name.split(".")[-3] for name in load_file(adapter)} == {"qkv", "out", "hidden"}
