"""Optimisers and parameter groups as fields: defaults that change no run, rates by role,
refusals.
"""

import pytest

from ditlab.errors import UserError
from ditlab.spec.experiment import validate_experiment
from ditlab.spec.optimization import AdamW
from support.trainings.workers import TINY, tiny


def test_fields_that_say_the_default_change_no_hash():
    """Runs of before there were roles are found by their hash."""
    spec = {
        "kind": "adamw",
        "lr": 1e-3,
        "no_decay": [],
        "lr_factors": {"matrix": 1.0, "scalar": 1.0},
    }
    assert (
        tiny(optimizer=spec).content_hash()
        == tiny(optimizer={"lr": 1e-3}).content_hash()
        == "0ee1eb77b1c0eac0"
    )
    changed = [{"no_decay": ["norm"]}, {"lr_factors": {"head": 2.0}}]
    assert (
        len({tiny(optimizer={"lr": 1e-3, **each}).content_hash() for each in [{}, *changed]}) == 3
    )


def test_rates_by_role():
    adamw = AdamW(weight_decay=0.1, no_decay=("norm", "bias"), lr_factors={"head": 0.5})
    assert [
        (adamw.rates(role).lr_factor, adamw.rates(role).weight_decay)
        for role in ("matrix", "norm", "head")
    ] == [(1.0, 0.1), (1.0, 0.0), (0.5, 0.1)]


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (
            {"no_decay": ["norms"]},
            "optimizer.no_decay.0='norms' must be 'matrix', 'convolution', 'input'",
        ),
        ({"no_decay": ["norm", "norm"]}, "optimizer.no_decay=['norm', 'norm'] names a role twice"),
    ],
)
def test_refusals(optimizer, message):
    with pytest.raises(UserError) as caught:
        validate_experiment({**TINY, "optimizer": optimizer})
    assert message in str(caught.value)
