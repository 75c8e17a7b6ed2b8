"""Every mistake in a spec is one sentence with field, value and remedy."""

import pytest

from ditlab.errors import UserError
from ditlab.spec.files import build_experiment, load_experiment
from ditlab.spec.overrides import merge, nested
from ditlab.spec.values import format_value
from support.damage import refused

GAUSSIAN = {"model.variance_channels": "predicted", "objective.process": "gaussian"}
MISTAKES = [
    (
        {"resources.network.timeout": 300},
        "resources.network.timeout=300 is not longer than resources.hang_timeout=600, whose",
    ),
    ({"trainign.steps": 3}, "trainign={steps: 3} is no known field; did you mean 'training'?"),
    ({"model.dpeth": 3}, "model.family=dit has no field 'dpeth=3'; did you mean 'depth'?"),
    (
        {"evaluation.where": "async"},
        "evaluation.where='async' is no known field; did you mean 'evaluation.mode'?",
    ),
    (
        {"optimizer.learning_rate": 1},
        "has no field 'learning_rate=1'; did you mean 'optimizer.lr'?",
    ),
    ({"optimizer.lr": "fast"}, "optimizer.lr='fast' must be a number."),
    ({"optimizer.lr": float("inf")}, "optimizer.lr=inf must be finite."),
    ({"optimizer.betas": 0.9}, "optimizer.betas=0.9 must be a list."),
    (
        {"optimizer.no_decay": ["norms"]},
        "optimizer.no_decay.0='norms' must be 'matrix', 'convolution', 'input'",
    ),
    ({"optimizer.no_decay": ["norm", "norm"]}, "no_decay=['norm', 'norm'] names a role twice"),
    ({"engine.compile": 1}, "engine.compile=1 must be true, false or auto."),
    (
        {"training.precision": "fp8"},
        "training.precision='fp8' must be 'fp32', 'bf16' or 'fp16'.",
    ),
    ({"training": None}, "training=null must be a mapping of fields (steps, epochs,"),
    (
        {"data.hold_out": 0.1},
        "data.kind is missing; set it to one of digits, captioned_digits, mnist, arrow",
    ),
    ({"data.kind": "minst"}, "data.kind='minst' is unknown; did you mean 'mnist'?"),
    (
        {"resources.workers": {"min": 8, "max": 2}},
        "resources.workers={min: 8, max: 2} is no range; write",
    ),
    (
        {"resources.workers": {"min": 1, "max": 9}, "batch.size": 64, "batch.micro": 16},
        "of up to 9 workers one;",
    ),
    (
        {"engine.zero.offload": "cpu", "engine.zero.stage": 0},
        "and engine.zero.stage=0 has none; set engine.zero.stage",
    ),
    (
        {"engine.zero.offload_parameters": "cpu"},
        "engine.zero.stage=1 has none; set engine.zero.stage to 3.",
    ),
    (
        {"training.clip.kind": "zclip", "training.clip.ratio": 2},
        "has no field 'ratio=2'; set training.clip.kind to zclip_",
    ),
    ({"optimizer.kind": ["adamw"]}, "is unknown; did you mean 'adamw'?"),
    ({"schedule.kind": {}}, "schedule.kind='{}' is unknown; known: constant"),
    (
        {"notify": [{"on": ["finish"], "to": "env:A"}]},
        "notify.0.on.0='finish' must be 'finished', 'failed'",
    ),
    (
        {"notify": [{"on": [], "to": "env:A"}]},
        "notify.on=[] names no event; write some, such as [finished, failed]",
    ),
    (
        {"training.steps": None},
        "training.steps and training.epochs are both null; give one of them.",
    ),
    (
        {"objective.process": "gausian"},
        "objective.process='gausian' is unknown; did you mean 'gaussian'?",
    ),
    (
        {"objective.process": "gaussian", "objective.variance": "beta"},
        "objective.weights.bound=0.001 trains a learned variance, and objective.variance=beta is fixed; set",
    ),
    (
        {"objective.process": "gaussian", "objective.weights.noise": 0.0},
        "objective.weights.noise=0 leaves the",
    ),
    (
        {"objective.process": "gaussian", "sampling.solver": "heun"},
        "sampling.solver=heun is for objective.process=flow, and",
    ),
    ({"sampling.solver": ["euler"]}, "sampling.solver=['euler'] must be"),
    (
        {"sampling.solver": "ddpm"},
        "sampling.solver=ddpm is for objective.process=gaussian, and",
    ),
    (
        {**GAUSSIAN, "sampling.steps": 2000},
        "sampling.steps=2000 is more than objective.noise.steps=1000; set",
    ),
    (
        {**GAUSSIAN, "sampling.eta": 0.5},
        "sampling.eta=0.5 is read by sampling.solver=ddim alone (it is ddpm);",
    ),
    (
        {**GAUSSIAN, "sampling.guided_channels": 3},
        "sampling.guided_channels=3 is more than model.channels=1; set",
    ),
    (
        {"encoders.text": "x"},
        "encoders.text=x is used by nothing, as this model (model.family",
    ),
    (
        {"data.kind": "text", "data.packing": "masked"},
        "model.family=dit reads no documents; set data",
    ),
    (
        {"data.kind": "gaussian_mixture", "data.num": 1_000_000, "data.dimensions": 200},
        "data.num=1000000",
    ),
    ({"data.kind": "gaussian_mixture", "data.std": 0.2}, "data.std"),
    (
        {"data.kind": "markov_chain", "data.num": 1_000_000, "data.length": 100_000},
        "data.length=100000",
    ),
    ({"name": "a/b"}, "name='a/b' must begin with a letter or digit"),
    ({"name": 12}, "name=12 must be text (in quotes"),
    ({"seed": -1}, "seed=-1 must be at least 0."),
    ({"seed": 2**63}, "seed=9223372036854775808 must be below 9,223,372,036,854,775,808."),
    ({"tracking.experiment": ""}, "tracking.experiment='' must be at least a character long."),
]


