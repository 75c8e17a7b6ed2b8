"""Parts of other packages: found by name without their code; broken, slow and doubled ones hinder
no others.
"""

import sys
import textwrap
import warnings

import pytest

from ditlab_models import plugins
from ditlab_models.dit.spec import DiTObjectiveSpec
from ditlab_models.dlm.spec import DLMObjectiveSpec
from ditlab_models.extensions import (
    LOSS_COMPONENTS,
    TIME_DENSITIES,
    added_parts,
    extended_objective,
)
from ditlab_models.families import FAMILIES, families, family_names, find_family
from ditlab_models.plugins import PluginError, PluginWarning
from support.damage import refused
from support.installed_package import install

FAMILY = """
from typing import Literal
from ditlab_models.dit.family import DiTFamily
from ditlab_models.dit.spec import DiTSpec

class Spec(DiTSpec):
    family: Literal["{name}"] = "{name}"

class Wave(DiTFamily):
    name = "{name}"
    model = Spec

FAMILY = Wave()
"""
WAVE = FAMILY.format(name="wave")
LOSS = """
from ditlab_models.contract import LossComponent

class Loss(LossComponent):
    name = "{name}"
    def __call__(self, predicted, target):
        return (predicted - target).abs().mean()
"""
DENSITY = """
from typing import Literal
from ditlab_models.contract import TimeDensity

class Edges(TimeDensity):
    kind: Literal["edges"] = "edges"
    def draw(self, noise_source, num):
        return noise_source.uniform("time", (num,)).round()
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package with entry points {group: {name: module}} and modules by name; the code is
    forgotten after.
    """
    made = []

    def make(name, points, **modules: str):
        lines = [f'[project]\nname = "{name}"\nversion = "1.2"']
        for group, parts in points.items():
            lines += [
                f'[project.entry-points."{group}"]',
                *(f'{part} = "{name}_{at}"' for part, at in parts.items()),
            ]
        site = tmp_path / name
        texts = {f"{name}_{module}.py": textwrap.dedent(text) for module, text in modules.items()}
        install(site, {"pyproject.toml": "\n".join(lines), **texts})
        monkeypatch.syspath_prepend(site)
        made.append(name)
        return site

    yield make
    for module in [
        module
        for module in sys.modules
        if module.startswith(tuple(f"{name}_" for name in made or ["-"]))
    ]:
        del sys.modules[module]


def waves(package, name, code=WAVE):
    """Install a package with a family `wave`."""
    return package(name, {"ditlab.families": {"wave": "family:FAMILY"}}, family=code)


def listed(group=FAMILIES):
    """The names of all parts, and the warnings of listing them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names = list(group.load_all())
    assert all(issubclass(each.category, PluginWarning) for each in caught)
    return names, [str(each.message) for each in caught]


def test_a_family_of_a_package_is_found_and_only_its_own_code_is_imported(package):
    package(
        "wavelets",
        {"ditlab.families": {"wave": "good:FAMILY", "other": "broken:FAMILY"}},
        good=WAVE,
        broken="raise RuntimeError('no')",
    )
    assert {"wave", "other", "dit"} <= set(family_names())
    assert not [name for name in sys.modules if name.startswith("wavelets_")]
    assert find_family("wave").model().family == "wave"
    assert "wavelets_good" in sys.modules and "wavelets_broken" not in sys.modules
    assert find_family("dit").name == "dit" and find_family("wavy") is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('no licence.\\nmore')", "RuntimeError: no licence"),
        (
            "import a_library_that_is_not_there",
            "ModuleNotFoundError: No module named 'a_library_that_is_not_there'",
        ),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("FAMILY = 3", "it is a int, not an instance of ditlab_models.contract.Family"),
        (
            FAMILY.format(name="wove"),
            "its name is 'wove' and its model.family 'wove', which must both be 'wave'",
        ),
        ("", "AttributeError: module 'broken0_family' has no attribute 'FAMILY'"),
    ],
)
def test_a_broken_family_is_one_warning_and_an_error_where_it_is_named(package, code, reason):
    waves(package, "broken0", code)
    expected = f"model family 'wave' of package broken0 1.2 (entry point wave = broken0_family:FAMILY) cannot be used ({reason}); repair, update or remove that package."
    FAMILIES._warned.discard(expected)
    names, messages = listed()
    assert {"dit", "unet"} <= set(names) and "wave" not in names
    assert messages == [expected] and listed()[1] == []
    with pytest.raises(PluginError) as caught:
        find_family("wave")
    assert str(caught.value) == expected


def test_a_slow_family_is_left_out_of_a_listing_and_found_by_name(package, monkeypatch):
    monkeypatch.setattr(plugins, "LISTING_TIMEOUT", 0.2)
    site = package(
        "sluggish",
        {"ditlab.families": {"wave": "family:FAMILY"}},
        family=f"""
