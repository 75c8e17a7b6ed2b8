"""Tars and Parquet files of images that hold more than they should, or are no files at all."""

import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ditlab.data.images.captions import decode_captions
from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.errors import UserError
from ditlab.spec.importing import ImagesOptions
from support.datasets.photographs import captioned_folder, encoded, parquet_file, smooth, tar_file

PICTURE = encoded(smooth(20, 20))


@pytest.fixture
def run(home) -> Callable[..., AnyStore]:
    """Imports a source as squares of 16 pixels, in this process."""

    def run(source: Path, **options: Any) -> AnyStore:
        chosen = {
            "resolution": 16,
            "patch": 4,
            "sizes": "square",
            "processes": 1,
            "name": "set",
        } | options
        (imported,) = run_import(
            "images",
            ImportRequest(home.stores, home.caches, ImagesOptions(source=source, **chosen)),
        )
        return imported.store

    return run


def test_a_large_member_costs_itself_alone(run, tmp_path, monkeypatch):
    monkeypatch.setattr("ditlab.data.sources.tars.MEMBER_BYTES", 10_000)
    members = {
        "a.png": PICTURE,
        "a.txt": b"a slope",
        "c.png": bytes(10_001),
        "c.txt": b"x",
        "d.png": PICTURE,
    }
    store = run(
        tar_file(tmp_path / "web.tar", members | {"d.txt": bytes(10_001)}), missing_caption="skip"
    )
    assert len(store) == 1 and store.manifest.receipt.counts == {
        "missing caption": 1,
        "unreadable": 1,
    }
    assert store.manifest.receipt.listed[0] == "web.tar: c.png: unreadable (10,001 bytes)"


def test_pictures_of_parquet_beyond_the_pixels_are_skipped(run, tmp_path):
    large = encoded(smooth(40, 40))
    images = pa.array([PICTURE, large], pa.binary())
    store = run(
        parquet_file(tmp_path / "t.parquet", image=images, caption=["a", "b"]), max_pixels=1599
    )
    assert store.manifest.receipt.counts == {"too large": 1}
    assert store.manifest.receipt.listed == (
        "t.parquet, row 1: too large (40x40 pixels, more than --max-pixels=1599)",
    )
    with pytest.raises(
        UserError,
        match=r"\(1 too large\), the first being a\.png: too large .*--max-pixels=9\); name",
    ):
        run(captioned_folder(tmp_path / "one", {"a.png": (PICTURE, "a")}), max_pixels=9)


def test_a_tar_whose_header_lies_about_its_size_is_refused(run, tmp_path):
    member = tarfile.TarInfo("a.png")
    member.size = 2**28
    (tmp_path / "web.tar").write_bytes(
        member.tobuf(tarfile.PAX_FORMAT) + io.BytesIO(PICTURE).getvalue()
    )
    with pytest.raises(
        UserError,
        match=r"web\.tar: damaged file \(the rest, from byte 0 on: unexpected end of data\)",
    ):
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
        (cut, "unexpected end of data", "abcdaabcd"),
        (with_a_damaged_header, "bad checksum", "abcdaabcd"),
        (without_an_end, "it ends without its end mark", "abcdaabcd"),
        (with_a_block_of_zeros, "it lies behind an end mark", "abcdaabcd"),
    ],
)
def test_a_damage_of_a_tar_costs_its_rest_and_other_tars_are_whole(
    run, tmp_path, damage, reason, captions
):
    """Python's own reader takes a damaged header for the end, and says nothing. The sample before a
    damage may lack its caption, so it goes too."""
    members = {
        f"{key}.{end}": content
        for key in "abcd"
        for end, content in (("png", PICTURE), ("txt", key.encode()))
    }
    source = tmp_path / "tars"
    source.mkdir()
    whole = tar_file(source / "1.tar", members).read_bytes()
    (source / "2.tar").write_bytes(damage(whole))
    tar_file(source / "3.tar", members)
    store = run(source)
    assert decode_captions(store.tensor("caption").numpy()) == list(captions)
    assert store.manifest.receipt.counts == {"damaged file": 1}
    (note,) = store.manifest.receipt.listed
    assert re.fullmatch(rf"2\.tar: damaged file \(the rest, from byte [\d,]+ on: {reason}\)", note)
    with pytest.raises(
        UserError,
        match=r"^2\.tar: the rest, from byte .*; correct it, or give --unreadable skip\.$",
    ):
        run(source, unreadable="refuse")


def test_an_image_whose_caption_lies_behind_the_damage(run, tmp_path):
    whole = tar_file(
        tmp_path / "web.tar",
        {"a.txt": b"a", "a.png": PICTURE, "b.png": PICTURE, "b.txt": b"b" * 600},
    )
    content = whole.read_bytes()
    whole.write_bytes(content[: content.index(b"b.txt") + 700])
    store = run(whole)
    assert decode_captions(store.tensor("caption").numpy()) == ["a"]
    assert store.manifest.receipt.counts == {"damaged file": 1}
