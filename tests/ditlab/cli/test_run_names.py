"""A RUN that leads out of DITLAB_HOME is an unknown run, as is one that is not there."""

import pytest

NAMES = ["../../etc", "..", ".", "/etc", "train/../..", "a/b", "nope"]
COMMANDS = {
    "sample": ("sample", "{}"),
    "evaluate": ("evaluate", "{}"),
    "figures": ("figures", "{}"),
    "export": ("export", "{}", "--out", "exported"),
    "compare": ("compare", "{}", "{}"),
    "sync": ("runs", "sync", "{}"),
    "train": ("train", "SPEC", "--local", "--resume", "{}"),
    "tune": ("tune", "--resume", "{}"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_unknown(ditlab, home, spec, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "etc").mkdir()
    for name in NAMES:
        ditlab(
            *(str(spec) if part == "SPEC" else part.format(name) for part in COMMANDS[command])
        ).refused(f"run '{name}' is unknown")
    assert not (tmp_path / "exported").exists() and not list((tmp_path / "etc").iterdir())
    assert not list(home.glob("train/*"))
