"""Records of Parquet, Arrow, JSON lines and MDS: read back whatever the blocks; what is damaged costs itself alone."""

import json
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ditlab.data.import_blocks import InputBlock
from ditlab.data.source_files import list_source, open_source
from ditlab.data.sources.records import read_records, record_blocks, record_files, text_problem
from ditlab.errors import UserError
from support.datasets.mds_shards import write_mds
from support.datasets.saved_dataset import write_saved_dataset
from support.special_files import KINDS, put

TEXTS = [f"text {number} é" * (1 + number % 7) for number in range(90)]
COLUMNS = {"--column": "text", "--image-column": "image"}
ROWS = [(text, bytes([number])) for number, text in enumerate(TEXTS)]
TABLE = pa.table({"image": [row[1] for row in ROWS], "text": [row[0] for row in ROWS], "other": range(90)})


def write_parquet(folder):
    folder.mkdir()
    pq.write_table(TABLE.slice(0, 60), folder / "a.parquet", row_group_size=7)
    pq.write_table(TABLE.slice(60), folder / "b.parquet")
    return folder


def write_jsonl(folder):
    folder.mkdir()
    lines = [json.dumps({"text": text, "image": image[0]}, ensure_ascii=False) for text, image in ROWS]
    (folder / "a.jsonl").write_text("\ufeff" + "\n".join(lines[:50]))  # the last line has no end
    (folder / "b.jsonl").write_text("\r\n\n".join(lines[50:]) + "\n")
    return folder


def write_shards(folder):
    samples = [{"text": text, "image": image, "n": 1.5, "i": 3} for text, image in ROWS]
    return write_mds(
        folder, {"text": "str", "image": "jpeg:90", "n": "float32", "i": "int"}, [samples[:40], [], samples[40:]]
    )


def write_arrow(folder):
    return write_saved_dataset(folder, [TABLE.slice(0, 60), TABLE.slice(60)], rows_of_batch=8)


WRITERS = {"parquet": write_parquet, "jsonl": write_jsonl, "mds": write_shards, "arrow": write_arrow}


def blocks_of(source, most_bytes=10**9):
    return record_blocks(record_files(str(source), list_source(str(source))), most_bytes)


def read(source, columns=COLUMNS, most_bytes=10**9):
    return [record for block in blocks_of(source, most_bytes) for record in read_records(block, columns)]


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


@pytest.mark.parametrize("kind", WRITERS)
def test_by_uri_and_by_pattern(tmp_path, kind):
    source = WRITERS[kind](tmp_path / "data")
    here = [record.values for record in read(source)]
    assert [record.values for record in read(source.as_uri(), most_bytes=2000)] == here
    if kind in ("parquet", "jsonl"):
        assert [record.values for record in read(f"{source.as_uri()}/*a.{kind}", most_bytes=500)] == here[:60][
            : 50 if kind == "jsonl" else 60
        ]
        assert [record.values for record in read(f"{source}/b.{kind[:-1]}?")] == here[50 if kind == "jsonl" else 60 :]


@pytest.mark.parametrize("kind", ["parquet", "mds", "arrow"])
def test_a_missing_column_names_the_nearest(tmp_path, kind):
    source = WRITERS[kind](tmp_path / "data")
    with pytest.raises(UserError, match=r"has no column 'txt'; did you mean 'text'\? Give --column\."):
        read(source, {"--column": "txt"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', "is no JSON (Expecting ',' delimiter: line 2 column 1 (char 13)); a line takes one object"),
        (b"[" * 10**5, "is no JSON ("),
        (b'"text"', "holds a str, not a JSON object; a line takes one object."),
        (b'{"txt": "a"}', "has no key 'text'; did you mean 'txt'? Give --column."),
        (b'{"text": "\xe9"}', "is not UTF-8: byte 0xe9 at offset 24 (from 0); convert it, for one with `iconv"),
    ],
)
def test_a_line_that_is_no_record_costs_itself_alone(tmp_path, line, message):
    whole = b'{"text": "b"}\n'
    (tmp_path / "a.jsonl").write_bytes(whole + line + b"\n" + whole)
    first, bad, last = read(tmp_path, {"--column": "text"})
    assert (first.values, last.values) == (("b",), ("b",))
    assert bad.dropped().place == "a.jsonl, line 2" and bad.dropped().reason == "unreadable"
    assert str(bad.error()).startswith(f"{tmp_path}/a.jsonl, line 2: {message}")


