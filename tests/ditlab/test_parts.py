"""Parts of add-ons and of other packages, as docs/contributing.md has them: found, used, refused,
absent.
"""

import math
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ditlab as product
import ditlab_addons
from ditlab import parts
from ditlab.api.run import Run
from ditlab.checkpoints.store import open_checkpoint
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.quality import classifier
from ditlab.spec import plugins
from ditlab.spec.yaml_text import dump_yaml
from ditlab.weights.published import PublishedWeights
from ditlab_models.plugins import PluginWarning
from support.damage import refused
from support.installed_package import install
from support.sweeps import small_sweep
from support.trainings.family_specs import smallest

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "contributing.md").read_text()
PARTS, COMMAND, RATES_ADDON, RATES, TOML = re.findall(
    r"```(?:toml|python)\n(.*?)```", PAGE, re.DOTALL
)
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


def looked_for_again():
    """The add-ons that are there now."""
    old = parts.ADDONS
    return parts.PluginGroup("ditlab.addons", "add-on", old._check, folders=old._folders)


def masters(checkpoint):
    """Master weights of a committed checkpoint."""
    reader = open_checkpoint(checkpoint)
    shapes = reader.manifest.shapes
    return {
        name: reader.read("master", name, 0, math.prod(shape)) for name, shape in shapes.items()
    }


