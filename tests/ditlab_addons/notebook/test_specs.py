"""Specs and sweeps in a notebook: what differs from the defaults first, and nothing in them is
markup.
"""

import pytest

import ditlab
from ditlab.spec.overrides import spec_fields
from ditlab_addons.notebook.html import shown
from support.clusters.nodes import CHECKOUT
from support.plain_html import PlainHtml

EXPERIMENTS = CHECKOUT / "experiments"
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>'\"&lt;"


def leaves(mapping, fields, prefix=""):
    """Paths of a dumped spec, down to those that are fields."""
    found = set()
    for key, value in mapping.items():
        path = f"{prefix}{key}"
        below = isinstance(value, dict) and path not in fields
        found |= leaves(value, fields, f"{path}.") if below else {path}
    return found


@pytest.mark.parametrize(
    "file", sorted(EXPERIMENTS.glob("*/small.yaml")), ids=lambda file: file.parent.name
)
def test_every_field_is_listed(file):
    spec = ditlab.load(file)
    fields = {path for path, *_ in spec_fields(spec)}
    assert leaves(spec.to_dict(), fields) == fields


def test_an_experiment_is_shown():
    spec = ditlab.load(EXPERIMENTS / "digits/dit_class.yaml")
    page = PlainHtml(spec._repr_html_())
    assert page.text.startswith("digits-dit-class : family dit, 2,400 steps of 128 samples")
    for field in (
        "model.num_classes 10 null",
        "optimizer.lr 0.001 0.0001",
        "schedule.warmup 50 0",
        "training.steps 2400 null",
    ):
        assert field in page.text
    long = ditlab.load(EXPERIMENTS / "pixelhdm/base.yaml")
    assert " epochs of " in PlainHtml(long._repr_html_()).text
    for field in ("seed", "batch.size", "data.kind", "engine.kind", "weight_decay"):
        assert field not in page.text


def test_values_are_text():
    spec = ditlab.load(EXPERIMENTS / "pixelhdm/small.yaml").replace_all(
        {
            "tracking.experiment": MARKUP,
            "model.text_length": 200,
            "sampling.prompts": ["a red seven", MARKUP, "\u202edesrever"],
        }
    )
    page = PlainHtml(spec._repr_html_())
    assert page.text.count("<script>alert(1)") == 2
    assert "u202edesrever" in page.text
    assert "\u202e" not in page.text
    long = spec.replace("tracking.experiment", "x" * 10_000)._repr_html_()
    assert "9,700 more characters" in long and "x" * 301 not in long


def test_secrets_are_hidden_before_a_text_is_cut(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abcdefghijklmnop")
    assert "abc" not in shown("x" * 295 + "abcdefghijklmnop" + "y" * 900)
    assert shown("abcdefghijklmnop") == "***"


def test_a_sweep_is_shown():
    sweep = ditlab.load_sweep(EXPERIMENTS / "digits/sweep_schedule.yaml")
    page = PlainHtml(sweep._repr_html_())
    assert page.text.startswith("digits-schedule : sweep over 6 axes")
    assert "metric eval/velocity" in page.text and '"training.steps": 400' in page.text
    for file in EXPERIMENTS.glob("*/*sweep*.yaml"):
        PlainHtml(ditlab.load_sweep(file)._repr_html_())


def test_a_display_never_fails(monkeypatch):
    spec = ditlab.load(EXPERIMENTS / "digits/dit_class.yaml")

    def broken(*_):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr("ditlab_addons.notebook.specs.card", broken)
        assert spec._repr_html_() is None
    monkeypatch.setattr("ditlab.parts.named", lambda field: {})  # without the add-on
    assert spec._repr_html_() is None