import pathlib, time
while not pathlib.Path(__file__).with_name("go").exists():
    time.sleep(0.05)
{WAVE}""",
    )
    names, messages = listed()
    assert "dit" in names and "wave" not in names
    assert messages == [
        "model family 'wave' of package sluggish 1.2 (entry point wave = sluggish_family:FAMILY) is skipped, as its import takes more than 0.2 s; import heavy libraries inside functions."
    ]
    (site / "go").touch()
    assert find_family("wave").name == "wave" and "wave" in families()


def test_a_name_of_two_packages_is_refused_where_it_is_named(package):
    for name in ("first", "second"):
        waves(package, name)
    message = "model family 'wave' is defined twice, by package first 1.2 (entry point wave = first_family:FAMILY) and package second 1.2 (entry point wave = second_family:FAMILY); remove one of the two."
    with pytest.raises(PluginError) as caught:
        find_family("wave")
    assert str(caught.value) == message
    names, messages = listed()
    assert "wave" not in names and "dit" in names and messages == [message]


@pytest.mark.parametrize(
    ("group", "name", "noun", "kind"),
    [
        ("ditlab.families", "dit", "model family", FAMILIES),
        ("ditlab.loss_components", "direction", "loss component", LOSS_COMPONENTS),
        ("ditlab.time_densities", "uniform", "time density", TIME_DENSITIES),
    ],
)
def test_a_built_in_name_cannot_be_taken(package, group, name, noun, kind):
    package("thief", {group: {name: "module:PART"}}, module="raise RuntimeError('never imported')")
    _, messages = listed(kind)
    assert messages == [
        f"package thief 1.2 (entry point {name} = thief_module:PART) is skipped: {noun} '{name}' is built in; rename the entry point."
    ]
    assert "thief_module" not in sys.modules
    kind._warned.clear()


def test_an_objective_has_the_parts_that_its_mapping_names_and_no_others(package):
    package(
        "parts",
        {
            "ditlab.loss_components": {"sharp": "loss:Loss"},
            "ditlab.time_densities": {"edges": "times:Edges"},
        },
        loss=LOSS.format(name="sharp"),
        times=DENSITY,
    )
    assert extended_objective(DiTObjectiveSpec, {"weights": {"direction": 0.1}}) is DiTObjectiveSpec
    mapping = {"weights": {"sharp": 0.5}, "time": {"kind": "edges"}}
    extended = extended_objective(DiTObjectiveSpec, mapping)
    assert extended is extended_objective(DiTObjectiveSpec, mapping)
    objective = extended.model_validate(mapping)
    assert isinstance(objective, DiTObjectiveSpec)
    assert objective.model_dump() == {
        "process": "flow",
        "time": {"kind": "edges"},
        "weights": {"velocity": 1.0, "direction": 0.0, "sharp": 0.5},
    }
    assert [plugin.name for plugin in added_parts(DiTObjectiveSpec, mapping)] == ["sharp", "edges"]
    assert (
        extended.model_validate({"weights": {"velocity": 0.0, "sharp": 1.0}}).weights.sharp == 1.0
    )
    with pytest.raises(ValueError, match="all 0"):
        extended.model_validate({"weights": {"velocity": 0.0, "sharp": 0.0}})


def test_a_component_for_another_prediction_is_refused(package):
    package(
        "parts2", {"ditlab.loss_components": {"sharp": "loss:Loss"}}, loss=LOSS.format(name="sharp")
    )
    with refused(r"weights\.sharp compares a velocity, and this family's loss has no", PluginError):
        extended_objective(DLMObjectiveSpec, {"weights": {"sharp": 0.1}})


@pytest.mark.parametrize("name", ["loss", "velocity_t2", "copy", "two words"])
def test_a_component_cannot_have_the_name_of_another_metric_or_of_no_field(package, name):
    code = f"LOSS = None\nfrom ditlab_models.contract import LossComponent\nclass Loss(LossComponent):\n    name = {name!r}\n"
    package("parts3", {"ditlab.loss_components": {f'"{name}"': "loss:Loss"}}, loss=code)
    with refused("cannot be used", PluginError):
        LOSS_COMPONENTS.load(name)


@pytest.fixture
def forget(monkeypatch):
    """No package or folder was warned of before."""
    monkeypatch.setattr(plugins, "_former_parts", set())


def test_a_package_with_groups_of_former_names_is_one_warning_whatever_is_looked_up(
    package, forget
):
    package(
        "waves",
        {
            "denoisers.families": {"wave": "family:FAMILY", "ripple": "family:FAMILY"},
            "denoisers.time_densities": {"edges": "times:Edges"},
            "other.group": {"x": "y:Z"},
        },
        family=WAVE,
        times=DENSITY,
    )
    names, messages = listed()
    assert "wave" not in names and messages == [
        "parts of package waves 1.2 are not read, as it names them in denoisers.families and denoisers.time_densities; name them in ditlab.families and ditlab.time_densities, and import ditlab_models in place of denoisers."
    ]
    assert listed()[1] == listed(LOSS_COMPONENTS)[1] == listed(TIME_DENSITIES)[1] == []
    package(
        "waves2", {"ditlab.loss_components": {"sharp": "loss:Loss"}}, loss=LOSS.format(name="sharp")
    )
    assert listed(LOSS_COMPONENTS)[1] == []  # another state of the Python path, the same process
    assert not [name for name in sys.modules if name.startswith("waves_")]


def test_a_package_that_names_its_parts_in_both_groups_is_no_warning(package, forget):
    both = {group: {"wave": "family:FAMILY"} for group in ("denoisers.families", "ditlab.families")}
    package("waves3", both, family=WAVE)
    names, messages = listed()
    assert "wave" in names and messages == []


def test_a_folder_below_the_former_package_is_named_where_its_family_is_not_found(
    tmp_path, monkeypatch, forget
):
    folder = tmp_path / "denoisers" / "wave"
    folder.mkdir(parents=True)
    (folder / "family.py").write_text("raise RuntimeError('never imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert find_family("dit") and find_family("other") is None and not caught
        assert find_family("wave") is None and find_family("wave") is None
    assert [str(each.message) for each in caught] == [
        f"folder {folder} is not read, as it lies below denoisers; name it ditlab_models/wave, and import ditlab_models in place of denoisers."
    ]


def test_a_package_that_cannot_be_read_hinders_no_others(package, tmp_path, monkeypatch):
    # reading it is an error
    (tmp_path / "torn" / "torn-1.0.dist-info" / "entry_points.txt").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "torn")
    waves(package, "whole")
    assert "wave" in family_names()
