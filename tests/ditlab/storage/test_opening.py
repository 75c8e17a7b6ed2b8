"""A URI is opened once for everybody, and each message names the knob that it was given by."""

import os

import pytest

from ditlab.errors import Unreachable, UserError
from ditlab.storage.local import LocalFiles
from ditlab.storage.remote import RemoteFiles


@pytest.mark.parametrize("uri", ["foo://bucket/run", "s3://b/p?nope=1", "az://c/p"])
@pytest.mark.parametrize("knob", ["checkpoint.storage", "data.path"])
def test_a_uri_that_nothing_here_opens_names_its_knob(knob, uri):
    with pytest.raises(UserError) as caught:
        RemoteFiles.open(knob, uri)
    assert str(caught.value).startswith(f"{knob}={uri} ") and "\n" not in str(caught.value)


def test_a_uri_without_a_folder():
    with pytest.raises(UserError, match=r"data\.path=memory:// names no bucket or folder"):
        RemoteFiles.open("data.path", "memory://")


@pytest.mark.parametrize("scheme", ["memory://both-levels", "file://{folder}"])
def test_files_of_the_place_itself_and_one_folder_below(scheme, tmp_path):
    files = RemoteFiles.open("data.path", scheme.format(folder=tmp_path / "place"))
    files.write("", "own", [b"1", b"23"])
    files.write("below", "own", [b"4567"])
    files.replace("", "own", b"89")
    assert files.sizes("") == {"own": 2} and files.sizes("below") == {"own": 4}
    assert files.read("", "own") == b"89" and b"".join(files.chunks("below", "own", 3)) == b"4567"
    assert files.listing() == {"below": {"own": 4}}
    with pytest.raises(FileNotFoundError):
        files.read("", "nothing")


def test_sizes_are_those_of_plain_files(tmp_path):
    folder = tmp_path / "place" / "step"
    (folder / "a folder").mkdir(parents=True)
    (folder / "shard").write_bytes(b"123")
    os.mkfifo(folder / "pipe")
    (folder / "dangling").symlink_to(tmp_path / "nothing")
    (folder / "circle").symlink_to(folder / "circle")
    (tmp_path / "place" / "beside").write_bytes(b"1")
    files = LocalFiles(tmp_path / "place", "checkpoint.storage")
    assert files.sizes("step") == {"shard": 3}
    assert set(files.listing()) == {"step"}, "what is beside the folders is not listed"
    assert set(files.listing()["step"]) == {"a folder", "shard", "pipe", "dangling", "circle"}
    assert files.sizes("gone") == {}


def test_what_a_library_raises_names_the_knob_inside_named(tmp_path):
    files = RemoteFiles.open("data.path", f"file://{tmp_path}")
    with (
        pytest.raises(Unreachable, match=r"data\.path=file://.* cannot be read \(.*\); look there\."),
        files.translating_errors("cannot be read", "look there"),
    ):
        files.read("", "nothing")
