"""Tars and Parquet files of images that hold more than they should, or are no files at all."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

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
    words = rf"b\.{suffix} is no (tar|Parquet file) that can be read \(.*({problem}|a device).*\); copy it again"
    for source in (put(kind, tmp_path / f"b.{suffix}"), tmp_path):
        with pytest.raises(UserError, match=words):
            run(source)
    parquet_file(tmp_path / "a.parquet", image=pa.array([PICTURE], pa.binary()), caption=["a slope"])
    tar_file(tmp_path / "a.tar", {"a.png": PICTURE, "a.txt": b"a slope"})
    (tmp_path / ("a.tar" if suffix == "parquet" else "a.parquet")).unlink()
    with pytest.raises(UserError, match=words):
        run(tmp_path)
    assert not list(home.stores.glob("*"))


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
    with pytest.raises(UserError, match=r"web\.tar is no tar that can be read"):
        run(tmp_path / "web.tar")
