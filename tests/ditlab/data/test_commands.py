"""Commands `ditlab data import` and `ditlab data inspect`: output, files, exit codes."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.command import run_inside
from support.datasets.photographs import captioned_folder, smooth


@pytest.fixture
def ditlab(tmp_path, monkeypatch):
    """Run `ditlab data ...` with a home of its own."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments):
        return run_inside("data", *arguments, home=tmp_path / "home", cwd=tmp_path)

    return run


def test_import_and_inspect_digits(ditlab, tmp_path):
    imported = ditlab("import", "digits", "--json")
    (store,) = imported.ok().json["stores"]
    assert (store["name"], store["rows"], store["outcome"]) == ("digits", 1797, "written")
    assert len(imported.out.splitlines()) == 1
    assert "already there, unchanged" in ditlab("import", "digits").err
    seen = ditlab("inspect", "digits", "--num", "5", "--json").ok().json
    assert seen["fingerprint"] == store["fingerprint"]
    assert seen["columns"]["label"]["statistics"]["class_counts"][0] == 178
    assert Path(seen["picture"]).is_relative_to(tmp_path / "home")
    assert Path(seen["picture"]).read_bytes().startswith(b"\x89PNG")
    assert "(1, 8, 8)" in ditlab("inspect", store["path"], "--out", "grid.png").out
    assert (tmp_path / "grid.png").exists()


def test_import_mnist_from_a_folder_into_another(ditlab, tmp_path, write_idx):
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", np.zeros((4, 28, 28)))
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.arange(4))
    done = ditlab(
        "import", "mnist", "--source", ".", "--no-checksum", "--out", "elsewhere", "--json"
    )
    assert Path(done.ok().json["stores"][0]["path"]).match("elsewhere/mnist-test@*")
    assert "--no-checksum" in done.err


def test_importers_are_listed_with_a_line_each_and_their_own_options(ditlab):
    listed = ditlab("import", "--help").out
    lines = r""" +digits +The 1,797 real.*
 +get +Motif scores of genomic regions.*
 +images +Images with captions or classes.*
 +mnist +MNIST, from its four.*
 +text +Text as rows"""
    assert re.search(lines, listed)
    assert "..." not in listed.partition("Commands:")[2]
    get = " ".join(ditlab("import", "get", "--help").out.split())
    for flag in ("--source TEXT", "--accessibility [atpm|ones]", "[required]"):
        assert flag in get
    assert "[default: 5000000; x>=1]" in get and "--checksum" not in get
    assert "--checksum / --no-checksum" in ditlab("import", "mnist", "--help").out


def test_help_of_an_import_needs_no_heavy_library(tmp_path):
    code = (
        "import sys\nfrom ditlab.cli.main import cli\nfor kind in ('digits', 'get', 'images', "
        "'mnist', 'text'):\n    cli.main(['data', 'import', kind, '--help'], "
        "standalone_mode=False)\nprint([name for name in ('torch', 'pyarrow', 'zarr', "
        "'sklearn', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_mistakes_end_with_2_and_the_remedy(ditlab):
    for arguments, message in (
        (("inspect", "nothing"), "nothing holds no store"),
        (
            ("import", "digits", "--out", "s3://BUCKET/x"),
            "--out=s3:/BUCKET/x is a URI, and shards are written to a",
        ),
        (("import", "digits", "--address", "auto"), "No such option '--address'"),
        (("import", "text", "--source", ".", "--vocabulary", "200"), "is not in the range x>=257"),
        (("import", "images", "--source", ".", "--caption-from", "x"), "'x' is not one of 'txt',"),
    ):
        ditlab(*arguments).refused(message)


def test_import_and_inspect_captioned_images(ditlab, tmp_path):
    shapes = [(64, 64), (64, 128), (64, 64), (20, 20)]
    files = {f"{n}.png": (smooth(*size), f"slope {n}") for n, size in enumerate(shapes)}
    captioned_folder(tmp_path / "photos", {**files, "broken.png": (b"", "none")})
    done = ditlab("import", "images", "--source", "photos", "--resolution", "128", "--json")
    (store,) = done.ok().json["stores"]
    assert (store["name"], store["rows"], store["outcome"]) == ("images-photos-128", 3, "written")
    found = r"""images-photos-128: 3 rows in .*
.*bytes of decoded pixels.*
  10 files found: 3 images, 5 captions and classes; 2 dropped: 1 too small, 1 unreadable
  1 rows that repeat an earlier one
  dropped: 3\.png: too small \(20x20 pixels\); broken\.png: unreadable \(no BMP, JPEG.*
warning: 2 of 10 files \(20%\) were dropped, most as too small\.
"""
    assert re.search(rf"^{found}\Z", done.err, re.MULTILINE)
    seen = ditlab("inspect", "images-photos-128", "--json").ok().json
    sizes = [(bucket["height"], bucket["width"], bucket["rows"]) for bucket in seen["buckets"]]
    assert sizes == [(64, 64, 2), (64, 128, 1)]
    assert seen["receipt"] == store["receipt"]
    reasons = ("too small", "unreadable", "rows that repeat an earlier one")
    assert store["left_out"] == dict.fromkeys(reasons, 1)
    table = ditlab("inspect", "images-photos-128").out
    assert re.search(r"64x128 +2 +1 +33\.3%", table) and "(3, 64, any)" in table


def test_a_dry_run_imports_the_beginning_and_leaves_nothing(ditlab, tmp_path, monkeypatch):
    monkeypatch.setattr("ditlab.api.imports.FIRST", 4)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    files = {
        f"{kind}/{n}.png": (smooth(8 * (n % 3), 16, n) if n % 3 else b"", None)
        for kind in "ab"
        for n in range(6)
    }
    captioned_folder(tmp_path / "pets", files)
    (tmp_path / "pets" / "x.heic").touch()
    chosen = ("--label-from", "folder", "--sizes", "square", "--patch", "4", "--resolution", "16")
    done = ditlab("import", "images", "--source", "pets", *chosen, "--dry-run", "--json")
    (found,) = done.ok().json["stores"]
    assert done.json["dry_run"] and (found["name"], found["rows"]) == ("images-pets-16", 1)
    assert (found["sizes"], found["classes"]) == ({"16x16": 1}, ["a", "b"])
    files, pictures = found["receipt"]["levels"]
    assert files["left_out"] == {"not read (.heic)": 1}
    assert pictures["used"] == {"images": 1}
    assert pictures["left_out"] == {"unreadable": 2, "too small": 1}
    assert not any("no sample" in each for each in found["receipt"]["warnings"]), (
        "b was not looked at"
    )
    words = "images-pets-16: 1 rows of the beginning of the source alone; nothing was written\n"
    assert words in done.err
    assert not (tmp_path / "home" / "stores").exists()
    assert not any((tmp_path / "temporary").iterdir())


def test_a_dry_run_of_text(ditlab, tmp_path, monkeypatch):
    monkeypatch.setattr("ditlab.api.imports.FIRST", 20)  # rows, of 14 tokens each
    texts = [f"document {n:04d}" for n in range(400)]  # 13 bytes each
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
    chosen = ("--length", "14", "--tokenizer", "bytes", "--dry-run", "--json")
    done = ditlab("import", "text", "--source", "texts.jsonl", *chosen)
    (found,) = done.ok().json["stores"]
    assert found["rows"] == found["receipt"]["levels"][1]["used"]["documents"] == 22
    assert not (tmp_path / "home" / "stores").exists()
