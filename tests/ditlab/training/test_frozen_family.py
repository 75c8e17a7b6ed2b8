"""A family whose network freezes a part of itself: what does not train is said, and the rest trains
as with `training.freeze`.
"""

import pytest
import torch
from safetensors.torch import load_file

import ditlab
from ditlab.errors import UserError
from ditlab.runs.launch import build_model
from ditlab.tracking.history import JournalFacts
from ditlab.tracking.journal import read_content
from ditlab_models.dit.network import DiT
from support.trainings.workers import newest, tiny, train_here


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
    train_here(tiny(), home, tmp_path / "whole")
    train_here(tiny(), home, tmp_path / "half", stop_after=4)
    train_here(tiny(), home, tmp_path / "half")
    one = newest(tmp_path / "whole")
    two = newest(tmp_path / "half").weights()
    assert all(torch.equal(values, two[name]) for name, values in one.weights().items())
    for name, shape in one.manifest.shapes.items():
        fields = {field for _, field, owner, *_ in one.manifest.pieces if owner == name}
        if ".blocks.0." in f".{name}":
            assert fields == {"frozen"}, name
        elif name not in one.manifest.buffers:
            assert {"master", "exp_avg", "ema"} <= fields, name
            assert one.read("exp_avg", name, 0, torch.Size(shape).numel()).any(), name


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
    counts = build_model(tiny(training__freeze=["blocks", "*embed*.weight"])).counts
    assert "blocks" in counts.not_trained
    assert sum(counts.not_trained.values()) == counts.frozen
    assert build_model(tiny()).counts.not_trained == {}
    every = build_model(tiny(training__freeze=["blocks.*.mlp"])).counts.not_trained
    assert list(every) == ["blocks.*.mlp"]


def test_a_family_that_freezes_everything_is_refused(freezing):
    freezing("")
    with pytest.raises(
        UserError, match=r"model\.family=dit freezes every parameter.*requires_grad"
    ):
        build_model(tiny())
