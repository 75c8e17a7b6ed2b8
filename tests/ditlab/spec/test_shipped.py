"""Shipped files are valid: experiments, which build the networks that they name, and sweeps."""

import re

import pytest

from ditlab.errors import UserError
from ditlab.spec.experiment import class_for
from ditlab.spec.files import load_experiment
from ditlab.spec.schema import experiment_schema, sweep_schema
from ditlab.spec.sweep import load_sweep
from ditlab.spec.sweep_space import check_sweep
from ditlab.spec.yaml_text import parse_yaml
from ditlab_models.parameters import count_parameters
from support.specs import EXPERIMENTS, FILES, SWEEPS, refusal

COUNTS = {
    "mnist/dit.yaml": 12_351_760,
    "mnist/unet.yaml": 1_837_185,
    "dlm/uniform.yaml": 79_245_649,
    "region/get.yaml": 128_767_003,
}


def label(path):
    return str(path.relative_to(EXPERIMENTS))


@pytest.fixture(scope="module")
def validator():
    jsonschema = pytest.importorskip("jsonschema")
    return jsonschema.Draft202012Validator(experiment_schema())


@pytest.mark.parametrize("path", FILES, ids=label)
def test_loads_builds_and_counts(path):
    experiment = load_experiment(path)
    experiment.family.build_sampler(experiment.sampling, experiment.model, experiment.objective)
    counts = count_parameters(experiment.model, experiment.objective)
    assert counts.total == COUNTS.get(label(path), counts.total) > 0
    assert class_for(experiment.to_dict()).model_validate(experiment.to_dict()) == experiment


@pytest.mark.parametrize("path", FILES, ids=label)
def test_fits_the_json_schema(path, validator):
    validator.validate(parse_yaml(path.read_text(encoding="utf-8"), path.name))
    validator.validate(load_experiment(path).to_dict())


@pytest.mark.parametrize("path", SWEEPS, ids=label)
def test_sweeps_are_checked_through(path):
    jsonschema = pytest.importorskip("jsonschema")
    check_sweep(load_sweep(path), label(path))
    jsonschema.Draft202012Validator(sweep_schema()).validate(
        parse_yaml(path.read_text(encoding="utf-8"), path.name)
    )


def test_a_shorter_run_names_what_else_to_set():
    """Setting what the messages say, one after the other, makes 30 steps of every shipped
    experiment.
    """
    for path in FILES:
        overrides = ["training.steps=30"]
        for _ in range(3):
            try:
                experiment = load_experiment(path, overrides)
            except UserError as error:
                remedy = re.search(r"set ([a-z_.]+) to ([\w.]+)", str(error))
                assert remedy, str(error)
                overrides.append(f"{remedy[1]}={remedy[2]}")
        assert experiment.training.steps == 30, label(path)
    said = refusal(load_experiment, EXPERIMENTS / "dlm/uniform.yaml", ["training.steps=30"])
    assert said.endswith("set schedule.warmup to 3, or training.steps above 100.")


def test_null_samples_are_none():
    experiment = load_experiment(
        EXPERIMENTS / "digits/dit.yaml", ["evaluation.quality=null", "evaluation.samples=null"]
    )
    assert (experiment.evaluation.quality, experiment.evaluation.samples) == (0, 0)


def test_names_are_unique():
    names = [load_experiment(path).name for path in FILES] + [
        load_sweep(path).name for path in SWEEPS
    ]
    assert len(set(names)) == len(names)
