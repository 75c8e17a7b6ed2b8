"""A damaged journal: one bad line costs itself alone, is counted, and changes nothing in
silence.
"""

import json

import pytest

from ditlab.storage.files import add_checksum
from ditlab.tracking.history import metric_history
from ditlab.tracking.journal import LONGEST_LINE, parse_record, read_content
from ditlab.tracking.journal_writer import JournalWriter
from support.journals import read_records


@pytest.fixture
def folder(new_run):
    """A run with some of every kind of record."""
    folder = new_run()
    journal = JournalWriter(folder)
    journal.append("start", run_id=folder.run_id, name="digits", experiment="digits", family="dit")
    journal.append("params", values={"optimizer.lr": "0.001"})
    for step in range(1, 6):
        journal.log_metrics(step, {"train/loss": 1 / step, "train/lr": 1e-4})
    journal.log_metrics(5, {"eval/velocity": float("nan")})
    journal.append(
        "dataset", name="d", fingerprint="f", source="s", counts={"train": 10}, context="training"
    )
    journal.append("artifact", path="spec.yaml", artifact_path=None)
    journal.append("end", status="finished")
    journal.close()
    return folder


def test_no_single_bit_changes_a_record_unseen(folder):
    for line in folder.journal.read_bytes().splitlines():
        whole = parse_record(line)
        assert whole is not None
        for bit in range(8 * len(line)):
            flipped = bytearray(line)
            flipped[bit // 8] ^= 1 << bit % 8
            assert parse_record(bytes(flipped)) in (None, whole)


METRICS = {"kind": "metrics", "time": 1, "step": 1, "values": {"a": 1.0}}
WRONG_SHAPES = [
    *(
        METRICS | change
        for change in (
            {"valeus": {"a": 1.0}},
            {"step": "1"},
            {"step": True},
            {"step": -1},
            {"step": 10**30},
            {"values": {"a": "much"}},
            {"held": 3},
        )
    ),
    {"kind": "params", "time": 1, "values": {"a": 1}},
    {"kind": "start", "time": 1, "run_id": "x"},
    {"kind": "end", "time": 1, "status": "over"},
    {"kind": ["metrics"], "time": 1},
    {"kind": "unknown", "time": 1},
    {
        "kind": "model",
        "time": 1,
        "step": 1,
        "name": "n",
        "path": "x",
        "params": {},
        "points": [{"name": "a"}],
    },
    {"time": 1},
    {"kind": "start", "time": 1, "name": "without its checksum"},
]


@pytest.mark.parametrize("shape", WRONG_SHAPES, ids=json.dumps)
def test_a_line_of_the_wrong_shape_is_no_record(shape):
    text = json.dumps(shape).encode()
    assert parse_record(text) is parse_record(add_checksum(text)) is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"metrics","time":1,"step":1,"values":{"a":1' + b"0" * 400 + b"}}",
        b'{"kind":"metrics","time":1,"step":1,"values":{"a":NaN}}',
        b'{"kind":"metrics","time":1,"step":1,"values":' + b'{"a":' * 100_000,
        b"[" * 100_000,
        b"\xff" * 100,
        b"",
    ],
)
def test_a_line_that_no_parser_likes_is_no_record(line):
    assert parse_record(line) is parse_record(add_checksum(line)) is None


def test_one_bad_line_costs_itself_alone_and_is_counted(folder, caplog):
    lines = folder.journal.read_bytes().splitlines(keepends=True)
    whole = read_records(folder.journal)
    for number in range(len(lines)):
        damaged = [*lines[:number], b'{"kind":"metrics","step":\n', *lines[number + 1 :]]
        folder.journal.write_bytes(b"".join(damaged))
        assert read_content(folder.journal).num_damaged == 1
        assert read_records(folder.journal) == whole[:number] + whole[number + 1 :]
    JournalWriter(folder).close()
    assert "1 damaged line skipped" in caplog.text


def test_a_line_without_end_is_read_in_parts(folder):
    before = metric_history(folder)["train/loss"].values.tolist()
    with folder.journal.open("ab") as file:
        file.write(b'{"kind":"' + b"x" * (2 * LONGEST_LINE + 5))
    assert metric_history(folder)["train/loss"].values.tolist() == before
    journal = JournalWriter(folder)
    journal.log_metrics(6, {"train/loss": 9.0})
    journal.close()
    assert metric_history(folder)["train/loss"].values.tolist() == [*before, 9.0]
    assert read_content(folder.journal).num_damaged == 1
