"""Folders that a person names: links are followed once, and those that lead nowhere end in a
sentence.
"""

import pytest

from ditlab.errors import UserError
from ditlab.home import Home, resolve_user_path
from support.command import run_inside


def test_links_to_a_folder_are_followed(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "link"))
    assert resolve_user_path(tmp_path / "link") == Home.from_environment().root == tmp_path / "disk"
    monkeypatch.chdir(tmp_path)
    assert resolve_user_path("link/below") == tmp_path / "disk/below"


def test_a_name_that_no_folder_can_have(tmp_path):
    with pytest.raises(UserError, match="is no path"):
        resolve_user_path("a\0b")
    with pytest.raises(UserError, match=r"is no path .File name too long"):
        resolve_user_path("a" * 300)
    assert resolve_user_path("~nobody-of-this-name/x").name == "x"


def test_a_home_that_is_a_link_to_itself(tmp_path):
    home = tmp_path / "home"
    home.symlink_to("home")
    said = run_inside("runs", home=home, cwd=tmp_path)
    sentence = f"'{home}' is no path (Too many levels of symbolic links); correct it."
    assert (said.code, said.err) == (2, f"ditlab: {sentence}\n")


def test_a_folder_of_a_spec_that_is_a_link_to_itself(tmp_path, finished):
    circle = tmp_path / "circle"
    circle.symlink_to("circle")
    command = ("train", finished.spec, "--local", "--set", f"checkpoint.storage={circle}")
    run_inside(*command, home=tmp_path / "home", cwd=tmp_path).refused(str(circle))
