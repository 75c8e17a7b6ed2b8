"""A RUN that leads out of DITLAB_HOME is an unknown run, as is one that is not there."""

import pytest

NAMES = ["../../etc", "..", ".", "/etc", "train/../..", "a/b", "nope"]


@pytest.mark.parametrize(
    "command",
    [
        "sample RUN",
        "evaluate RUN",
        "figures RUN",
        "export RUN --out exported",
        "compare RUN RUN",
        "runs sync RUN",
        "train small.yaml --local --resume RUN",
        "tune --resume RUN",
    ],
)
def test_it_is_unknown(ditlab, home, spec, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "etc").mkdir()
    for name in NAMES:
        ditlab(*command.replace("RUN", name).split()).refused(f"run '{name}' is unknown")
    assert not (tmp_path / "exported").exists() and not list((tmp_path / "etc").iterdir())
    assert not list(home.glob("train/*"))
