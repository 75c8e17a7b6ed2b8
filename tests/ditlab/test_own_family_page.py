"""`docs/own_family.md`, followed word by word: its package is installed, and its commands run."""

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from ditlab.api.analysis import load_export
from ditlab.home import Home
from ditlab.spec.files import load_experiment
from ditlab.spec.plugins import plugin_packages
from ditlab.spec.sweep import load_sweep
from ditlab.spec.sweep_space import check_sweep, enumerate_trials
from ditlab.tracking.records import find_run, list_runs
from ditlab.training.export import load_checked
from support.command import run_inside, run_process
from support.damage import refused
from support.installed_package import install

PAGE = Path(__file__).parents[2] / "docs" / "own_family.md"
FILES = dict(re.findall(r"^`([\w./]+)`\n\n```\w+\n(.*?)^```$", PAGE.read_text(), re.M | re.S))
COMMANDS = re.findall(r"^ditlab (.*)$", PAGE.read_text(), re.M)
PACKAGE = {"shapelab": "0.3.1"}
# Nothing answers at the address; a command of the page draws samples.
TRACKING = "tracking={system_metrics: false, uri: 'http://127.0.0.1:9'}"
QUIET = ("--set", TRACKING, "--set", "evaluation.samples=0")


@dataclass(frozen=True)
class Reader:
    """A reader of the page: a folder with its files, and a home."""

    folder: Path
    home: Path

    def runs(self, *arguments):
        """Run a command of the page, which succeeds."""
        return run_inside(*arguments, home=self.home, cwd=self.folder).ok()


def forget_modules():
    for name in [name for name in sys.modules if name.split(".")[0] == "shapelab"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A reader who has installed the package and trained both runs."""
    folder = tmp_path_factory.mktemp("page")
    install(folder / "site", FILES)
    for name, text in FILES.items():
        if name.endswith(".yaml"):
            (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "site")
        found = Reader(folder, folder / "home")
        for command in COMMANDS[:2]:
            found.runs(*command.split(), *QUIET, "--json")
        yield found
    forget_modules()


def test_both_runs_log_the_component_and_record_the_package(reader):
    for name, family in (("bars", "pixelmlp"), ("bars-dit", "dit")):
        run = find_run(Home(reader.home), name)
        record = run.record
        assert (record.family, record.status) == (family, "finished")
        assert (record.step, record.plugins) == (4, PACKAGE)
        journal = run.folder.journal.read_text()
        assert '"train/roughness"' in journal and '"eval/roughness"' in journal
        assert '"ditlab.plugins":"shapelab 0.3.1"' in journal
    assert {path.name for path in (reader.home / "stores").iterdir()} == {"bars-64"}


def test_samples_are_drawn_and_the_run_evaluated_and_compared(reader):
    reader.runs(*COMMANDS[4].split())
    values = load_file(reader.folder / "samples" / "samples.safetensors")["values"]
    assert values.shape == (4, 1, 8, 8)
    metrics = reader.runs(*COMMANDS[5].split(), "--json").json["metrics"]
    assert {"eval/velocity", "eval/roughness"} <= set(metrics)
    reader.runs(*COMMANDS[6].split())


def test_an_export_names_the_package_and_loads(reader):
    reader.runs(*COMMANDS[7].split())
    folder = reader.folder / "exported"
    with safe_open(folder / "weights.safetensors", framework="pt") as weights:
        assert json.loads(weights.metadata()["plugins"]) == PACKAGE
    experiment, network = load_checked(folder, torch.device("cpu"))
    weights = {"velocity": 1.0, "direction": 0.0, "roughness": 0.1}
    assert experiment.to_dict()["objective"]["weights"] == weights
    assert network(torch.zeros(2, 1, 8, 8), torch.zeros(2)).shape == (2, 1, 8, 8)


def test_a_sweep_varies_the_weight_and_the_density(reader):
    sweep = load_sweep(reader.folder / "sweep.yaml")
    check_sweep(sweep, "sweep.yaml")
    assert all(set(values) == set(sweep.space) for values in enumerate_trials(sweep))
    reader.runs(*COMMANDS[2].split())


def test_without_the_package_a_run_and_an_export_say_what_to_install(reader, monkeypatch):
    reader.runs("export", "bars", "--out", reader.folder / "elsewhere")
    monkeypatch.setattr(
        sys, "path", [path for path in sys.path if Path(path) != reader.folder / "site"]
    )
    needs = "needs shapelab==0.3.1, not installed here; run `pip install shapelab==0.3.1`."
    run_inside("sample", "bars", home=reader.home, cwd=reader.folder).refused(needs)
    with refused(re.escape(needs)):
        load_export(reader.folder / "elsewhere")
    run_inside("validate", "bars.yaml", home=reader.home, cwd=reader.folder).refused(
        "model.family='pixelmlp' is no known family"
    )


def test_installed_and_not_named_it_changes_nothing(reader, monkeypatch):
    """The hash, the dump and the fields of a spec of built-in parts are the same with the package
    and without.
    """
    plain = reader.folder / "plain.yaml"
    plain.write_text("name: plain\nmodel: {family: dit}\ntraining: {steps: 1}\n")
    here = load_experiment(plain)
    assert plugin_packages(here.to_dict()) == {} and "shapelab.roughness" in sys.modules
    monkeypatch.setattr(
        sys, "path", [path for path in sys.path if Path(path) != reader.folder / "site"]
    )
    there = load_experiment(plain)
    assert (here.to_dict(), here.content_hash()) == (there.to_dict(), there.content_hash())
    assert type(here) is type(there)


@pytest.mark.slow
def test_the_sweep_trains_its_trials(reader):
    path = os.pathsep.join(
        filter(None, [str(reader.folder / "site"), os.environ.get("PYTHONPATH")])
    )
    command = [*COMMANDS[3].split(), "--set", "fixed.tracking.system_metrics=false", "--json"]
    run_process(*command, home=reader.home, cwd=reader.folder, PYTHONPATH=path).ok()
    trials = [record for record in list_runs(Home(reader.home)) if record.parent]
    assert [trial.status for trial in trials] == ["finished", "finished"]
    assert all(trial.plugins == PACKAGE for trial in trials)