def changed(small, change):
    """An experiment with other values, by their dotted paths."""
    for path, value in change.items():
        small = merge(small, nested(path.split("."), value))
    return build_experiment(small, "spec.yaml")


def mistakes(small, change):
    with pytest.raises(UserError) as error:
        changed(small, change)
    return str(error.value).splitlines()


@pytest.mark.parametrize(("change", "said"), MISTAKES)
def test_one_sentence_with_knob_value_and_remedy(small, change, said):
    lines = mistakes(small, change)
    assert len(lines) == 1
    assert lines[0].startswith("spec.yaml: ") and said in lines[0]


def test_low_precision_needs_partitions(small):
    change = {"training.precision": "bf16", "engine.zero.stage": 0}
    (line,) = mistakes(small, change)
    assert "training.precision=bf16 with engine.zero.stage=0" in line
    assert "set engine.zero.stage to 1" in line
    changed(small, change | {"engine.zero.stage": 1})


def test_all_mistakes_at_once(small):
    lines = mistakes(small, {"model.dpeth": 3, "optimizer.lr": -1, "seed": "x"})
    assert len(lines) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a" * 100_000},
        {"seed": list(range(100_000))},
        {"seed": {f"k{index}": index for index in range(10_000)}},
        {"batch": {"size": 10**400}},
        {"x" * 50_000: 1},
    ],
)
def test_huge_values_are_cut(small, change):
    for line in mistakes(small, change):
        assert len(line) < 600


def test_values_as_yaml_writes_them():
    assert format_value(None) == "null"
    assert format_value([True, 1.5, "x", {"a": None}]) == "[true, 1.5, 'x', {a: null}]"
    assert format_value("x" * 1000).endswith("(1002 characters)")


def test_a_missing_file_has_its_neighbours_name(tmp_path):
    (tmp_path / "pictures.yaml").touch()
    with refused(r"no such file \(did you mean 'pictures\.yaml'\?\); give"):
        load_experiment(tmp_path / "picturs.yaml")
    with refused("no such file; give"):
        load_experiment(tmp_path / "other.yaml")