def test_lines_without_end_are_refused_before_they_fill_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("ditlab.data.sources.lines.LINE_BYTES", 1000)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n' + b'{"text": "' + b"x" * 5000)
    with pytest.raises(
        UserError, match=r"the line at byte 16 has more than 1,000 bytes; .* longer ones into \.txt files"
    ):
        read(tmp_path, {"--column": "text"})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "'text' holds a int, not text; write text there, leave the record out, or give --column"),
        (None, "'text' holds null, not text"),
        ({"a": 1}, "'text' holds a dict, not text"),
        ("a\ud800", "'text' holds half of a surrogate pair at character 1, which is no text"),
        ("a", None),
    ],
)
def test_values_that_are_no_text_are_told(value, message):
    found = text_problem("--column", "text", value)
    assert (found is None) == (message is None) and str(found or "").startswith((message or "").partition(";")[0])


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS if kind != "folder"])
def test_special_files_are_listed_and_never_opened(tmp_path, kind):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "again").symlink_to(tmp_path)
    put(kind, tmp_path / "x.jsonl")
    plain, circle, special = list_source(str(tmp_path))
    assert open_source(plain).read() == b"a" and circle.set_aside == "link in a circle"
    with pytest.raises(OSError, match="no plain file"):
        open_source(special)
    (record,) = read_records(InputBlock(0, (special,), "jsonl"), {"--column": "text"})
    assert str(record.dropped()) == "x.jsonl: damaged file (is no .jsonl file that can be read (no plain file))"
    with pytest.raises(UserError, match=rf"^--source={tmp_path}/x\.jsonl: .* no plain file; name"):
        list_source(str(tmp_path / "x.jsonl"))


@pytest.mark.parametrize("kind", WRITERS)
def test_text_that_is_no_utf_8_costs_its_record(tmp_path, kind):
    source, bad = tmp_path / "data", b"\xff\xfe"
    if kind in ("parquet", "arrow"):
        column = pa.array([b"a", bad, b"c"], pa.binary()).view(pa.string())
        table = pa.table({"text": column})
        if kind == "arrow":
            write_saved_dataset(source, [table])
        else:
            source.mkdir()
            pq.write_table(table, source / "a.parquet")
    elif kind == "jsonl":
        source.mkdir()
        (source / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "' + bad + b'"}\n{"text": "c"}\n')
    else:
        write_mds(source, {"text": "str"}, [[{"text": b"a"}, {"text": bad}, {"text": b"c"}]])
    found = read(source, {"--column": "text"})
    assert [record.values for record in found if not record.problem] == [("a",), ("c",)]
    assert len(found) == 3 and "0xff" in str(found[1].problem)


@pytest.mark.parametrize("kind", ["parquet", "mds", "arrow"])
@pytest.mark.parametrize("harm", ["cut", "noise"])
def test_behind_a_damage_the_rest_of_a_file_is_one_problem(tmp_path, kind, harm):
    source = WRITERS[kind](tmp_path / "data")
    file = sorted(each for each in source.iterdir() if each.suffix == f".{kind}")[0]
    content = bytearray(file.read_bytes())
    half = len(content) // 2
    file.write_bytes(content[:half] if harm == "cut" else bytes(content[:half]) + b"\x7f" * (len(content) - half))
    found = read(source)
    problems = [record for record in found if record.problem]
    good = [record.values for record in found if not record.problem]
    assert len(problems) == 1 and len(good) < len(ROWS)
    if harm == "cut" or kind == "parquet":  # the others have no checksums
        assert set(good) < set(ROWS)
    assert ROWS[-1] in good, "the other file is read"
    assert file.name in problems[0].place


@pytest.mark.parametrize("value", [1, 5, 2**31, 2**32 - 1])
@pytest.mark.parametrize("kind", ["mds", "arrow"])
def test_offsets_and_lengths_that_lie_are_found(tmp_path, kind, value):
    source = WRITERS[kind](tmp_path / "data")
    file, place = ("shard.00000.mds", 36) if kind == "mds" else ("data-00000-of-00002.arrow", 4)
    content = bytearray((source / file).read_bytes())
    content[place : place + 4] = value.to_bytes(4, "little")
    (source / file).write_bytes(content)
    found = read(source)
    assert len([record for record in found if record.problem]) == 1
    assert {record.values for record in found if not record.problem} < set(ROWS)


