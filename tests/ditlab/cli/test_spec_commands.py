"""`validate`, `show`, `schema`, `params`: the commands that need no run."""

import io
import json
import sys

import numpy as np
import pytest

from ditlab.data import Column, Source, write_store
from ditlab.spec.files import load_experiment
from ditlab.spec.sweep import load_sweep
from ditlab.spec.yaml_text import parse_yaml
from support.python_process import run_python

SWEEP = """\
name: small-sweep
base: small.yaml
space:
  optimizer.lr: {kind: loguniform, low: 1.0e-4, high: 1.0e-2}
  model.depth: {kind: grid, values: [1, 2]}
metric: eval/velocity
trials: 8
"""


@pytest.fixture
def sweep(spec):
    path = spec.with_name("sweep.yaml")
    path.write_text(SWEEP)
    return path


def test_validate_names_each_file(ditlab, spec, home):
    said = ditlab("validate", spec)
    assert (said.code, said.out) == (0, f"{spec}: valid\n")
    first, last = said.err.splitlines()
    assert first == f"{spec}: not compared with its data, as {home / 'stores'} holds no store yet"
    assert last.startswith("next: ") and last.endswith(f"train {spec} --dry-run")
    assert not home.exists()
    stores = home / "stores"
    stores.mkdir(parents=True)
    assert f"as {stores / 'digits'} holds no store yet" in ditlab("validate", spec).err
    assert not list(stores.iterdir())


@pytest.fixture
def three(spec):
    """A spec whose store has images of 8 pixels of three classes."""
    columns = {
        "image": Column(dtype="uint8", shape=(1, 8, 8), value_range=(0, 255)),
        "label": Column(dtype="int64"),
    }
    rows = {"image": np.zeros((60, 1, 8, 8), np.uint8), "label": np.arange(60) % 3}
    store = spec.with_name("three")
    write_store(store, columns, [rows], name="three", description="", source=Source(kind="test"))
    path = spec.with_name("three.yaml")
    path.write_text(
        f"extends: small.yaml\ndata: {{kind: arrow, path: {store}}}\nmodel: {{num_classes: 3}}\n"
    )
    return path


@pytest.mark.parametrize(
    "setting, problem",
    [
        (
            "model.num_classes=2",
            "label from 0 to 2, but the model has 2 classes; set model.num_classes to 3 or",
        ),
        (
            "model.image_size=16",
            "image (1, 8, 8), but the model takes (1, 16, 16); set model.image_size to 8 or",
        ),
        (
            "data.hold_out={column: colour, values: [3]}",
            "data.hold_out.column=colour is no column of class indices",
        ),
    ],
)
def test_what_the_data_refuse_is_the_same_sentence_in_every_command(
    ditlab, three, setting, problem
):
    assert ditlab("validate", three).err.startswith("next: ")
    sentences = set()
    for command in ("train --local --dry-run", "validate", "show", "plan --gpu cpu"):
        said = ditlab(*command.split(), three, "--set", setting)
        assert said.code == 2
        last = said.err.splitlines()[-1].removeprefix("ditlab: ")
        sentences.add(last.removeprefix(f"{three}: "))
    (sentence,) = sentences
    assert problem in sentence


def test_a_trial_that_the_data_refuse_is_named(ditlab, three):
    path = three.with_name("classes.yaml")
    path.write_text(
        "name: classes\nbase: three.yaml\nmetric: train/loss\nsearch: {kind: grid}\n"
        "space:\n  optimizer.lr: {kind: grid, values: [1.0e-3, 1.0e-4]}\n"
        "  model.num_classes: {kind: grid, values: [3, 2]}\n"
    )
    for command in ("tune", "validate", "show"):
        said = ditlab(command, path)
        assert said.code == 2 and "trial 1 (" in said.err
        assert "model has 2 classes; set model.num_classes to 3" in said.err.splitlines()[-1]


def test_a_spec_is_compared_with_its_data_without_torch(three):
    code = (
        "import sys\nfrom ditlab.cli.main import cli\n"
        f"cli.main(['validate', {str(three)!r}], standalone_mode=False)\n"
        "print([name for name in ('torch', 'sklearn', 'scipy', 'ray') if name in sys.modules])"
    )
    assert run_python("-c", code).stdout.splitlines() == [f"{three}: valid", "[]"]


def test_validate_goes_on_after_a_mistake(ditlab, spec):
    wrong = spec.with_name("wrong.yaml")
    wrong.write_text("extends: small.yaml\nmodel: {dpeth: 3}\noptimizer: {lr: -1}\n")
    said = ditlab("validate", wrong, spec)
    assert (said.code, said.out) == (2, f"{spec}: valid\n")
    assert len(said.err.splitlines()) == 3 and "dpeth" in said.err and "optimizer.lr=-1" in said.err


