"""Tars and Parquet files of images that hold more than they should, or are no files at all."""

import re

import pytest

from ditlab.data.images.captions import decode_captions
from support.damage import refused
from support.datasets.photographs import encoded, smooth, tar_file

PICTURE = encoded(smooth(20, 20))


def test_a_large_member_costs_itself_alone(run, tmp_path, monkeypatch):
    monkeypatch.setattr("ditlab.data.sources.tars.MEMBER_BYTES", 10_000)
    large = bytes(10_001)
    members = {"a.png": PICTURE, "a.txt": b"a slope", "c.png": large, "c.txt": b"x"}
    members |= {"d.png": PICTURE, "d.txt": large}
    store = run(tar_file(tmp_path / "web.tar", members), missing_caption="skip")
    assert len(store) == 1 and store.manifest.receipt.counts == {
        "missing caption": 1,
        "unreadable": 2,
    }
    assert store.manifest.receipt.listed[:2] == (
        "web.tar: c.png: unreadable (10,001 bytes)",
        "web.tar: d.txt: unreadable (10,001 bytes)",
    )


def cut(content):
    return content[: content.index(b"c.png") + 512 + len(PICTURE) // 2]


def with_a_damaged_header(content):
    at = content.index(b"c.png")
    return content[:at] + b"X" + content[at + 1 :]


def with_a_block_of_zeros(content):
    at = content.index(b"c.png")
    return content[:at] + bytes(512) + content[at + 512 :]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "unexpected end of data"),
        (with_a_damaged_header, "bad checksum"),
        (lambda content: content[: content.index(b"c.png")], "it ends without its end mark"),
        (with_a_block_of_zeros, "it lies behind an end mark"),
    ],
)
def test_a_damage_of_a_tar_costs_its_rest_and_other_tars_are_whole(run, tmp_path, damage, reason):
    """Python's own reader takes a damaged header for the end, and says nothing. The sample before a
    damage may lack its caption, so it goes too."""
    members = {}
    for key in "abcd":
        members |= {f"{key}.png": PICTURE, f"{key}.txt": key.encode()}
    source = tmp_path / "tars"
    source.mkdir()
    whole = tar_file(source / "1.tar", members).read_bytes()
    (source / "2.tar").write_bytes(damage(whole))
    tar_file(source / "3.tar", members)
    store = run(source)
    assert decode_captions(store.tensor("caption").numpy()) == list("abcdaabcd")
    (note,) = store.manifest.receipt.listed
    assert re.fullmatch(rf"2\.tar: damaged file \(the rest, from byte [\d,]+ on: {reason}\)", note)
    with refused(r"^2\.tar: the rest, from byte .*; correct it, or give --unreadable skip\.$"):
        run(source, unreadable="refuse")
