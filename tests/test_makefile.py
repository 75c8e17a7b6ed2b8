"""The Makefile's choice of a Python, and what it says where it finds none or a package is missing
for it.
"""

import os
import shutil
import subprocess
import sys

import pytest

from support.documents import CHECKOUT


@pytest.fixture
def commands(tmp_path):
    """A folder of commands that stands first on the path, where every Python is too old."""
    folder = tmp_path / "commands"
    folder.mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    shutil.copy(CHECKOUT / "Makefile", tmp_path)
    return folder


def make(folder, *arguments, **variables):
    path = f"{folder / 'commands'}{os.pathsep}{os.environ['PATH']}"
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHON", "MAKEFLAGS")
    }
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env={**environment, "PATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_first_python_that_is_new_enough_makes_the_environment(commands, tmp_path):
    (commands / "python3.12").unlink()
    (commands / "python3.12").symlink_to(sys.executable)
    assert "python3.12 -m venv .venv" in make(tmp_path, "--dry-run", ".venv/bin/python").stdout


def test_a_machine_without_one_is_told_what_to_name(commands, tmp_path):
    done = make(tmp_path, ".venv/bin/python")
    assert done.returncode == 2
    assert "DiTLab needs Python 3.11 or newer" in done.stderr and "PYTHON=" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.slow
def test_half_an_environment_does_not_pass_for_a_whole_one(commands, tmp_path):
    (commands / "python3").write_text(
        f'#!/bin/sh\ncase "$1" in -c) exec {sys.executable} "$@";; esac\nmkdir $3; exit 1\n'
    )
    assert make(tmp_path, ".venv/bin/python").returncode == 2
    assert not (tmp_path / ".venv").exists()


@pytest.mark.slow
def test_a_package_that_pip_does_not_find_is_named(commands, tmp_path):
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(CHECKOUT / name, tmp_path)
    done = make(
        tmp_path, "install", f"PYTHON={sys.executable}", PIP_NO_INDEX="1", PIP_FIND_LINKS=""
    )
    assert done.returncode == 2
    assert ".venv is made with Python" in done.stdout
    assert "pip found no hatchling>=1.26 for Python" in done.stderr
    other = make(tmp_path, "install", "PYTHON=false")
    assert "run make clean first" in other.stderr
