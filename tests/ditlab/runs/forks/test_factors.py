"""Settings that no tensor shows are compared with the parent's."""

import pytest

import ditlab
from ditlab.api.training import plan_training
from support.trainings.forks import small

LORA = {"rank": 2, "alpha": 4.0, "targets": ["*.attention"]}


@pytest.mark.parametrize("weights_only", [False, True])
def test_other_factors_than_the_parents_are_said(home, weights_only):
    ditlab.train(small(name="adapted", training={"steps": 2, "lora": LORA}), local=True, warn=print)

    def line(model=None, **lora):
        training = {"steps": 4, "lora": {**LORA, **lora}}
        spec = small(name="fork", training=training, **(model or {}))
        notes = plan_training(
            spec, local=True, start_from="adapted@2", weights_only=weights_only
        ).notes
        return next(each for each in notes if each.startswith("fork of run"))

    assert "something else" not in line()
    assert (
        "trained with training.lora.alpha=4.0 and compute something else with this spec's training.lora.alpha"
        in line(alpha=8.0)
    )
    assert "trained with model.num_heads=2 and" in line({"model__num_heads": 4})
