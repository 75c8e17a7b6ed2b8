"""Tars and Parquet files of images that hold more than they should, or are no files at all."""

import io
import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ditlab.data.images.captions import decode_captions
from ditlab.data.import_request import ImportRequest
from ditlab.data.importing import run_import
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.errors import UserError
from ditlab.spec.importing import ImagesOptions
from support.datasets.photographs import captioned_folder, encoded, parquet_file, smooth, tar_file
from support.special_files import KINDS, put

PICTURE = encoded(smooth(20, 20))


@pytest.fixture
def run(home) -> Callable[..., AnyStore]:
    """Imports a source as squares of 16 pixels, in this process."""

    def run(source: Path, **options: Any) -> AnyStore:
        chosen = {"resolution": 16, "patch": 4, "sizes": "square", "processes": 1, "name": "set"} | options
        (imported,) = run_import(
            "images", ImportRequest(home.stores, home.caches, ImagesOptions(source=source, **chosen))
        )
        return imported.store

    return run


def sparse_member(name: str, size: int) -> bytes:
    """Return a tar of one member of `size` zeros that are not stored (GNU's old format: a header, no data)."""
    header = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[483:495] = f"{size:011o}\0".encode()
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header)


def test_members_with_holes_and_large_ones_cost_themselves_alone(run, tmp_path, monkeypatch):
    monkeypatch.setattr("ditlab.data.images.tar_files.MEMBER_BYTES", 10_000)
    whole = tar_file(
        tmp_path / "web.tar", {"a.png": PICTURE, "a.txt": b"a slope", "c.png": bytes(10_001), "c.txt": b"x"}
    )
    whole.write_bytes(sparse_member("0.png", 8**11 - 1) + sparse_member("1.txt", 2**32) + whole.read_bytes())
    store = run(whole)
    assert len(store) == 1 and store.manifest.facts == {"unreadable": 2}
    assert store.manifest.notes[0] == "web.tar: 0.png: unreadable (stored with holes)"
    assert store.manifest.notes[1] == "web.tar: c.png: unreadable (10,001 bytes)"


def test_a_long_caption_and_many_members_of_a_key_cost_their_images(run, tmp_path, monkeypatch):
    monkeypatch.setattr("ditlab.data.images.tar_files.CAPTION_BYTES", 100)
    monkeypatch.setattr("ditlab.data.images.tar_files.KEY_BYTES", 2 * len(PICTURE))
    members = {"a.png": PICTURE, "a.txt": b"x" * 101, "b.png": PICTURE, "b.jpg": PICTURE, "b.webp": PICTURE}
    members |= {"c.txt": b"a slope", "c.png": PICTURE}
    store = run(tar_file(tmp_path / "web.tar", members), missing_caption="skip")
    assert len(store) == 1 and store.manifest.facts == {"missing caption": 2, "unreadable": 2}
    assert "web.tar: a.png: unreadable (its caption: 101 bytes)" in store.manifest.notes
    assert f"web.tar: b.webp: unreadable ({len(PICTURE):,} bytes)" in store.manifest.notes


@pytest.mark.parametrize("suffix", ["tar", "parquet"])
@pytest.mark.parametrize(("kind", "problem"), KINDS[:-1])
def test_special_files_in_the_place_of_containers_are_named(run, tmp_path, home, suffix, kind, problem):
    words = rf"b\.{suffix}: damaged file \(no (tar|Parquet file) that can be read.*({problem}|a device).*\)"
    for source in (put(kind, tmp_path / f"b.{suffix}"), tmp_path):
        with pytest.raises(UserError, match=rf"\(1 damaged file\), the first being {words}; name other files"):
            run(source)
    assert not list(home.stores.glob("*"))
    parquet_file(tmp_path / "a.parquet", image=pa.array([PICTURE], pa.binary()), caption=["a slope"])
    tar_file(tmp_path / "a.tar", {"a.png": PICTURE, "a.txt": b"a slope"})
    (tmp_path / ("a.tar" if suffix == "parquet" else "a.parquet")).unlink()
    store = run(tmp_path)
    assert len(store) == 1 and re.fullmatch(words, store.manifest.notes[0])


