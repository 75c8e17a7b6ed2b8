"""Records of Parquet and JSON lines: read back whatever the blocks; what is damaged costs itself
alone.
"""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ditlab.data.source_files import list_source
from ditlab.data.sources.records import (
    TEXT_KINDS,
    read_records,
    record_blocks,
    record_files,
)

TEXTS = [f"text {number} é" * (1 + number % 7) for number in range(90)]
COLUMNS = {"--column": "text", "--image-column": "image"}
ROWS = [(text, bytes([number])) for number, text in enumerate(TEXTS)]
TABLE = pa.table(
    {"image": [row[1] for row in ROWS], "text": [row[0] for row in ROWS], "other": range(90)}
)


def write_parquet(folder):
    folder.mkdir()
    pq.write_table(TABLE.slice(0, 60), folder / "a.parquet", row_group_size=7)
    pq.write_table(TABLE.slice(60), folder / "b.parquet")
    return folder


def write_jsonl(folder):
    folder.mkdir()
    lines = [
        json.dumps({"text": text, "image": image[0]}, ensure_ascii=False) for text, image in ROWS
    ]
    (folder / "a.jsonl").write_text("\ufeff" + "\n".join(lines[:50]))  # the last line has no end
    (folder / "b.jsonl").write_text("\r\n\n".join(lines[50:]) + "\n")
    return folder


WRITERS = {"parquet": write_parquet, "jsonl": write_jsonl}


def blocks_of(source, most_bytes=10**9):
    return record_blocks(record_files(list_source(str(source)), TEXT_KINDS), most_bytes)


def read(source, columns=COLUMNS, most_bytes=10**9):
    return [
        record for block in blocks_of(source, most_bytes) for record in read_records(block, columns)
    ]


@pytest.mark.parametrize("kind", WRITERS)
def test_all_records_come_once_in_order_whatever_the_blocks(tmp_path, kind):
    source = WRITERS[kind](tmp_path / "data")
    expected = [(text, image[0]) for text, image in ROWS] if kind == "jsonl" else ROWS
    nums = set()
    for most_bytes in (10**9, 3000, 400, 1):
        blocks = blocks_of(source, most_bytes)
        found = [record for block in blocks for record in read_records(block, COLUMNS)]
        assert [record.values for record in found] == expected, most_bytes
        assert not any(record.problem for record in found)
        assert [block.number for block in blocks] == list(range(len(blocks)))
        nums.add(len(blocks))
        if kind != "jsonl":  # whose places in a part of a file are bytes
            assert [record.place for record in found] == [record.place for record in read(source)]
    assert len(nums) > 1, "smaller blocks are more"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            b'{"text": "a"',
            (
                "is no JSON (Expecting ',' delimiter: line 2 column 1 (char 13)); a line takes "
                "one object"
            ),
        ),
        (b"[" * 10**5, "is no JSON ("),
        (b'"text"', "holds a str, not a JSON object; a line takes one object."),
        (b'{"txt": "a"}', "has no key 'text'; give --column (did you mean 'txt'?)."),
        (
            b'{"text": "\xe9"}',
            "is not UTF-8: byte 0xe9 at offset 24 (from 0); convert it, for one with `iconv",
        ),
    ],
)
def test_a_line_that_is_no_record_costs_itself_alone(tmp_path, line, message):
    whole = b'{"text": "b"}\n'
    (tmp_path / "a.jsonl").write_bytes(whole + line + b"\n" + whole)
    first, bad, last = read(tmp_path, {"--column": "text"})
    assert (first.values, last.values) == (("b",), ("b",))
    assert bad.dropped().place == "a.jsonl, line 2" and bad.dropped().reason == "unreadable"
    assert str(bad.error()).startswith(f"{tmp_path}/a.jsonl, line 2: {message}")


def test_behind_a_damage_the_rest_of_a_file_is_one_problem(tmp_path):
    source = write_parquet(tmp_path / "data")
    file = source / "a.parquet"
    os.truncate(file, file.stat().st_size // 2)
    found = read(source)
    problems = [record for record in found if record.problem]
    good = [record.values for record in found if not record.problem]
    assert len(problems) == 1 and len(good) < len(ROWS)
    assert set(good) < set(ROWS)
    assert ROWS[-1] in good, "the other file is read"
    assert file.name in problems[0].place
