"""A URI is opened once for everybody, and each message names the knob that it was given by."""

import os
import re
from urllib.parse import quote

import pytest

from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.source_files import list_source, read_source
from ditlab.errors import Unreachable
from ditlab.storage.local import LocalFiles
from ditlab.storage.remote import RemoteFiles
from support.damage import refused


@pytest.mark.parametrize("uri", ["foo://bucket/run", "s3://b/p?nope=1", "az://c/p"])
def test_a_uri_that_nothing_here_opens_names_its_knob(uri):
    with refused(rf"^data\.path={re.escape(uri)} "):
        RemoteFiles.open("data.path", uri)


NAMES = ["C#", "a?b", "50%", "100% x", "ü 🎈", "'q\"u' back\\slash", "&+;[br]*", "a@b:c"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_uri_as_it_is_written_and_encoded(name, tmp_path):
    folder = tmp_path / name
    for uri in (f"file://{folder}", folder.as_uri()):
        files = RemoteFiles.open("data.path", uri)
        assert files.path == files.child("x").path.removesuffix("/x") == str(folder)
        assert CheckpointStore.at(uri).location == str(folder)
        assert RemoteFiles.open("data.path", files.location_of("step-1")).path == f"{folder}/step-1"
    # in an object store's URI, `?` begins the settings
    for key in {name.replace("?", "%3F"), quote(name)}:
        files = RemoteFiles.open(
            "data.path", f"s3://bucket/{key}?region=x&endpoint_override=127.0.0.1:9"
        )
        assert files.path == f"bucket/{name}" and files.child("x").path == f"bucket/{name}/x"
        assert RemoteFiles.open("data.path", files.location_of("x")).path == f"bucket/{name}/x"
    # fsspec decodes nothing
    files = RemoteFiles.open("data.path", f"memory://b/{name.replace('?', '')}")
    assert files.location_of("x") == f"memory://b/{name.replace('?', '')}/x"


@pytest.mark.parametrize("name", NAMES)
def test_files_below_an_odd_folder_are_listed_and_read(name, tmp_path):
    (folder := tmp_path / name).mkdir()
    for text in ("one", "two"):
        (folder / f"{text} #?%25.txt").write_text(text)
    as_written = [] if set(name) & set("?[*") else [f"file://{folder}"]  # these are a pattern's
    for source in (*as_written, folder.as_uri(), f"{folder.as_uri()}/*.txt"):
        assert [read_source(file) for file in list_source(source)] == [b"one", b"two"]


def test_a_uri_without_a_folder():
    with refused(r"data\.path=memory:// names no bucket or folder"):
        RemoteFiles.open("data.path", "memory://")


@pytest.mark.parametrize("scheme", ["memory://both-levels", "file://{folder}"])
def test_files_of_the_place_itself_and_one_folder_below(scheme, tmp_path):
    files = RemoteFiles.open("data.path", scheme.format(folder=tmp_path / "place"))
    files.write("", "own", [b"1", b"23"])
    files.write("below", "own", [b"4567"])
    files.replace("", "own", b"89")
    assert files.sizes("") == {"own": 2} and files.sizes("below") == {"own": 4}
    assert files.read("", "own") == b"89" and b"".join(files.chunks("below", "own")) == b"4567"
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
    (tmp_path / "place" / "link").symlink_to(folder)
    assert files.listing() == {"step": {"shard": 3}}, "neither links nor what is beside the folders"
    assert files.sizes("gone") == {}


def test_what_a_library_raises_names_the_knob_inside_named(tmp_path):
    files = RemoteFiles.open("data.path", f"file://{tmp_path}")
    sentence = r"data\.path=file://.* cannot be read \(.*\); look there\."
    with refused(sentence, Unreachable), files.translating_errors("cannot be read", "look there"):
        files.read("", "nothing")
