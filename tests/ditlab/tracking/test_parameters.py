"""Flat parameters, names that MLflow takes, and the environment's text."""

import platform
import sys

from ditlab.tracking.environment import environment
from ditlab.tracking.names import PARAM_LENGTH, flatten, safe_image_key, safe_key, shorten


def test_a_spec_becomes_dotted_parameters():
    spec = {
        "name": "digits",
        "optimizer": {"lr": 1e-5, "betas": [0.9, 0.999]},
        "checkpoint": {"storage": None},
        "engine": {"compile": False, "extra": {}},
        "layers": [{"width": 1}, {"width": 2}],
    }
    assert flatten(spec) == {
        "name": "digits",
        "optimizer.lr": "1e-05",
        "optimizer.betas": "[0.9, 0.999]",
        "checkpoint.storage": "null",
        "engine.compile": "false",
        "engine.extra": "{}",
        "layers.0.width": "1",
        "layers.1.width": "2",
    }
    assert flatten({}) == {}


def test_what_is_cut_is_seen_to_be_cut():
    assert shorten("short", 6000) == "short"
    cut = shorten("x" * 9000, PARAM_LENGTH)
    assert len(cut) <= PARAM_LENGTH and cut.endswith("… (3040 more characters)")


def test_names_are_made_to_fit():
    assert safe_key("train/loss") == "train/loss"
    assert safe_key("/a//b/../c=1 ☃") == "a/b/c_1 _"
    assert safe_key("..") == "_"
    assert len(safe_key("x" * 300)) == 250
    assert safe_image_key("samples/t=0:5") == "samples/t_0_5"


def test_the_environment_names_versions_and_keeps_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_TEST_SECRET", "not-for-others")
    monkeypatch.chdir(tmp_path)
    text = environment()
    assert f"python {sys.version.split()[0]}" in text
    assert "\nmlflow==" in text and "git none" in text
    assert "not-for-others" not in text and platform.node() not in text.split()
