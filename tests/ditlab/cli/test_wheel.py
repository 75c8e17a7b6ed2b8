"""DiTLab from its wheel: what it needs to begin is in it, whatever folder it is used in, and
nothing else.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from support.documents import CHECKOUT

CHANGES = [
    "training.steps=3",
    "schedule.warmup=1",
    "evaluation.samples=0",
    "tracking.system_metrics=false",
]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_spec_is_written_and_trained_with_nothing_but_the_wheel(tmp_path):
    ours = ("PYTHONPATH", "DITLAB_HOME")
    environment = {key: value for key, value in os.environ.items() if key not in ours}

    def run(*command, cwd=tmp_path):
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel")
    run(*build, "-d", tmp_path / "dist", cwd=CHECKOUT)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python, ditlab = tmp_path / "venv/bin/python", tmp_path / "venv/bin/ditlab"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    [site] = (tmp_path / "venv/lib").glob("*/site-packages")
    # What DiTLab depends on; a folder that is named so has its own .pth files, such as a
    # checkout's, left out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert Path(run(python, "-c", "import ditlab; print(ditlab.__file__)").strip()).is_relative_to(
        site
    )
    assert run(ditlab, "new", "mine", "--like", "digits/dit") == "mine.yaml\n"
    settings = [part for change in CHANGES for part in ("--set", change)]
    result = json.loads(
        run(ditlab, "train", "mine.yaml", "--local", *settings, "--json").splitlines()[-1]
    )
    assert (result["status"], result["step"]) == ("finished", 3)
    assert (tmp_path / "runs/train" / result["run_id"] / "spec.yaml").is_file()


def test_wheel_and_source_archive_are_small_and_hold_the_product_alone(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True, timeout=120)
    [wheel], [archive] = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        archived = [Path(*Path(name).parts[1:]) for name in files.getnames()]
    packed = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    top = {path.parts[0] for path in archived}
    assert top == {
        "platform",
        "models",
        "experiments",
        "README.md",
        "LICENSE",
        "constraints.txt",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }
    assert {path.parts[0] for path in packed} == {
        "ditlab",
        "ditlab_addons",
        "ditlab_models",
        packed[-1].parts[0],
    }
    assert not [
        path for path in (*archived, *packed) if path.suffix in (".png", ".svg", ".gif", ".ipynb")
    ]
    assert max(wheel.stat().st_size, archive.stat().st_size) < 3e6
