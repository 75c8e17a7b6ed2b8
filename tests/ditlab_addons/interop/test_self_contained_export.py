"""Exports that need no DiTLab: equal samples without it, equal bytes, folders that are read back,
refusals.
"""

import json
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import ditlab
from ditlab.data.text.tokenizer import ByteTokenizer
from ditlab.home import Home
from ditlab.weights.initial import InitialWeights
from ditlab_addons.interop.self_contained.code import TrainedSettings, torch_module
from ditlab_addons.interop.self_contained_export import CardFacts, write_self_contained
from ditlab_models.contract import WeightsInit
from ditlab_models.families import find_family
from support.command import run_inside
from support.damage import refused
from support.devices.variants import variants
from support.marks import slow
from support.trainings.family_specs import smallest
from support.trainings.workers import tiny

DATA = {"name": "d", "fingerprint": "f00", "classes": {"label": ["circle", "square"]}}
FACTS = CardFacts("abcd1234", "tiny", "weights as trained", DATA, {"eval/x": (3, 0.5)})
SLOW = pytest.mark.slow
FIXED = {"process": "gaussian", "variance": "beta", "weights": {"bound": 0.0}}
CHANGES = {
    "dit": {"sampling": {"steps": 3, "guidance": 2.0, "solver": "heun"}},
    "unet": {"objective": FIXED, "sampling": {"solver": "ddpm", "steps": 3}},
    "pixelhdm": {"sampling__prompts": ["a", "bc"]},
}
WITHOUT_DITLAB = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("ditlab", "ditlab_models"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
import torch
from safetensors.torch import load_file
"""


class Made:
    """A network of random weights, and the experiment that describes it."""

    def __init__(self, name):
        self.experiment = smallest(name, seed=5, **CHANGES.get(name, {}))
        found = find_family(name)
        torch.manual_seed(1)
        network = found.build_network(self.experiment.model).eval()
        generator = torch.Generator().manual_seed(3)
        for parameter in network.parameters():
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
        self.network, self.family, self.is_text = network, found, name == "dlm"
        self.manifest = SimpleNamespace(spec=self.experiment.to_dict(), step=7)

    def write(self, form, folder):
        tensors = {name: each.detach() for name, each in self.network.state_dict().items()}
        tokenizer = folder.parent / "tokenizer.json"
        tokenizer.write_bytes(ByteTokenizer().content)
        return write_self_contained(
            form, self.manifest, tensors, folder, FACTS, tokenizer if self.is_text else None
        )

    def sample(self, folder, **options):
        """Draw as `ditlab sample` does, from an export."""
        return ditlab.load_export(folder, warn=print).sample(**options).values


def run_blocked(code, cwd):
    """Run code in a process in which neither ditlab nor the installed ditlab_models can be
    imported; return the tensors that it saved.
    """
    environment = {
        "PATH": "/usr/bin:/bin",
        "HF_HOME": str(cwd / "hub"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-c", WITHOUT_DITLAB + code]
    options = {"capture_output": True, "text": True, "check": False}
    done = subprocess.run(command, cwd=cwd, env=environment, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(cwd / "found.safetensors")


def close(found, expected):
    assert expected.isfinite().all()
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found.double() / scale, expected.double() / scale, rtol=0, atol=1e-5)


PROMPTS = {"pixelhdm": {"prompts": ["a", "bc"]}, "dlm": {"prompts": ["ab"]}}


def check_draws(made, folder, work, code):
    """Code without DiTLab draws the samples of an export: from its own seed, and from given noise;
    `NUM` and `PROMPTS` in it are those of the family.
    """
    prompts = PROMPTS.get(made.experiment.model.family, {})
    num = 2 if prompts else 4
    first = made.sample(folder, num=num, **prompts)
    noise = torch.randint(0, 256, first.shape) if made.is_text else torch.randn(first.shape)
    save_file({"noise": noise}, work / "noise.safetensors")
    found = run_blocked(code.replace("NUM", f"{num}").replace("PROMPTS", f"**{prompts}"), work)
    close(found["seeded"], first)
    close(found["given"], made.sample(folder, num=num, noise=noise, **prompts))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["dit", *(pytest.param(name, marks=SLOW) for name in ("unet", "dlm", "pixelhdm"))]
)
def test_a_torch_folder_draws_the_same_without_ditlab(tmp_path, name):
    made = Made(name)
    made.write("torch", tmp_path / "out")
    check_draws(
        made,
        tmp_path / "out",
        tmp_path,
        """
from out.model import load
model, noise = load(), load_file("noise.safetensors")["noise"]
text = getattr(model, "text", None)
assert text is None or text.decode(text.encode("ab")) == "ab"
found = {"seeded": model.sample(NUM, PROMPTS).values, "given": model.sample(NUM, noise=noise, PROMPTS).values}
from safetensors.torch import save_file
save_file(found, "found.safetensors")
for wrong in ({"step": 5}, {"steps": 0}, {"guidance": -1.0}):
    try:
        model.sample(1, PROMPTS, **wrong)
    except ValueError as error:
        assert next(iter(wrong)) in str(error)
    else:
        assert False, wrong
assert not any(name.split(".")[0] in ("ditlab", "ditlab_models", "pandas", "ray") for name in sys.modules)
""",
    )


@pytest.mark.slow
def test_a_torch_folder_of_regions_completes_rows(tmp_path):
    made = Made("region")
    made.write("torch", tmp_path / "out")
    sampler = made.family.build_sampler(
        made.experiment.sampling, made.experiment.model, made.experiment.objective
    )
    generator = torch.Generator().manual_seed(0)
    rows = {
        "regions": torch.rand(3, 8, 8, generator=generator),
        "present": torch.ones(3, 8, dtype=torch.bool),
        "mask": torch.rand(3, 8, generator=generator) < 0.5,
    }
    noise = torch.randn(3, 8, 8, generator=generator)
    save_file({**rows, "noise": noise}, tmp_path / "rows.safetensors")
    found = run_blocked(
        """
from out.model import load
rows = load_file("rows.safetensors")
noise = rows.pop("noise")
from safetensors.torch import save_file
save_file({"found": load().sample(3, conditions=rows, noise=noise).values}, "found.safetensors")
""",
        tmp_path,
    )
    expected = sampler.sample(
        made.network, rows, 3, torch.Generator().manual_seed(0), noise=noise
    ).values
    close(found["found"], expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*(pytest.param(each, marks=SLOW) for each in ("dit", "pixelhdm")), "unet"]
)
def test_a_diffusers_folder_draws_the_same_without_ditlab(tmp_path, name):
    pytest.importorskip("diffusers", minversion="0.38")
    made = Made(name)
    made.write("torch", tmp_path / "torch")
    made.write("diffusers", tmp_path / "out")
    check_draws(
        made,
        tmp_path / "torch",
        tmp_path,
        """
from diffusers import DiffusionPipeline
pipeline = DiffusionPipeline.from_pretrained("out", trust_remote_code=True)
noise = load_file("noise.safetensors")["noise"]
found = {
    "seeded": pipeline(NUM, output_type="pt", PROMPTS).images,
    "given": pipeline(NUM, noise=noise, output_type="pt", PROMPTS).images,
}
assert pipeline(NUM, PROMPTS).images[0].size in ((8, 8), (16, 16))
from safetensors.torch import save_file
save_file(found, "found.safetensors")
""",
    )


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("dit", "torch"),
        *slow(*((name, "torch") for name in ("unet", "dlm", "pixelhdm", "region"))),
        ("unet", "diffusers"),
        *slow(*((name, "diffusers") for name in ("dit", "pixelhdm"))),
    ],
)
def test_tools_that_search_the_code_of_a_folder_for_packages_find_the_needed_ones_alone(
    tmp_path, monkeypatch, name, form
):
    scan = pytest.importorskip("diffusers.utils.dynamic_modules_utils")
    hub = pytest.importorskip("transformers.dynamic_module_utils")
    asked = []
    monkeypatch.setattr(scan, "importlib", SimpleNamespace(import_module=asked.append))
    scripts = [path for path in Made(name).write(form, tmp_path / "out") if path.suffix == ".py"]
    expected = {"torch", "safetensors"}
    if form == "diffusers":
        expected.add("diffusers")
    found = set()
    for script in scripts:
        assert scan.check_imports(script) == []  # files beside it
        found.update(hub.get_imports(script))
    assert set(asked) - sys.stdlib_module_names == expected
    assert found - sys.stdlib_module_names == expected


@pytest.mark.parametrize("name", ["dit", *slow("unet", "dlm", "pixelhdm", "region")])
def test_fresh_weights_of_the_code_are_those_of_the_spec(tmp_path, name):
    check_fresh_weights(smallest(name), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(sum(1 for _ in variants())))
def test_every_option_of_a_family_is_exported(tmp_path, number):
    name, model, objective = list(variants())[number]
    chosen = {"model": model, "objective": objective}
    if objective.get("process") == "gaussian":
        chosen["sampling"] = {"solver": "ddim"}
    if model.get("block_size"):
        chosen["sampling"] = {"block": {}}
    if model.get("text_encoder"):
        chosen["model"] = model | {"patch_depth": 2}
    check_fresh_weights(smallest(name, **chosen), tmp_path)


def check_fresh_weights(experiment, folder):
    """The module of a spec builds the network with the bits that its family draws."""
    settings = TrainedSettings(
        experiment.family, experiment.model, experiment.objective, experiment.sampling, 5, ()
    )
    (folder / "model.py").write_text(torch_module(settings))
    found = runpy.run_path(str(folder / "model.py"))
    torch.manual_seed(1)
    expected = experiment.family.build_network(experiment.model).state_dict()
    torch.manual_seed(1)
    built = found["build_network"](found["MODEL"]).state_dict()
    torch.testing.assert_close(built, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("form", "inside"), [("torch", "."), ("diffusers", "network")])
def test_folders_are_read_back_and_have_the_same_bytes_twice(tmp_path, form, inside):
    made = Made("unet")
    files = made.write(form, tmp_path / "one")
    again = made.write(form, tmp_path / "two")
    assert [each.relative_to(tmp_path / "one") for each in files] == [
        each.relative_to(tmp_path / "two") for each in again
    ]
    assert all(one.read_bytes() == two.read_bytes() for one, two in zip(files, again, strict=True))
    place = str(tmp_path / "one" / inside)
    model = made.experiment.model.model_copy(
        update={"init": WeightsInit.model_validate({"from": place})}
    )
    begun = InitialWeights(model, Home(tmp_path / "home"), {})
    read = made.family.build_network(model)
    begun.load(read)
    assert begun.open().format.name == "export"
    torch.testing.assert_close(read.state_dict(), made.network.state_dict(), rtol=0, atol=0)
    card = (tmp_path / "one" / "README.md").read_text()
    shown = (
        "fingerprint: `f00`",
        "- names of `label`: 0 circle, 1 square",
        "| `eval/x` | 0.5 | 3 |",
    )
    for text in (*shown, "Licence: a placeholder", "step 7 of run abcd1234"):
        assert text in card
    assert f"ditlab export abcd1234 --format {form} --out FOLDER" in card
    assert str(tmp_path) not in card


def test_what_has_no_such_export_is_one_sentence(tmp_path, monkeypatch):
    with refused(r"--format diffusers draws images, and model\.family=dlm draws none; take"):
        Made("dlm").write("diffusers", tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept").touch()
    with refused(r"out is there already; remove it, or name another folder"):
        Made("dit").write("torch", tmp_path / "out")
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["kept"]
    monkeypatch.setattr(
        "ditlab_addons.interop.self_contained_export.plugin_packages",
        lambda spec: {"wavelets": "1.2"},
    )
    with refused(r"carries DiTLab's own code, and this run needs wavelets; leave --format out"):
        Made("dit").write("torch", tmp_path / "new")


@pytest.mark.slow
def test_a_run_is_exported_in_each_format(tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    result = ditlab.train(tiny(evaluation__every=3), local=True, warn=print)
    run = ditlab.open_run(result.run_id)
    plain = run.export(tmp_path / "plain", format="safetensors").files
    assert [each.name for each in plain] == ["weights.safetensors", "spec.yaml"]
    files = run.export(tmp_path / "torch", format="torch").files
    assert [each.name for each in files][2:] == ["model.py", "README.md"]
    assert plain[0].read_bytes() == files[0].read_bytes()
    card = files[-1].read_text()
    assert "averaged weights" in card and "eval/velocity" in card
    options = ("--format", "diffusers", "--out", tmp_path / "diffusers")
    said = run_inside("export", run.id, *options, home=tmp_path / "home").ok()
    assert said.err.splitlines()[-1] == f"next: hf upload OWNER/NAME {tmp_path / 'diffusers'}"
    index = json.loads((tmp_path / "diffusers" / "model_index.json").read_text())
    assert index["network"] == ["modeling", "TrainedNetwork"]
    card = run.export(tmp_path / "raw", format="torch", averaged=False).files[-1].read_text()
    assert "weights as trained" in card
    assert f"ditlab export {run.id} --format torch --out FOLDER --raw" in card
    with refused(r"--format onnx is no format of exports"):
        run.export(tmp_path / "onnx", format="onnx")
