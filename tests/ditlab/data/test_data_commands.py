import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def ditlab(tmp_path: Path):
    """Runs `ditlab data ...` with a home of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", "from ditlab.cli.main import main; main()", "data", *arguments],
            env=os.environ | {"DITLAB_HOME": str(tmp_path / "home"), "COLUMNS": "120"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    return run


def last_line(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_and_inspect_digits(ditlab, tmp_path):
    imported = ditlab("import", "digits", "--json")
    (store,) = last_line(imported)["stores"]
    assert (store["name"], store["rows"], store["outcome"]) == ("digits", 1797, "written")
    assert len(imported.stdout.splitlines()) == 1
    assert "already there, unchanged" in ditlab("import", "digits").stderr
    seen = last_line(ditlab("inspect", "digits", "--num", "5", "--json"))
    assert seen["fingerprint"] == store["fingerprint"]
    assert seen["columns"]["label"]["statistics"]["class_counts"][0] == 178
    assert Path(seen["picture"]).is_relative_to(tmp_path / "home")
    assert Path(seen["picture"]).read_bytes().startswith(b"\x89PNG")
    table = ditlab("inspect", store["path"], "--out", "grid.png")
    assert store["fingerprint"] in table.stdout and "(1, 8, 8)" in table.stdout
    assert (tmp_path / "grid.png").exists()


def test_import_mnist_from_a_folder_into_another(ditlab, tmp_path, write_idx):
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", np.zeros((4, 28, 28)))
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.arange(4))
    refused = ditlab("import", "mnist", "--source", ".")
    assert refused.returncode == 2
    assert "--no-checksum" in refused.stderr and "Traceback" not in refused.stderr
    done = ditlab("import", "mnist", "--source", ".", "--no-checksum", "--out", "elsewhere", "--json")
    assert last_line(done)["stores"][0]["path"].endswith("elsewhere/mnist-test")
    assert "--no-checksum" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("import", "digit"), "there is no importer 'digit'; did you mean 'digits'?"),
        (("inspect", "nothing"), "nothing holds no store"),
        (("import", "digits", "--source", "."), "digits come with scikit-learn"),
    ],
)
def test_mistakes_end_with_2_and_the_remedy(ditlab, arguments, message):
    done = ditlab(*arguments)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_store_without_images_has_no_picture(ditlab, tmp_path):
    from ditlab.data.manifest import Column, Source
    from ditlab.data.writer import StoreWriter

    column = Column(dtype="int64", shape=(6,), unit="token")
    with StoreWriter(tmp_path / "tokens", {"tokens": column}, name="tokens", source=Source(kind="t")) as writer:
        writer.append({"tokens": np.zeros((3, 6), np.int64)})
    assert last_line(ditlab("inspect", "tokens", "--json"))["picture"] is None
