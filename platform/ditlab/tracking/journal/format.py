"""The journal's text: one JSON object a line, in the order of the events.

Every record has `kind` and `time` (milliseconds since 1970). Its line ends with a checksum (`storage/checksums.py`),
but for those written before there were any. Kinds and their fields (`record_types.py`):

    start     run_id, name, experiment, family       dataset   name, fingerprint, source, counts, context
    params    values                                 image     key, step, path
    tags      values                                 artifact  path, artifact_path
    metrics   step, values, held                     table     path, artifact_path
    overview  step, values                           note      path
    end       status                                 model     step, name, path, params, points, dataset

Of metrics, `values` go to MLflow and `held`, which most records lack, stay here (`thinning.py`). An `overview` repeats
figures under names that all families share, for MLflow alone. Paths inside the run's folder are relative to it. NaN and
infinities are strings: "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ditlab.storage.checksums import add_checksum, has_checksum, is_intact, without_checksum
from ditlab.tracking.journal.record_types import record_of_later_version, typed_record

JournalRecord = dict[str, Any]

_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def current_time() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


def encode_record(kind: str, fields: Mapping[str, Any]) -> bytes:
    """A record as one line, of this moment unless `fields` have a time. Values of metrics are `encode_values`'."""
    moment = fields["time"] if "time" in fields else current_time()
    record = {"kind": kind, "time": moment, **fields}
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return add_checksum(text.encode(errors="replace")) + b"\n"


def encode_values(values: Mapping[str, float]) -> dict[str, float | str]:
    """Metrics as JSON takes them: NaN and infinities as strings."""
    return {key: value if math.isfinite(value) else _NON_FINITE[str(value)] for key, value in values.items()}


def parse_record(line: bytes) -> JournalRecord | None:
    """The record of a line; None for a torn or damaged line, and for one of the wrong shape."""
    text = line.rstrip(b"\n")
    if not has_checksum(text):
        return typed_record(text)
    if not is_intact(text):
        return None
    text = without_checksum(text)
    return typed_record(text) or record_of_later_version(text)


def all_metrics(record: JournalRecord) -> Iterator[tuple[str, float]]:
    """Name and value of each metric of a `metrics` record, also of those that MLflow does not get."""
    for key, value in (*record["values"].items(), *record.get("held", {}).items()):
        yield key, float(value)