def test_a_special_file_as_the_only_picture_is_named(run, tmp_path):
    source = put("pipe", tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("a slope")
    with pytest.raises(UserError, match=r"\(1 unreadable\), the first being a\.png: unreadable \(a named pipe"):
        run(source)


def test_pictures_of_parquet_beyond_the_pixels_are_skipped(run, tmp_path):
    large = encoded(smooth(40, 40))
    images = pa.array([PICTURE, large], pa.binary())
    store = run(parquet_file(tmp_path / "t.parquet", image=images, caption=["a", "b"]), max_pixels=1599)
    assert store.manifest.facts == {"too large": 1}
    assert store.manifest.notes == ("t.parquet, row 1: too large (40x40 pixels, more than --max-pixels=1599)",)
    with pytest.raises(UserError, match=r"\(1 too large\), the first being a\.png: too large .*--max-pixels=9\); name"):
        run(captioned_folder(tmp_path / "one", {"a.png": (PICTURE, "a")}), max_pixels=9)


def test_a_tar_whose_header_lies_about_its_size_is_refused(run, tmp_path):
    member = tarfile.TarInfo("a.png")
    member.size = 2**28
    (tmp_path / "web.tar").write_bytes(member.tobuf(tarfile.PAX_FORMAT) + io.BytesIO(PICTURE).getvalue())
    with pytest.raises(UserError, match=r"web\.tar: damaged file \(the rest, from byte 0 on: unexpected end of data\)"):
        run(tmp_path / "web.tar")


def cut(content: bytes) -> bytes:
    return content[: content.index(b"c.png") + 512 + len(PICTURE) // 2]


def with_a_damaged_header(content: bytes) -> bytes:
    at = content.index(b"c.png")
    return content[:at] + b"X" + content[at + 1 :]


def without_an_end(content: bytes) -> bytes:
    return content[: content.index(b"c.png")]


def with_a_block_of_zeros(content: bytes) -> bytes:
    at = content.index(b"c.png")
    return content[:at] + bytes(512) + content[at + 512 :]


@pytest.mark.parametrize(
    ("damage", "reason", "captions"),
    [
        (cut, "unexpected end of data", "abcdababcd"),
        (with_a_damaged_header, "bad checksum", "abcdabdabcd"),
        (without_an_end, "it ends without its end mark", "abcdababcd"),
        (with_a_block_of_zeros, "it lies behind an end mark", "abcdabdabcd"),
    ],
)
def test_a_damage_of_a_tar_costs_its_member_and_other_tars_are_whole(run, tmp_path, damage, reason, captions):
    """Python's own reader takes a damaged header for the end, and says nothing."""
    members = {f"{key}.{end}": content for key in "abcd" for end, content in (("png", PICTURE), ("txt", key.encode()))}
    source = tmp_path / "tars"
    source.mkdir()
    whole = tar_file(source / "1.tar", members).read_bytes()
    (source / "2.tar").write_bytes(damage(whole))
    tar_file(source / "3.tar", members)
    store = run(source)
    assert decode_captions(store.tensor("caption").numpy()) == list(captions)
    assert store.manifest.facts == {"damaged file": 1}
    at, behind = whole.index(b"c.png"), whole.index(b"c.txt")
    if captions.count("d") == 3:
        place = f"bytes {at:,} to {behind:,}"
    else:
        place = f"the rest, from byte {at:,} on"
    assert store.manifest.notes == (f"2.tar: damaged file ({place}: {reason})",)
    with pytest.raises(UserError, match=rf"^2\.tar: {place}: .*; correct it, or give --unreadable skip\.$"):
        run(source, unreadable="refuse")


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_name_without_end_is_refused_before_it_fills_memory(run, tmp_path, kind):
    """A terabyte of nothing, which takes no room on the disk, and would be read as a member's name."""
    member = tarfile.TarInfo("a.png")
    member.type, member.size = kind, 2**39
    file = tar_file(tmp_path / "web.tar", {"a.txt": b"a", "a.png": PICTURE, "b.txt": b"b", "b.png": PICTURE})
    content = file.read_bytes()
    file.write_bytes(content[: content.index(b"b.txt")] + member.tobuf(tarfile.GNU_FORMAT))
    os.truncate(file, 2**40)
    store = run(file)
    assert decode_captions(store.tensor("caption").numpy()) == ["a"]
    (note,) = store.manifest.notes
    assert note.endswith("on: a name of 549,755,813,888 bytes)")


@pytest.mark.parametrize("caption_from", ["txt", "stem"])
def test_an_image_whose_caption_lies_behind_the_damage(run, tmp_path, caption_from):
    whole = tar_file(tmp_path / "web.tar", {"a.txt": b"a", "a.png": PICTURE, "b.png": PICTURE, "b.txt": b"b" * 600})
    content = whole.read_bytes()
    whole.write_bytes(content[: content.index(b"b.txt") + 700])
    store = run(whole, caption_from=caption_from)
    assert decode_captions(store.tensor("caption").numpy()) == (["a"] if caption_from == "txt" else ["a", "b"])
    assert store.manifest.facts == {"damaged file": 1}


def test_a_parquet_file_that_is_damaged_in_the_middle(run, tmp_path):
    images = pa.array([PICTURE] * 9, pa.binary())
    file = parquet_file(tmp_path / "1.parquet", image=images, caption=list("abcdefghi"))
    parquet_file(tmp_path / "2.parquet", image=images, caption=list("ABCDEFGHI"))
    begin = pq.read_metadata(file).row_group(1).column(0).dictionary_page_offset
    content = file.read_bytes()
    file.write_bytes(content[:begin] + b"\xff" * 9 + content[begin + 9 :])
    store = run(tmp_path)
    assert decode_captions(store.tensor("caption").numpy()) == list("abcABCDEFGHI")
    (note,) = store.manifest.notes
    assert note.startswith("1.parquet: damaged file (the rest, from row 3 on: no Parquet file that can be read (")
