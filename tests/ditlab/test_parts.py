"""Parts of add-ons and of other packages, as docs/contributing.md has them: found, used, refused, absent."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import ditlab as package
from ditlab import parts
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.quality import classifier
from ditlab.spec.yaml_text import dump_yaml
from ditlab.weights.published import PublishedWeights
from ditlab_models.plugins import PluginWarning
from support.installed_package import install
from support.trainings.family_specs import smallest

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "contributing.md").read_text(encoding="utf-8")
TOML, PARTS, COMMAND, RATES_ADDON, RATES = re.findall(r"```(?:toml|python)\n(.*?)```", PAGE, re.DOTALL)
IMPORTER = """
from ditlab.parts import Importer, Parts

ADDON = Parts(
    importers=(
        Importer(name="zeros", options="ditlab_addons.blank.code:Options", target="ditlab_addons.blank.code:write"),
    ),
)
"""
ZEROS = """
import numpy as np
from ditlab.data import Column, Source, write_store
from ditlab_models.contract import Spec

class Options(Spec):
    \"\"\"Rows of zeros.\"\"\"

    rows: int = 4
    \"\"\"Number of rows.\"\"\"

def write(request):
    x = np.zeros((request.options.rows, 2), np.float32)
    columns = {"x": Column(dtype="float32", shape=(2,))}
    source = Source(kind="zeros")
    return write_store(request.out / "zeros", columns, [{"x": x}], name="zeros", description="Zeros.", source=source)
"""

BRIGHTNESS = """
import torch
from ditlab.quality.figures import QualityFigures

class Brightness(QualityFigures):
    @classmethod
    def of(cls, experiment, data, home):
        return [cls()] if experiment.model.family == "dit" else []

    def names(self, has_captions=False):
        return ("quality/brightness", "quality/brightness_real")

    def measure(self, samples):
        drawn, real = (float(torch.cat(list(each)).mean()) for each in (samples.values, samples.real()))
        return {"quality/brightness": drawn, "quality/brightness_real": real}

    def digest(self):
        return "brightness 1"