def test_compressed_columns_and_dictionaries_are_read(tmp_path):
    for name, table, options in (
        ("a", TABLE, pa.ipc.IpcWriteOptions(compression="zstd")),
        ("b", pa.table({"text": pa.array(["x", "y"]).dictionary_encode()}), None),
    ):
        with pa.ipc.new_stream(tmp_path / f"{name}.arrow", table.schema, options=options) as stream:
            stream.write_table(table)
    assert [record.values for record in read(tmp_path / "a.arrow")] == ROWS
    assert [record.values for record in read(tmp_path / "b.arrow", {"--column": "text"})] == [("x",), ("y",)]


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
def test_of_an_arrow_file_only_what_is_needed_is_decoded(tmp_path, new):
    path, texts, magic = tmp_path / "a.arrow", [(text,) for text in TEXTS], b"\x28\xb5\x2f\xfd"
    with new(path, TABLE.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_table(TABLE, 10)
    assert len(blocks_of(path, 700)) > 5 and [record.values for record in read(path, most_bytes=700)] == ROWS
    content = path.read_bytes()
    parts = content.split(magic)  # each batch has five buffers: two of images, two of texts, one of numbers
    path.write_bytes(parts[0] + b"lost" + magic.join(parts[1:]))
    assert [record.values for record in read(path, {"--column": "text"})] == texts, "images are not decoded"
    if new is pa.ipc.new_file:  # whose end says where its batches are
        path.write_bytes(magic.join(parts[:4]) + b"lost" + magic.join(parts[4:]))
        block = InputBlock(0, tuple(list_source(str(path))), "arrow", 3, 5)
        assert [record.values for record in read_records(block, {"--column": "text"})] == texts[30:50]
        path.write_bytes(content[:-9])
        assert [record.values for record in read(path)] == ROWS, "without its end it is read as a stream"


def test_zstd_shards_are_unpacked_and_other_compression_is_refused(tmp_path):
    source = write_shards(tmp_path / "data")
    index = json.loads((source / "index.json").read_text())
    for entry in index["shards"]:
        name = entry["raw_data"]["basename"]
        packed = pa.compress((source / name).read_bytes(), "zstd", asbytes=True)
        (source / f"{name}.zstd").write_bytes(packed)
        (source / name).unlink()
        entry |= {"compression": "zstd:7", "zip_data": {"basename": f"{name}.zstd", "bytes": len(packed), "hashes": {}}}
    write = partial((source / "index.json").write_text)
    write(json.dumps(index))
    assert [record.values for record in read(source)] == ROWS
    index["shards"][0]["raw_data"]["bytes"] -= 1
    write(json.dumps(index))
    assert "bytes, and its index says" in str(read(source)[0].problem)
    index["shards"][0]["compression"] = "br:11"
    write(json.dumps(index))
    with pytest.raises(UserError, match=r"is compressed \(br:11\), and plain shards or zstd are read"):
        read(source)


def test_pickles_are_not_opened(tmp_path):
    source = write_mds(tmp_path / "data", {"text": "pkl"}, [[{"text": b"cos\nsystem\n(S'false'\ntR."}]])
    with pytest.raises(UserError, match="'text' is stored as pkl, which is not read here; write it as str"):
        read(source, {"--column": "text"})


def test_a_merged_index_counts_its_shards_once(tmp_path):
    source = write_shards(tmp_path / "data" / "0").parent
    index = json.loads((source / "0/index.json").read_text())
    for entry in index["shards"]:
        entry["raw_data"]["basename"] = f"0/{entry['raw_data']['basename']}"
    (source / "index.json").write_text(json.dumps(index))
    assert [record.values for record in read(source)] == ROWS


def test_folders_that_are_not_whole_are_refused(tmp_path):
    mds, arrow = write_shards(tmp_path / "mds"), write_arrow(tmp_path / "arrow")
    (mds / "shard.00002.mds").unlink()
    with pytest.raises(UserError, match=r"index\.json names shard\.00002\.mds, which is not there; copy the folder"):
        read(mds)
    (arrow / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(UserError, match=r"state\.json names data-00001-of-00002\.arrow, which is not there"):
        read(arrow)
    (mds / "index.json").write_text('{"version": 2, "shards": [{"format": "mds"}]}')
    with pytest.raises(UserError, match=r"is no index of MDS shards \(in `version`\)|is no index of MDS shards"):
        read(mds)


def test_a_folder_of_splits_asks_for_one(tmp_path):
    write_arrow(tmp_path / "train")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(UserError, match=r"holds splits \(train, test\); name one of them, such as --source=.*/train\."):
        read(tmp_path)
    assert [record.values for record in read(tmp_path / "train")] == ROWS
