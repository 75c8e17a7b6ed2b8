"""A damaged journal: one bad line costs itself alone, is counted, and changes nothing in
silence.
"""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from ditlab.home import RunFolder
from ditlab.storage.files import add_checksum
from ditlab.tracking.history import metric_history
from ditlab.tracking.journal import LONGEST_LINE, parse_record, read_content
from ditlab.tracking.journal_writer import JournalWriter
from support.journals import read_records

NewRun = Callable[..., RunFolder]


@pytest.fixture
def folder(new_run: NewRun) -> RunFolder:
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


def test_no_single_bit_changes_a_record_unseen(folder: RunFolder) -> None:
    for line in folder.journal.read_bytes().splitlines():
        whole = parse_record(line)
        assert whole is not None
        for bit in range(8 * len(line)):
            flipped = bytearray(line)
            flipped[bit // 8] ^= 1 << bit % 8
            assert parse_record(bytes(flipped)) in (None, whole)


WRONG_SHAPES: list[Any] = [
    {"kind": "metrics", "time": 1, "step": 1, "valeus": {"a": 1.0}},
    {"kind": "metrics", "time": 1, "step": "1", "values": {"a": 1.0}},
    {"kind": "metrics", "time": 1, "step": True, "values": {"a": 1.0}},
    {"kind": "metrics", "time": 1, "step": -1, "values": {"a": 1.0}},
    {"kind": "metrics", "time": 1, "step": 10**30, "values": {"a": 1.0}},
    {"kind": "metrics", "time": "soon", "step": 1, "values": {"a": 1.0}},
    {"kind": "metrics", "time": 1, "step": 1, "values": {"a": "much"}},
    {"kind": "metrics", "time": 1, "step": 1, "values": {"a": None}},
    {"kind": "metrics", "time": 1, "step": 1, "values": {"a": [1.0]}},
    {"kind": "metrics", "time": 1, "step": 1, "values": [1.0]},
    {"kind": "metrics", "time": 1, "step": 1, "values": {"a": 1.0}, "held": 3},
    {"kind": "params", "time": 1, "values": {"a": 1}},
    {"kind": "image", "time": 1, "key": 3, "step": 1, "path": "x"},
    {"kind": "start", "time": 1, "run_id": "x"},
    {"kind": "end", "time": 1, "status": "over"},
    {"kind": ["metrics"], "time": 1},
    {"kind": "unknown", "time": 1},
    {"time": 1},
    {"kind": "start", "time": 1, "name": "without its checksum"},
]


@pytest.mark.parametrize("shape", WRONG_SHAPES, ids=json.dumps)
def test_a_line_of_the_wrong_shape_is_no_record(shape: Any) -> None:
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
def test_a_line_that_no_parser_likes_is_no_record(line: bytes) -> None:
    assert parse_record(line) is parse_record(add_checksum(line)) is None


def test_one_bad_line_costs_itself_alone_and_is_counted(folder: RunFolder, caplog: Any) -> None:
    lines = folder.journal.read_bytes().splitlines(keepends=True)
    whole = list(read_records(folder.journal))
    for number in range(len(lines)):
        folder.journal.write_bytes(
            b"".join([*lines[:number], b'{"kind":"metrics","step":\n', *lines[number + 1 :]])
        )
        content = read_content(folder.journal)
        assert content.num_damaged == 1
        assert list(read_records(folder.journal)) == whole[:number] + whole[number + 1 :]
    JournalWriter(folder).close()
    assert "1 damaged line passed over" in caplog.text


def test_a_line_without_end_is_read_in_parts(folder: RunFolder) -> None:
    before = metric_history(folder)["train/loss"].values.tolist()
    with folder.journal.open("ab") as file:
        file.write(b'{"kind":"' + b"x" * (2 * LONGEST_LINE + 5))
    assert metric_history(folder)["train/loss"].values.tolist() == before
    journal = JournalWriter(folder)
    journal.log_metrics(6, {"train/loss": 9.0})
    journal.close()
    content = read_content(folder.journal)
    assert (
        metric_history(folder)["train/loss"].values.tolist() == [*before, 9.0]
        and content.num_damaged == 1
    )


def test_random_damage_raises_nothing(folder: RunFolder) -> None:
    draw, whole = random.Random(0), folder.journal.read_bytes()
    known = {
        name: set(zip(s.steps.tolist(), map(str, s.values), strict=True))
        for name, s in metric_history(folder).items()
    }
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 30)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        folder.journal.write_bytes(content)
        assert all(found <= known[name] for name, found in points(folder).items())


def points(folder: RunFolder) -> dict[str, set[tuple[int, str]]]:
    history = metric_history(folder)
    return {
        name: set(zip(one.steps.tolist(), map(str, one.values), strict=True))
        for name, one in history.items()
    }