"""
ASKED = {
    "evaluation.features": ("dit", [{"kind": "clip", "weights": "clip", "sha256": "0" * 64}]),
    "evaluation.scorer": ("dlm", {"model": "/"}),
}


@pytest.fixture
def hello(tmp_path, monkeypatch):
    """The package of the page, installed."""
    project = f'[project]\nname = "hello"\nversion = "1.0"\n{TOML}'
    install(tmp_path / "site", {"pyproject.toml": project, "hello/parts.py": PARTS, "hello/command.py": COMMAND})
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path / "site"
    for module in ("hello", "hello.parts", "hello.command"):
        sys.modules.pop(module, None)


def test_a_command_of_a_package_is_listed_called_and_typed(hello, with_run, finished):
    ditlab = with_run
    assert "hello" not in sys.modules
    listed = ditlab("--help").out
    assert re.search(r"^  hello +Greet a run\.$", listed, re.MULTILINE) and listed.rstrip().endswith("Greet a run.")
    assert "hello.command" not in sys.modules, "a list imports no command"
    said = ditlab("hello", "small", "--json")
    assert (said.code, said.json) == (0, {"greeted": finished.run_id}), said.err
    assert "ditlab hello digits-dit" in ditlab("hello", "--help").out
    schema = ditlab("schema", "--result", "hello", "--json").json
    assert schema["$defs"]["HelloOutput"]["required"] == ["greeted"]
    assert "did you mean 'hello'?" in ditlab("helo").err


def test_what_cannot_be_used_is_one_warning_and_hinders_nothing_else(hello):
    taken = PARTS.replace('name="hello"', 'name="train"')
    for text, message in ((taken, "the command 'train' of hello.command:hello is skipped"), ("1 / 0", "ZeroDivision")):
        (hello / "hello" / "parts.py").write_text(text)
        sys.modules.pop("hello.parts", None)
        fresh = parts.PluginGroup("ditlab.addons", "add-on", parts.ADDONS._check, folders=parts.ADDONS._folders)
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            patch.setattr(parts, "ADDONS", fresh)
            assert parts.commands()["train"].target == "ditlab.cli.train.commands:train"
        assert [message in str(each.message) for each in caught if each.category is PluginWarning] == [True], caught


def test_a_name_that_is_taken_is_one_warning(hello, monkeypatch):
    offers = [parts.Parts(functions={"f": "a:f"}), parts.Parts(functions={"f": "b:f", "g": "b:g"})]
    monkeypatch.setattr(parts, "all_parts", lambda: offers)
    with pytest.warns(PluginWarning, match="the function 'f' of b:f is skipped, as a:f has that name; rename it"):
        assert parts.functions() == {"f": "a:f", "g": "b:g"}


def test_an_importer_an_observer_and_a_schedule_of_folders_on_the_path(tmp_path, spec):
    files = {"blank/addon.py": IMPORTER, "blank/code.py": ZEROS, "rates/addon.py": RATES_ADDON, "rates/code.py": RATES}
    for name, text in files.items():
        path = tmp_path / "more" / "ditlab_addons" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def ditlab(words: str, *places: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*places, *sys.path])}
        environment.pop("DITLAB_HOME", None)
        command = [sys.executable, "-m", "ditlab", *words.split()]
        return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, env=environment)

    there = str(tmp_path / "more")
    imported = ditlab("data import zeros --rows 3", there)
    assert imported.returncode == 0 and "zeros: 3 rows" in imported.stderr, imported.stderr
    training = f"train {spec} --local --set schedule.kind=halves --set optimizer.lr=0.5 --set checkpoint.every=null"
    trained = ditlab(training, there)
    assert trained.returncode == 0, trained.stderr
    (seen,) = tmp_path.glob("runs/train/*/rates.txt")
    assert seen.read_text() == "1 0.5\n2 0.25\n3 0.125\n4 0.0625\nsaved 4\n"
    refused = ditlab("sample small")
    assert refused.returncode == 2 and "needs the folder ditlab_addons/rates; put what holds it on" in refused.stderr


def test_a_figure_of_a_package_stands_beside_our_own_in_training_and_evaluation(tmp_path, monkeypatch, ditlab, spec):
    described = (
        'from ditlab.parts import Parts\nPARTS = Parts(quality_figures={"brightness": "bright.code:Brightness"})\n'
    )
    project = (
        '[project]\nname = "bright"\nversion = "1.0"\n[project.entry-points."ditlab.addons"]\nb = "bright:PARTS"\n'
    )
    files = {"pyproject.toml": project, "bright/__init__.py": described, "bright/code.py": BRIGHTNESS}
    monkeypatch.setattr(classifier, "STEPS", 50)
    plain = ditlab("train", spec, "--local", "--set", "evaluation.quality=100", "--set", "name=plain", "--json")
    protocol = ditlab("evaluate", "plain", "--json").json["measurements"]["quality"]
    install(tmp_path / "site", files)
    monkeypatch.syspath_prepend(tmp_path / "site")
    trained = ditlab("train", spec, "--local", "--set", "evaluation.quality=100", "--json")
    assert (plain.code, trained.code) == (0, 0), trained.err
    more = {"quality/brightness", "quality/brightness_real"}
    measured = {name: value for name, value in trained.json["metrics"].items() if name.startswith("quality/")}
    assert measured.keys() - plain.json["metrics"].keys() == more
    assert {name: measured[name] for name in measured.keys() - more}.items() <= plain.json["metrics"].items()
    assert -1 < measured["quality/brightness_real"] < 1
    said = ditlab("evaluate", "small", "--json")
    assert {name: said.json["metrics"][name] for name in measured} == measured, said.err
    assert said.json["measurements"]["quality"]["digest"] != protocol["digest"]
    for module in ("bright", "bright.code"):
        sys.modules.pop(module, None)


def test_code_that_cannot_be_used_is_one_sentence_before_anything_begins(hello, ditlab, spec):
    described = hello / "hello" / "parts.py"
    wrong = {"observers": '("hello.command:watch",)', "schedules": '{"halves": "hello.nothing:Halves"}'}
    described.write_text(f"from ditlab.parts import Parts\nPARTS = Parts({', '.join(map('='.join, wrong.items()))})\n")
    fresh = parts.PluginGroup("ditlab.addons", "add-on", parts.ADDONS._check, folders=parts.ADDONS._folders)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "ADDONS", fresh)
        said = ditlab("train", spec, "--local")
        assert (
            said.code == 2 and "the observer 'watch' (hello.command:watch) cannot be used (AttributeError" in said.err
        )
        said = ditlab("validate", spec, "--set", "schedule.kind=halves")
        assert said.code == 2 and "the schedule 'halves' (hello.nothing:Halves) cannot be used (ModuleNot" in said.err


def test_without_add_ons_each_part_of_one_is_answered_by_its_name(ditlab, home, monkeypatch):
    monkeypatch.setitem(sys.modules, "ditlab_addons", None)
    for command in ("train", "analysis"):  # options are made as the module is imported
        monkeypatch.delitem(sys.modules, f"ditlab.cli.{command}.commands", raising=False)

    def function(name: str) -> str:
        with pytest.raises(AttributeError) as caught:
            package.__getattr__(name)
        return f"{caught.value}\n"

    def weight_format(name: str) -> str:
        with pytest.raises(UserError) as caught:
            PublishedWeights.open("x", "PATH", Home(home), name)
        return f"{caught.value}\n"

    def field(name: str) -> str:
        family, asked = ASKED[name]
        asking = smallest(family, evaluation__quality=100).replace_all({name: asked})
        (home.parent / "asking.yaml").write_text(dump_yaml(asking.to_dict()))
        said = ditlab("train", home.parent / "asking.yaml", "--local")
        assert said.code == 2 and not list(home.glob("train/*"))
        return said.err

    called = {
        "command": lambda name: ditlab(*name.split()).err,
        "field": field,
        "importer": lambda name: ditlab("data", "import", name).err,
        "option": lambda name: ditlab("train", "x.yaml", name).err,
        "function": function,
        "export format": lambda name: ditlab("export", "x", "--out", "y", "--format", name).err,
        "weight format": weight_format,
    }
    assert called.keys() == parts.OF_ADDONS.keys()
    for noun, names in parts.OF_ADDONS.items():
        for name, addon in names.items():
            said = called[noun](name)
            assert said.count("\n") == 1, said
            assert f"the {noun} '{name}' is of the add-on {addon}, which is not here" in said
    assert ditlab("--help").code == 0
    assert not re.search(r"^  get ", ditlab("data", "import", "--help").out, re.MULTILINE)


def test_the_table_of_add_ons_names_every_part_of_each():
    found = {noun: dict[str, str]() for noun in parts.OF_ADDONS}
    for name, addon in parts.ADDONS.load_all().items():
        found["command"] |= {command.name: name for command in addon.commands}
        found["command"] |= dict.fromkeys(addon.subcommands, name)
        if name in parts.OF_ADDONS["field"].values():
            found["field"] |= dict.fromkeys(addon.quality_figures, name)
        found["importer"] |= {importer.name: name for importer in addon.importers}
        found["option"] |= {f"--{check.name}": name for check in addon.start_checks}
        found["function"] |= dict.fromkeys(addon.functions, name)
        found["weight format"] |= dict.fromkeys(addon.weight_formats, name)
        found["export format"] |= {form.name: name for form in addon.export_formats}
    assert found == parts.OF_ADDONS
