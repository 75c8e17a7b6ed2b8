"""A family whose network freezes a part of itself: what does not train is said, and the rest trains
as with `training.freeze`.
"""

import pytest
from safetensors.torch import load_file

import ditlab
from ditlab.runs.launch import build_model
from ditlab.tracking.history import JournalFacts
from ditlab.tracking.journal import read_content
from ditlab_models.dit.network import DiT
from support.damage import refused
from support.trainings.workers import contents, newest, resumed_exactly, tiny


@pytest.fixture
def freezing(monkeypatch):
    """Makes every DiT freeze the parts of these names itself."""

    def freeze(*names):
        def build(self, *arguments, _init=DiT.__init__, **named):
            _init(self, *arguments, **named)
            for name in names:
                self.get_submodule(name).requires_grad_(False)

        monkeypatch.setattr(DiT, "__init__", build)

    return freeze


def test_a_frozen_block_stays_and_the_rest_trains(home, tmp_path, freezing):
    """Through a resume: weights, moments, average and checkpoint."""
    freezing("blocks.0")
    resumed_exactly(tiny(), home, tmp_path, 4)
    reader = newest(tmp_path / "whole")
    found = contents(reader)
    for name in reader.manifest.shapes.keys() - set(reader.manifest.buffers):
        if ".blocks.0." in f".{name}":
            assert {field for field, owner in found if owner == name} == {"frozen"}, name
        else:
            assert found["exp_avg", name].any() and ("ema", name) in found, name


def test_what_does_not_train_is_said_and_recorded(tmp_path, monkeypatch, freezing):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path))
    freezing("blocks.0")
    experiment = tiny()
    plan = ditlab.plan_training(experiment, local=True)
    ((name, number),) = plan.not_trained.items()
    expected = sum(each.numel() for each in build_model(experiment).network.blocks[0].parameters())
    assert (name, number) == ("blocks.0", expected)
    said = f"not trained (as the family freezes them itself): blocks.0 ({expected:,})"
    assert said in plan.notes
    lines = []
    result = ditlab.train(experiment, local=True, say=lines.append, warn=print)
    assert said in lines
    run = ditlab.open_run(result.run_id)
    tags = JournalFacts.of(read_content(run.folder.journal)).tags
    assert tags["ditlab.not_trained"] == f"blocks.0 ({expected:,})"
    weights = load_file(run.export(tmp_path / "export").files[0])
    assert any("blocks.0." in each for each in weights)


def test_frozen_parts_of_a_spec_are_named_with_it():
    counts = build_model(tiny(training__freeze=["blocks.*.mlp"])).counts
    assert counts.not_trained == {"blocks.*.mlp": counts.frozen} and counts.frozen > 0
    assert build_model(tiny()).counts.not_trained == {}


def test_a_family_that_freezes_everything_is_refused(freezing):
    freezing("")
    with refused(r"model\.family=dit freezes every parameter.*requires_grad"):
        build_model(tiny())
