"""A spec, its `extends` and its `base` may name any file: each that is no spec is one sentence, at
once.
"""

import json
import os
import socket
import time

import pytest

from ditlab.errors import UserError
from ditlab.spec.files import load_experiment, spec_files
from ditlab.spec.sweep import load_sweep

SPEC = "give the path of an experiment's YAML, in UTF-8."
PARENT = "give a path relative to this file."
SPECIAL = {
    "pipe": "cannot be read as text (a named pipe, no plain file)",
    "folder": "cannot be read as text (a folder, no plain file)",
    "device": "cannot be read as text (a device, no plain file)",
    "ring": "cannot be read as text (a link in a circle)",
    "socket": "cannot be read as text (no plain file)",
    "huge": "cannot be read as text (1,099,511,627,776 bytes, more than 262,144)",
    "utf-16": "cannot be read as text (no UTF-8: invalid start byte)",
    "latin-1": "cannot be read as text (no UTF-8: invalid continuation byte)",
    "plain/below": "cannot be read as text (Not a directory)",
    "x" * 300: "characters) cannot be read as text (File name too long)",
    "a\0b": "embedded null",  # Python 3.13 says it in other words than those before it
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with one file of each kind."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    (tmp_path / "folder").mkdir()
    for link, target in (
        ("device", "/dev/zero"),
        ("ring", "gnir"),
        ("gnir", "ring"),
    ):
        (tmp_path / link).symlink_to(target)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "utf-16").write_text("name: x\n", encoding="utf-16")
    (tmp_path / "latin-1").write_bytes(b"name: caf\xe9s\n")
    (tmp_path / "plain").write_text("name: x\n")
    return tmp_path


def refusal(load, path):
    start = time.monotonic()
    with pytest.raises(UserError) as error:
        load(path)
    assert time.monotonic() - start < 5
    assert str(error.value).isprintable()
    return str(error.value)


@pytest.mark.parametrize("name", SPECIAL, ids=lambda name: repr(name[:12]))
def test_no_special_file_is_read(folder, name):
    message = SPECIAL[name]
    spec = refusal(load_experiment, folder / name)
    assert message.replace(" cannot", ": cannot").removeprefix(": ") in spec and spec.endswith(SPEC)
    child = folder / "child.yaml"
    for knob, load in (("extends", load_experiment), ("base", load_sweep), ("extends", spec_files)):
        child.write_text(f"{knob}: {json.dumps(name)}\nname: x\n")
        said = refusal(load, child)
        assert said.startswith(f"{child}: {knob}=") and message in said and said.endswith(PARENT), (
            knob
        )


def test_a_link_to_a_spec_is_read(folder, small, write):
    (folder / "link.yaml").symlink_to(write("somewhere/small.yaml", small))
    (folder / "child.yaml").write_text("extends: link.yaml\nseed: 3\n")
    assert load_experiment(folder / "child.yaml").seed == 3


def test_a_file_with_a_byte_order_mark_is_read(folder, small, write):
    path = write("small.yaml", small)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_experiment(path).name == "small"


def test_a_file_that_may_not_be_read(folder, small, write):
    path = write("small.yaml", small)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user reads every file")
    assert "cannot be read as text (Permission denied)" in refusal(load_experiment, path)