def test_a_spec_from_standard_input(ditlab, spec, monkeypatch):
    def piped(command, *options, text=None):
        typed = io.BytesIO((text or spec.read_text()).encode())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(typed))
        return ditlab(command, "-", *options)

    monkeypatch.chdir(spec.parent)
    assert piped("validate").out == "standard input: valid\n"
    assert piped("validate", text=SWEEP).out == "standard input: valid (sweep, 8 trials)\n"
    shown = parse_yaml(piped("show", "--set", "checkpoint.storage=x").out, "out")
    assert shown["checkpoint"]["storage"] == str(spec.parent / "x")
    assert piped("params").code == 0
    refused = "ditlab: standard input: seed=-1 must be at least 0.\n"
    assert piped("validate", text="extends: small.yaml\nseed: -1").err == refused
    piped("validate", text="a: b: c").refused("ditlab: standard input: line 1: ")
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input: must be a mapping" in ditlab("validate", "-").err, "closed is empty"


def test_validate_takes_sweeps_beside_experiments(ditlab, spec, sweep, home):
    said = ditlab("validate", sweep, spec)
    assert (said.code, said.out) == (0, f"{sweep}: valid (sweep, 8 trials)\n{spec}: valid\n")
    as_json = ditlab("validate", sweep, spec, "--json").json
    assert as_json["valid"] == [str(sweep), str(spec)] and list(as_json["spec_hash"]) == [str(spec)]
    assert not home.exists()


@pytest.mark.parametrize(
    "name, load, overrides",
    [
        ("small.yaml", load_experiment, ["model.depth=2", "training.ema=null"]),
        ("sweep.yaml", load_sweep, ["time_budget=2h"]),
    ],
)
def test_show_gives_the_file_back(ditlab, sweep, tmp_path, name, load, overrides):
    path = sweep.with_name(name)
    said = ditlab("show", path, *(word for each in overrides for word in ("--set", each))).ok()
    assert said.err.startswith("next: ")
    again = tmp_path / "elsewhere" / "again.yaml"
    again.parent.mkdir()
    again.write_text(said.out)
    assert load(again) == load(path, overrides)
    assert ditlab("show", again).out == said.out
    shown = ditlab("show", again, "--json").json
    assert shown["spec"] == load(again).to_dict()
    assert name == "sweep.yaml" or shown["spec_hash"] == load(again).content_hash()


@pytest.mark.parametrize("which, part", [([], "DiTSpec"), (["--sweep"], "LogUniform")])
def test_schema(ditlab, tmp_path, which, part):
    compact = ditlab("schema", *which, "--json")
    assert compact.out.count("\n") == 1 and part in compact.json["$defs"]
    assert json.loads(ditlab("schema", *which).out) == compact.json
    file = tmp_path / "schema.json"
    assert ditlab("schema", *which, "--json", "--out", file).json == {"files": [str(file)]}
    assert json.loads(file.read_text()) == compact.json
    ditlab("schema", *which, "--out", file / "x").refused("--out", "name another file")


def test_params_add_up(ditlab, spec, home):
    found = ditlab("params", spec, "--json").json
    total = found["total"]
    assert sum(found["components"].values()) == total == found["trainable"]
    table = ditlab("params", spec).out
    counts = [each["parameters"] for each in found["by_parameter"]]
    assert sum(counts) == sum(found["roles"].values()) == total
    for text in (f"{total:,}", "all matrix", f"{found['roles']['matrix']:,}"):
        assert text in table
    assert not home.exists()


def test_params_of_a_network_larger_than_memory(ditlab, spec):
    huge = ["--set", "model.width=32768", "--set", "model.num_heads=64", "--set", "model.depth=4"]
    assert ditlab("params", spec, *huge, "--json").json["total"] > 5e10


def test_modules_of_the_objective_are_counted_beside_the_total(ditlab, spec):
    spec.write_text("name: pictures\nmodel: {family: pixelhdm}\ntraining: {steps: 2}\n")
    found = ditlab("params", spec, "--json").json
    assert found["total"] == 356_705_879
    assert found["training_only"] == {"projection": 7_078_656}
    assert sum(found["roles"].values()) == 356_705_879 + 7_078_656
    assert "7,078,656" in ditlab("params", spec).out


def test_shapes(ditlab, spec):
    shapes = ("params", spec, "--shapes", "--batch", "3")
    row = ditlab(*shapes, "--json").json["shapes"][0]
    assert row["inputs"] == [[3, 1, 8, 8], [3]] and row["outputs"] == [[3, 1, 8, 8]]
    out = ditlab(*shapes).out
    assert "3x1x8x8" in out and out.rstrip().splitlines()[-1].split()[0] == "total"


def test_reversed_text_is_visible_on_a_terminal_and_whole_in_a_file(ditlab, spec, monkeypatch):
    spec.write_text(
        spec.read_text().replace("tracking: {", 'tracking: {experiment: "small\\u202eevil", ')
    )
    assert "small\u202eevil" in ditlab("show", spec).out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    on_terminal = ditlab("show", spec).out
    assert "small\\u202eevil" in on_terminal and "\u202e" not in on_terminal
