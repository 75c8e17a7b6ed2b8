"""Attention by tiles under the engine: a mask that is no tensor passes ZeRO's hooks, recomputation
and offload.
"""

import pytest

from ditlab_models.dlm import network
from support.devices.reference_flex import use_reference_flex
from support.trainings.family_specs import BLOCKS
from support.trainings.workers import tiny, train_here


@pytest.mark.slow
def test_losses_are_those_of_dense_attention(tmp_path, monkeypatch):
    """Within 1e-5 relatively, over two updates."""
    use_reference_flex(monkeypatch)
    for engine in (
        {"zero": {"stage": 1}, "activation_checkpointing": True},
        {"zero": {"stage": 0}, "activation_offload": "cpu"},
        {"zero": {"stage": 3}},
        {"zero": {"stage": 3}, "activation_checkpointing": True},
    ):
        losses = []
        for backend in ("dense", "flex"):
            monkeypatch.setattr(network, "attention_backend", lambda *of, backend=backend: backend)
            spec = tiny(**BLOCKS, engine=engine, training__steps=3, checkpoint__every=None)
            losses.append(
                train_here(spec, tmp_path / "home", tmp_path / f"{backend} {engine}")[1].losses
            )
        assert [*losses[0]] == [1, 2, 3] and losses[1] == pytest.approx(losses[0], rel=1e-5), engine
