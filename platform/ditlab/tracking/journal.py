"""A run's journal: an append-only file of JSON lines that holds every metric, tag and artifact.
Imports no mlflow.

One JSON object a line, in the order of the events, with a checksum at its end. Of a `metrics`
record, `values` go to MLflow; `held`, which most records lack, stay here, as thinning chose. An
`overview` repeats figures under names that all families share, for MLflow alone. Paths inside the
run's folder are relative to it. NaN and infinities are strings. Torn and damaged lines are passed
over. A journal can be read whole, from an offset on, or from its end.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple, NotRequired, Union

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ditlab.home import RunFolder
from ditlab.storage.files import add_checksum, is_intact, without_checksum
from ditlab.storage.plain_files import MIB

Time = Annotated[int, Field(ge=0, lt=1 << 53)]
Step = Time
Finite = Annotated[float, Field(allow_inf_nan=False)]
Value = Finite | Literal["NaN", "Infinity", "-Infinity"]
Texts = dict[str, str]
JournalRecord = dict[str, Any]
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
FIRST_LINES = 1000
"""Lines of a journal among which the data of training are recorded."""
LONGEST_LINE = 4 * MIB
"""Bytes; the longest line of a real run, its parameters, has some 20 KB."""
_TAIL_BYTES = 65536
RESULT_PREFIXES = ("eval/", "quality/", "held_out/", "assessed/")
"""Metrics of evaluations, in training and after it."""


class ModelPoint(TypedDict):
    """A metric of exported weights, as the run's `metrics` record has it."""

    name: str
    value: Finite
    time: Time
    step: Step


_METRICS = {"step": Step, "values": dict[str, Value], "held": NotRequired[dict[str, Value]]}
_FILE = {"path": str, "artifact_path": str | None}
KINDS: dict[str, dict[str, Any]] = {
    "start": {
        "run_id": str,
        "name": str,
        "experiment": str,
        "family": str,
        "parent": NotRequired[str],
        "metric": NotRequired[str],
    },
    "params": {"values": Texts},
    "resume": {"step": Step, "changes": dict[str, tuple[str, str]], "rates": str},
    "tags": {"values": Texts},
    "metrics": _METRICS,
    "overview": _METRICS,
    "image": {"key": str, "step": Step, "path": str},
    "artifact": _FILE,
    "table": _FILE,
    "dataset": {
        "name": str,
        "fingerprint": str,
        "source": str,
        "counts": dict[str, Step],
        "context": Literal["training", "evaluation"],
        "classes": NotRequired[dict[str, list[str]]],
        "encoders": NotRequired[Texts],
        "weights": NotRequired[Texts],
        "sampled": NotRequired[list[int]],
    },
    "note": {"path": str},
    "model": {
        "step": Step,
        "name": str,
        "path": str,
        "params": Texts,
        "points": list[ModelPoint],
        "dataset": NotRequired[Texts],
    },
    "end": {"status": Literal["finished", "failed", "interrupted", "stopped"]},
}
"""Fields of each kind of record beside `kind` and `time`. `start` is also a resumption, `resume`
what that changes: old and new text by field, steps done, a sentence on the learning rate.
`artifact` is a file or folder, `note` a renewal of its file's text, `model` exported weights or
more metrics of earlier ones."""
_typed_dict: Any = TypedDict
_SHAPES = [
    _typed_dict(kind, {"kind": Literal[kind], "time": Time, **fields})
    for kind, fields in KINDS.items()
]
_any_record: Any = Annotated[Union[*_SHAPES], Field(discriminator="kind")]
_RECORD: TypeAdapter[Any] = TypeAdapter(_any_record, config=ConfigDict(extra="forbid", strict=True))


def current_time() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


def encode_record(kind: str, fields: Mapping[str, Any]) -> bytes:
    """A record as one line, of this moment unless `fields` have a time. Values of metrics are
    `encode_values`'.
    """
    moment = fields.get("time")
    if moment is None:
        moment = current_time()
    record = {"kind": kind, "time": moment, **fields}
    return add_checksum(_ENCODER.encode(record).encode(errors="replace")) + b"\n"


def encode_values(values: Mapping[str, float]) -> dict[str, float | str]:
    """Metrics as JSON takes them: NaN and infinities as strings."""
    if all(map(math.isfinite, values.values())):
        return dict(values)
    return {
        key: value if math.isfinite(value) else _NON_FINITE[str(value)]
        for key, value in values.items()
    }


def parse_record(line: bytes) -> JournalRecord | None:
    """The record of a line; None for a torn or damaged line, and for one of the wrong shape."""
    text = line.rstrip(b"\n")
    if not is_intact(text):
        return None
    try:
        record: JournalRecord = _RECORD.validate_json(without_checksum(text))
    except ValidationError:
        return None
    return record


def all_metrics(record: JournalRecord) -> Iterator[tuple[str, float]]:
    """Name and value of each metric of a `metrics` record, also of those that MLflow does not
    get.
    """
    for key, value in (*record["values"].items(), *record.get("held", {}).items()):
        yield key, float(value)


