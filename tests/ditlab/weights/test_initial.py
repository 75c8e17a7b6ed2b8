"""Runs that begin from published weights: exactly these at step 0, their record, resumes, replays,
refusals.
"""

import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from ditlab.api.training import plan_training, train
from ditlab.engine.distributed import single_process
from ditlab.home import Home
from ditlab.runs.launch import weights_of
from ditlab.tracking.journal import read_content, recorded_dataset
from ditlab.training.export import export_weights
from ditlab.training.hooks import StepHook
from ditlab.training.state import CopiedState
from ditlab.training.trainer import train as train_worker
from ditlab.weights.initial import InitialWeights
from ditlab.weights.published import PublishedWeights
from ditlab_addons.check.functions import replay
from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.spec import DLMSpec
from support.damage import refused
from support.models.published_networks import sedd_weights
from support.trainings.forks import small
from support.trainings.workers import Recorder, newest, tiny, train_here, training_run


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """An export of `tiny` after a step. Leave it as it is."""
    folder = tmp_path_factory.mktemp("weights")
    train_here(tiny(training__steps=1), folder / "home", folder / "checkpoints")
    export_weights(newest(folder / "checkpoints").location, folder / "export", averaged=False)
    return folder / "export"


class FirstState(StepHook):
    """Keeps the state before the first step."""

    def attempt_begun(self, stepper, memory, saved):
        self.state = CopiedState.of(stepper.state)


def first_state(experiment, folder):
    run, seen = training_run(experiment, folder / "home", folder / "checkpoints"), FirstState()
    run = replace(run, weights=InitialWeights(experiment.model, run.home, {}))
    with single_process(False) as rank:
        train_worker(run, rank, Recorder(), [seen])
    return seen.state


@pytest.mark.parametrize(("precision", "stage"), [("fp32", 0), ("fp32", 3), ("bf16", 1)])
def test_a_run_begins_with_exactly_these_weights(export, tmp_path, precision, stage):
    """In float32 even where the network trains in another precision; so does the average."""
    spec = tiny(
        seed=9,
        training__steps=1,
        training__precision=precision,
        engine__zero={"stage": stage},
        training__ema={"decay": 0.9},
        model__init={"from": str(export)},
    )
    state, weights = first_state(spec, tmp_path), load_file(export / "weights.safetensors")
    assert len(weights) == sum(key[0] == "master" for key in state.tensors)
    for name, value in weights.items():
        for kind in ("master", "ema"):
            assert torch.equal(
                state.read(kind, f"network.{name}", 0, value.numel()), value.flatten()
            )


def test_a_run_records_its_weights_and_goes_on_without_them(export, tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    place = tmp_path / "place"
    shutil.copytree(export, place)
    said = []
    spec = small(
        training__steps=2, checkpoint={"every": 1, "keep": 5}, model__init={"from": str(place)}
    )
    first = train(spec, local=True, say=said.append, warn=print)
    assert f"begins from export weights at {place}: 34 tensors" in said
    folder = Home(tmp_path / "home").run(first.run_id)
    digest = PublishedWeights.open(str(export), "PATH", Home(tmp_path)).files.sha256
    assert recorded_dataset(folder.journal)["weights"] == {
        "source": str(place),
        "format": "export",
        "sha256": digest,
    }
    (tags,) = [
        each["values"]
        for each in read_content(folder.journal).events
        if "ditlab.weights" in str(each)
    ][:1]
    assert tags["ditlab.weights"] == f"source {place}, format export, sha256 {digest}"

    shutil.rmtree(place)
    longer = spec.replace("training.steps", 3)
    # asks for them no more
    assert train(longer, local=True, resume=first.run_id, warn=print).step == 3
    with refused("is not there; name a file or folder of weights"):
        replay(first.run_id, 1, check=True)
    place.mkdir()
    (place / "spec.yaml").write_bytes((export / "spec.yaml").read_bytes())
    weights = load_file(export / "weights.safetensors")
    save_file({name: each + 1 for name, each in weights.items()}, place / "weights.safetensors")
    with refused(f"has SHA-256 .*, and the run began with {digest}; bring those weights back"):
        replay(first.run_id, 1, check=True)
    # as a retry before the first checkpoint
    again = weights_of(spec, Home(tmp_path / "home"), folder)
    assert again is not None
    with refused(f"the run began with {digest}; bring those weights back, or start a new run"):
        again.open()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model__init": {"from": "{export}", "sha256": "0" * 64}},
            r"has SHA-256 [0-9a-f]{64}, and model\.init\.sha256 is 0{64}; bring those weights back, or set "
            r"model\.init\.sha256 to the first\.",
        ),
        (
            {"model__init": {"from": "{export}"}, "model__width": 64},
            r"\(export\) does not fit the network in 33 tensors: .*\(32,\), the network's is \(64,\).* and 28 more; set "
            r"model as `ditlab weights inspect` prints it, or model\.init\.strict to false to load what fits\.",
        ),
        (
            {"model__init": {"from": "{export}", "format": "seddd"}},
            r"model\.init\.format=seddd is no format of weights; did you mean 'sedd'\?",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_a_run_exists(
    changes,
    said,
    export,
    tmp_path,
    monkeypatch,
):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    init = {**changes["model__init"], "from": changes["model__init"]["from"].format(export=export)}
    with refused(said):
        plan_training(small(**{**changes, "model__init": init}), local=True)
    assert not (tmp_path / "home" / "train").exists()


def test_without_strict_what_fits_is_loaded_and_the_rest_named(export, tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    weights = load_file(export / "weights.safetensors")
    gone = next(name for name in weights if name.endswith("bias"))
    save_file(
        {name: each for name, each in weights.items() if name != gone} | {"extra": torch.zeros(1)},
        tmp_path / "weights.safetensors",
    )
    init = {"from": str(tmp_path / "weights.safetensors"), "format": "export", "strict": False}
    spec = tiny(seed=9, training__steps=1, model__init=init)
    plan = plan_training(small(model__init=init), local=True)
    assert f"33 tensors; 2 do not fit: {gone} is missing; extra has no place" in "\n".join(
        plan.notes
    )
    state = first_state(spec, tmp_path)
    for name, value in weights.items():
        same = torch.equal(
            state.read("master", f"network.{name}", 0, value.numel()), value.flatten()
        )
        assert same or name == gone


def test_other_settings_that_no_shape_shows_are_refused(tmp_path):
    save_file(sedd_weights(23, 32, 1, 4, torch.float32), tmp_path / "sedd.safetensors")
    sizes = {"vocabulary": 23, "width": 32, "depth": 1, "mlp": "gelu", "final_norm": False}
    init = {"from": str(tmp_path / "sedd.safetensors")}
    model = DLMSpec.model_validate({**sizes, "num_heads": 2, "norm": "layer", "init": init})
    with refused("was trained with model.num_heads=4, and model.num_heads=2 makes other"):
        InitialWeights(model, Home(tmp_path), {}).load(FAMILY.build_network(model))


def test_a_fork_takes_no_published_weights():
    with refused(
        r"model\.init\.from='x' and start\.run=abc exclude each other, .*; set "
        r"model\.init to null, or leave start out\."
    ):
        tiny().replace_all({"model.init": {"from": "x"}, "start": {"run": "abc", "step": 1}})