@pytest.fixture
def hello(tmp_path, monkeypatch):
    """The package of the page, installed."""
    project = f'[project]\nname = "hello"\nversion = "1.0"\n{TOML}'
    install(
        tmp_path / "site",
        {"pyproject.toml": project, "hello/parts.py": PARTS, "hello/command.py": COMMAND},
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path / "site"
    for module in ("hello", "hello.parts", "hello.command"):
        sys.modules.pop(module, None)


@pytest.fixture
def anew():
    """`anew(module)`: import a module of commands again, which makes its options of the parts that
    are there.
    """
    before = {}

    def forget(name):
        before.setdefault(name, sys.modules.pop(name, None))
        sys.modules.pop(name, None)

    yield forget
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


@pytest.fixture
def addons(monkeypatch, anew):
    """`addons(*places)`: look for add-ons once more, also in folders below further places."""
    own = [*ditlab_addons.__path__]

    def search(*places):
        monkeypatch.setattr(
            ditlab_addons, "__path__", [*own, *(str(place / "ditlab_addons") for place in places)]
        )
        group = looked_for_again()
        monkeypatch.setattr(parts, "ADDONS", group)
        monkeypatch.setattr(plugins, "ADDONS", group)
        anew("ditlab.cli.data.commands")

    return search


@pytest.fixture
def package(hello, addons):
    """`package(text)`: the page's package, installed with these parts."""

    def describe(text):
        (hello / "hello" / "parts.py").write_text(text)
        addons()

    return describe


def test_a_command_of_a_package_is_listed_called_and_typed(hello, with_run, finished):
    ditlab = with_run
    assert "hello" not in sys.modules
    listed = ditlab("--help").out
    assert re.search(r"\n  hello +Greet a run\.$", listed.rstrip())
    assert "hello.command" not in sys.modules, "a list imports no command"
    said = ditlab("hello", "small", "--json")
    assert (said.code, said.json) == (0, {"greeted": finished.run_id}), said.err
    assert "ditlab hello digits-dit" in ditlab("hello", "--help").out
    schema = ditlab("schema", "--result", "hello", "--json").json
    assert schema["$defs"]["HelloOutput"]["required"] == ["greeted"]
    assert "did you mean 'hello'?" in ditlab("helo").err


def test_what_cannot_be_used_is_a_warning_and_hinders_nothing_else(hello, monkeypatch):
    taken = PARTS.replace('name="hello"', 'name="train"')
    for text, message in (
        (taken, "the command 'train' of hello.command:hello is skipped"),
        ("1 / 0", "ZeroDivision"),
    ):
        (hello / "hello" / "parts.py").write_text(text)
        sys.modules.pop("hello.parts", None)
        monkeypatch.setattr(parts, "ADDONS", looked_for_again())
        with pytest.warns(PluginWarning, match=message) as caught:
            assert parts.commands()["train"].target == "ditlab.cli.train.commands:train"
        assert [each.category for each in caught].count(PluginWarning) == 1


def test_an_importer_an_observer_and_a_schedule_of_folders_on_the_path(
    tmp_path, spec, home, ditlab, addons
):
    files = {
        "blank/addon.py": IMPORTER,
        "blank/code.py": ZEROS,
        "rates/addon.py": RATES_ADDON,
        "rates/code.py": RATES,
    }
    for name, text in files.items():
        path = tmp_path / "more" / "ditlab_addons" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    addons(tmp_path / "more")
    imported = ditlab("data", "import", "zeros", "--rows", "3").ok()
    assert "zeros: 3 rows" in imported.err
    changes = ("schedule.kind=halves", "optimizer.lr=0.5", "checkpoint.every=null")
    ditlab(
        "train", spec, "--local", *(word for change in changes for word in ("--set", change))
    ).ok()
    (seen,) = home.glob("train/*/rates.txt")
    assert seen.read_text() == "1 0.5\n2 0.25\n3 0.125\n4 0.0625\nsaved 4\n"
    addons()
    ditlab("sample", "small").refused("needs the folder ditlab_addons/rates; put what holds it on")


@pytest.mark.slow
def test_a_figure_of_a_package_stands_beside_our_own_in_training_and_evaluation(
    tmp_path, monkeypatch, ditlab, spec
):
    described = 'from ditlab.parts import Parts\nPARTS = Parts(quality_figures={"brightness": "bright.code:Brightness"})\n'
    project = '[project]\nname = "bright"\nversion = "1.0"\n[project.entry-points."ditlab.addons"]\nb = "bright:PARTS"\n'
    files = {
        "pyproject.toml": project,
        "bright/__init__.py": described,
        "bright/code.py": BRIGHTNESS,
    }
    monkeypatch.setattr(classifier, "STEPS", 50)
    plain = ditlab(
        "train", spec, "--local", "--set", "evaluation.quality=100", "--set", "name=plain", "--json"
    )
    protocol = ditlab("evaluate", "plain", "--json").json["measurements"]["quality"]
    install(tmp_path / "site", files)
    monkeypatch.syspath_prepend(tmp_path / "site")
    trained = ditlab("train", spec, "--local", "--set", "evaluation.quality=100", "--json")
    assert (plain.code, trained.code) == (0, 0), trained.err
    more = {"quality/brightness", "quality/brightness_real"}
    before, after = plain.json["metrics"], trained.json["metrics"]
    measured = {name: value for name, value in after.items() if name.startswith("quality/")}
    assert measured.keys() - before.keys() == more
    assert {name: measured[name] for name in measured.keys() - more}.items() <= before.items()
    assert -1 < measured["quality/brightness_real"] < 1
    said = ditlab("evaluate", "small", "--json")
    assert {name: said.json["metrics"][name] for name in measured} == measured, said.err
    assert said.json["measurements"]["quality"]["digest"] != protocol["digest"]
    for module in ("bright", "bright.code"):
        sys.modules.pop(module, None)


def test_code_that_cannot_be_used_is_one_sentence_before_anything_begins(
    hello, ditlab, spec, monkeypatch
):
    described = hello / "hello" / "parts.py"
    described.write_text(
        'from ditlab.parts import Parts\nPARTS = Parts(observers=("hello.command:watch",), '
        'schedules={"halves": "hello.nothing:Halves"})\n'
    )
    monkeypatch.setattr(parts, "ADDONS", looked_for_again())
    ditlab("train", spec, "--local").refused(
        "the observer 'watch' (hello.command:watch) cannot be used (AttributeError"
    )
    ditlab("validate", spec, "--set", "schedule.kind=halves").refused(
        "the schedule 'halves' (hello.nothing:Halves) cannot be used (ModuleNot"
    )


NOTES = """
from ditlab.parts import Parts
from ditlab.runs.observers import RunObserver
from ditlab_models.contract import Spec

class Notes(Spec):
    word: str

class NotesSection(Spec):
    notes: Notes = Notes(word="")

class Writer(RunObserver):
    def __init__(self, launch):
        self.launch, self.steps = launch, 0
    def progressed(self, progress):
        self.steps = max(self.steps, progress.step)
    def ended(self, end):
        word = self.launch.experiment.notes.word
        (self.launch.folder.path / "notes.txt").write_text(f"{word} {self.steps} {end.status}")

class Broken(RunObserver):
    def began(self):
        raise OSError("full")

def observe(experiment, is_resumed, warn):
    return Writer if hasattr(experiment, "notes") else None

def broken(*_):
    return lambda launch: Broken()

PARTS = Parts(
    sections={"notes": "hello.parts:NotesSection"},
    run_observers=("hello.parts:observe", "hello.parts:broken"),
)
"""


def test_a_section_and_observers_of_a_run_of_a_package(package, ditlab, spec, home):
    package(NOTES)
    plain = ditlab("show", spec).out
    assert "notes" not in plain
    said = ditlab(
        "train", spec, "--local", "--set", "notes.word=hello", "--set", "training.steps=2"
    ).ok()
    assert (
        "the observer hello.parts.Broken failed and gets no further events (OSError: full)"
        in said.err
    )
    (seen,) = home.glob("train/*/notes.txt")
    assert seen.read_text() == "hello 2 finished"
    assert "notes.wrd" in ditlab("validate", spec, "--set", "notes.wrd=3").err
    dry = ("train", spec, "--dry-run", "--json")
    hashes = [ditlab(*dry, *more).json["spec_hash"] for more in ((), ("--set", "notes.word=a"))]
    assert hashes[0] == hashes[1], "a section decides nothing of the weights"


LION = """
from typing import ClassVar, Literal
from ditlab.parts import Parts
from ditlab.spec.optimization import Optimizer

class Lion(Optimizer):
    kind: Literal["lion"] = "lion"
    moments: ClassVar = ("moment",)
    beta: float = 0.9

    def update(self, weights, gradient, state, step, lr):
        state["moment"].lerp_(gradient, 1 - self.beta)
        weights.sub_(state["moment"].sign(), alpha=lr)

PARTS = Parts(optimizers={"lion": "hello.parts:Lion"})
"""


@pytest.mark.slow
def test_an_optimiser_of_a_package_trains_resumes_to_the_bit_and_is_refused_where_it_has_no_reference(
    package, ditlab, spec, home
):
    package(LION)
    changes = ("optimizer={kind: lion, lr: 0.001, weight_decay: 0}", "schedule={kind: constant}")
    changes += ("checkpoint={every: 1, keep: 9}",)
    lion = [word for change in changes for word in ("--set", change)]

    said = ditlab("train", spec, "--local", *lion, "--json").ok()
    folder = Home(home).run(said.json["run_id"]).checkpoints
    before, after = (masters(folder / f"step-{step:08d}") for step in (1, 2))
    moved = {name: (after[name] - before[name]).abs().max().item() for name in before}
    assert max(moved.values()) == pytest.approx(0.001, rel=1e-3), (
        "each number moves by the learning rate"
    )
    again = ("train", spec, "--local", *lion, "--set", "name=again", "--json")
    said = ditlab(*again, "--set", "training.steps=2")
    ditlab(*again, "--resume", said.json["run_id"]).ok()
    again = masters(Home(home).run(said.json["run_id"]).checkpoints / "step-00000004")
    whole = masters(folder / "step-00000004")
    assert all(torch.equal(again[name], whole[name]) for name in whole)
    ditlab("prove", spec, *lion).refused(
        "optimizer.kind=lion is an add-on's, and the reference knows adamw and muon"
    )


SOLVER = """
from ditlab.parts import Parts

def one_step(velocity, x, times, record):
    x = x + (times[-1] - times[0]) * velocity(x, times[0])
    record(x)
    return x

PARTS = Parts(solvers={"one_step": "hello.parts:one_step"})
"""


def test_a_solver_of_a_package_draws_and_only_where_a_velocity_is_integrated(
    package, with_run, finished, tmp_path
):
    package(SOLVER)
    found = {}
    for solver, steps in (("one_step", 4), ("euler", 1)):
        out = tmp_path / solver
        with_run(
            "sample", "small", "--num", "2", "--solver", solver, "--steps", steps, "--out", out
        ).ok()
        found[solver] = load_file(out / "samples.safetensors")
    assert all(
        torch.equal(found["one_step"][name], found["euler"][name]) for name in found["euler"]
    )
    with_run("sample", "small", "--solver", "two_steps").refused(
        "sampling.solver='two_steps' must be 'euler', 'heun'"
    )
    gaussian = ("--set", "objective={process: gaussian}", "--set", "sampling.solver=one_step")
    with_run("validate", finished.spec, *gaussian).refused("sampling.solver='one_step'")


SHELVES = """
from ditlab.parts import Parts, SweepKind

KIND = SweepKind(name="shelf", noun="sweep over shelves", load="hello.parts:Shelves", target="hello.parts:tune")
PARTS = Parts(sweep_kinds=(KIND,))

class Shelves:
    def __init__(self, path, overrides):
        self.size = len(overrides)

    def to_dict(self):
        return {"size": self.size}

    def describe(self):
        return f"{self.size} shelves"

def tune(path, overrides, resume, dry_run, as_json):
    print(path.name, overrides, resume, dry_run, as_json)
    return 3
"""


def test_a_kind_of_sweeps_of_a_package_is_validated_shown_and_run(package, ditlab, tmp_path):
    package(SHELVES)
    path = tmp_path / "shelves.yaml"
    path.write_text("base: {shelf: top}\n")
    assert ditlab("validate", path, "--set", "a=1").out.endswith(
        "shelves.yaml: valid (sweep over shelves, 1 shelves)\n"
    )
    assert ditlab("show", path).out == "size: 0\n"
    said = ditlab("tune", path, "--set", "a=1", "--dry-run")
    assert (said.code, said.out) == (3, "shelves.yaml ('a=1',) None True False\n"), said.err
    ditlab("tune", path, "--quick").refused(
        "--quick is for sweeps that train, and a sweep over shelves trains nothing"
    )
    with refused(r"base\.shelf makes it a sweep over shelves, which trains nothing"):
        product.load_sweep(path)


BOXES = """
from ditlab.parts import FileKind, Parts

PARTS = Parts(file_kinds=(FileKind(name="boxes", noun="pile of boxes", command="pack", load="hello.parts:Pile"),))

class Pile:
    def __init__(self, path, overrides):
        self.size = len(overrides)

    def to_dict(self):
        return {"size": self.size}

    def describe(self):
        return f"{self.size} boxes"
"""


def test_a_kind_of_files_of_a_package_is_validated_and_shown(hello, ditlab, tmp_path, addons):
    (hello / "hello" / "parts.py").write_text(BOXES)
    addons()
    path = tmp_path / "pile.yaml"
    path.write_text("boxes: []\n")
    said = ditlab("validate", path, "--set", "a=1")
    assert said.out.endswith("pile.yaml: valid (pile of boxes, 1 boxes)\n")
    assert "ditlab pack " in said.err
    assert ditlab("show", path).out == "size: 0\n"
    for command in ("train", "tune"):
        ditlab(command, path).refused("`boxes` is a pile of boxes; use `ditlab pack`")


def test_a_section_of_an_absent_add_on_is_kept_and_refused_where_it_would_act(
    ditlab, spec, monkeypatch, anew
):
    monkeypatch.setenv("SOME_HOOK", "http://127.0.0.1:9/T0K3N")
    section = ("--set", "notify=[{on: [failed], to: env:SOME_HOOK}]")
    assert ditlab("train", spec, "--local", "--set", "training.steps=2", *section).code == 0
    shown = ditlab("show", spec, *section).out
    monkeypatch.setitem(sys.modules, "ditlab_addons", None)
    anew("ditlab.cli.train.commands")
    assert ditlab("show", spec, *section).out == shown
    for command in (["runs"], ["runs", "show", "small"], ["sample", "small", "--num", "1"]):
        ditlab(*command).ok()
    longer = ("train", spec, "--local", "--resume", "small", "--set", "training.steps=3")
    ditlab(*longer, *section).refused(
        "the section 'notify' is of the add-on notify, which is not here"
    )
    assert ditlab(*longer).code == 0


TYPED = {
    "command": "NAME",
    "importer": "data import NAME",
    "option": "train x.yaml NAME",
    "section": "train SPEC --local --set NAME=[1]",
    "export format": "export x --out y --format NAME",
    "optimizer": "train SPEC --local --set optimizer.kind=NAME",
    "order": "train SPEC --local --set 'data={kind: arrow, order: {kind: NAME}}'",
    "schedule": "train SPEC --local --set schedule.kind=NAME",
    "tracker": "train SPEC --local --set tracking.uri=NAME:lab",
}
"""Commands that name a part, by its noun."""


def test_without_add_ons_each_part_of_one_is_answered_by_its_name(
    ditlab, home, spec, monkeypatch, anew
):
    monkeypatch.setitem(sys.modules, "ditlab_addons", None)
    for command in ("train", "analysis"):
        anew(f"ditlab.cli.{command}.commands")

    def raised(call, *arguments):
        with pytest.raises((AttributeError, UserError)) as caught:
            call(*arguments)
        return f"{caught.value}\n"

    def of_file(mapping, *command):
        path = home.parent / "named.yaml"
        path.write_text(dump_yaml(mapping))
        return ditlab(*command, path).refused().err

    def field(name):
        family, asked = ASKED[name]
        asking = smallest(family, evaluation__quality=100).replace_all({name: asked})
        return of_file(asking.to_dict(), "train", "--local")

    called = {
        "file's field": lambda name: of_file({name: {}}, "validate"),
        "field": field,
        "sweep's base": lambda name: of_file({"base": {name: "small"}}, "tune"),
        "scheduler": lambda name: of_file(small_sweep(scheduler={"kind": name}), "validate"),
        "function": lambda name: raised(product.__getattr__, name),
        "method": lambda name: raised(Run.__getattr__, None, name),
        "weight format": lambda name: raised(PublishedWeights.open, "x", "PATH", Home(home), name),
    }

    def said_of(noun, name):
        if noun in called:
            return called[noun](name)
        words = TYPED[noun].replace("NAME", name).replace("SPEC", str(spec))
        return ditlab(*shlex.split(words)).err

    assert called.keys() | TYPED.keys() == parts.OF_ADDONS.keys()
    for noun, names in parts.OF_ADDONS.items():
        for name, addon in names.items():
            said = said_of(noun, name)
            assert said.count("\n") == 1, said
            assert f"the {noun} '{name}' is of the add-on {addon}, which is not here" in said
    assert not list(home.glob("train/*"))
    assert ditlab("--help").code == 0
    assert not re.search(r"^  get ", ditlab("data", "import", "--help").out, re.MULTILINE)


BY_NAME = {
    "command": ("commands", "subcommands"),
    "field": ("quality_figures",),
    "importer": ("importers",),
    "option": ("start_checks", "options"),
    "sweep's base": ("sweep_kinds",),
    "file's field": ("file_kinds",),
    "section": ("sections", "sweep_sections"),
    "function": ("functions",),
    "method": ("run_methods",),
    "weight format": ("weight_formats",),
    "optimizer": ("optimizers",),
    "order": ("orders",),
    "schedule": ("schedules",),
    "scheduler": ("schedulers",),
    "tracker": ("trackers",),
    "export format": ("export_formats",),
}
"""Fields of `Parts` by the noun of what they hold."""


def test_the_table_of_add_ons_names_every_part_of_each():
    found = {noun: dict[str, str]() for noun in parts.OF_ADDONS}
    for name, addon in parts.ADDONS.load_all().items():
        for noun, fields in BY_NAME.items():
            if noun == "field" and name not in parts.OF_ADDONS[noun].values():
                continue
            for part in [part for field in fields for part in getattr(addon, field)]:
                word = getattr(part, "name", part)
                if noun == "option":
                    word = f"--{word.removeprefix('--')}"
                found[noun][word] = name
    assert found == parts.OF_ADDONS