class JournalLine(NamedTuple):
    """One line of a journal."""

    begin: int
    end: int
    """Offsets in the file, in bytes."""
    record: JournalRecord | None
    """None for a damaged line."""
    is_whole: bool = True
    """False for a last line without a newline, which may be in writing."""


def read_journal(file: BinaryIO, begin: int = 0) -> Iterator[JournalLine]:
    """Every line of an open journal from an offset on, also the damaged ones; reads at most
    `LONGEST_LINE` at once.
    """
    file.seek(begin)
    while line := file.readline(LONGEST_LINE):
        end = begin + len(line)
        is_too_long = False
        while len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE)
            is_too_long = True
            end += len(line)
        record = None
        if not is_too_long:
            record = parse_record(line)
        yield JournalLine(begin, end, record, line.endswith(b"\n"))
        begin = end


def read_lines(path: Path, begin: int) -> Iterator[JournalLine]:
    """Every whole line from an offset on, in bytes. Raises OSError where there is no journal."""
    with path.open("rb") as file:
        for line in read_journal(file, begin):
            if not line.is_whole:
                return
            yield line


def count_lines(path: Path, begin: int) -> int:
    """Number of whole lines from an offset on; 0 where there is no journal, or none that can be
    read.
    """
    try:
        with path.open("rb") as file:
            file.seek(begin)
            return sum(line.endswith(b"\n") for line in file)
    except OSError:
        return 0


class MetricPoints(NamedTuple):
    """Points of one metric, in the order they were logged."""

    steps: array[int]
    times: array[int]
    """Milliseconds since 1970."""
    values: array[float]


@dataclass
class JournalContent:
    """Records of a journal up to an offset."""

    times: array[int] = field(default_factory=lambda: array("q"))
    """Time of each `metrics` record, milliseconds since 1970."""
    metrics: dict[str, MetricPoints] = field(default_factory=dict)
    """Points by metric."""
    events: list[JournalRecord] = field(default_factory=list)
    """Every other record, and those of evaluations, in order."""
    num_damaged: int = 0
    """Damaged whole lines, which were skipped."""
    end: int = 0
    """Bytes of the journal that were read."""

    def add(self, line: JournalLine) -> None:
        """Add the next line of the journal."""
        self.end = line.end
        record = line.record
        if record is None:
            self.num_damaged += line.is_whole  # a last line without a newline may be in writing
        elif record["kind"] == "metrics":
            self._add_metrics(record)
        else:
            self.events.append(record)

    def _add_metrics(self, record: JournalRecord) -> None:
        self.times.append(record["time"])
        is_evaluation = False
        for name, value in all_metrics(record):
            points = self.metrics.get(name)
            if points is None:
                points = self.metrics[name] = MetricPoints(array("q"), array("q"), array("d"))
            points.steps.append(record["step"])
            points.times.append(record["time"])
            points.values.append(value)
            is_evaluation |= name.startswith(RESULT_PREFIXES)
        if is_evaluation:
            self.events.append(record)


def read_content(path: Path) -> JournalContent:
    """Read a journal's whole content. Raises OSError where there is none."""
    content = JournalContent()
    with path.open("rb") as file:
        for line in read_journal(file):
            content.add(line)
    return content


def recorded_dataset(path: Path) -> dict[str, Any]:
    """The record of the data that a run was trained on, near its journal's beginning; {} for
    none.
    """
    with suppress(OSError):
        for line in islice(read_lines(path, 0), FIRST_LINES):
            if line.record and line.record["kind"] == "dataset":
                return line.record
    return {}


def damaged_lines(number: int) -> str:
    """The sentence on damaged lines of a journal."""
    return f"{number} damaged line{'s' if number > 1 else ''} skipped; the others count."


TRAIN_LOSS = "train/loss"
_MAIN = re.compile(rb'"ditlab\.main_metric":"([^"\\]+)"')
RECENT = 0.02
"""Share of the steps, the newest, whose median is the training loss of a headline: one step's is
that of one batch.
"""
RECENT_TEXT = "median of the last 2 %"


def main_metric(folder: RunFolder) -> str:
    """Return the held-out metric by which a run is read first, as the beginning of its journal has
    it; empty for none.

    By a pattern over the first 64 KiB: a list of thousands of runs parses no journal for it.
    """
    try:
        with folder.journal.open("rb") as file:
            found = _MAIN.search(file.read(_TAIL_BYTES))
    except OSError:
        return ""
    if not found:
        return ""
    return found[1].decode(errors="replace")


def recent_median(losses: Mapping[int, float]) -> float:
    """Return the median of values by step over the last 2 % of the steps; NaN without any."""
    last = max(losses, default=0)
    recent = [value for step, value in losses.items() if step > last * (1 - RECENT)]
    if recent and not any(map(math.isnan, recent)):
        return statistics.median(recent)
    return math.nan
