"""A journal's text: one JSON object a line, in the order things happened. Imports no mlflow.

Every record has `kind` and `time` (milliseconds since 1970). Kinds and their fields:

    start     run_id, name, experiment, family       dataset   name, fingerprint, source, counts, context
    params    values                                 image     key, step, path
    tags      values                                 artifact  path, artifact_path
    metrics   step, values, held                     table     path, artifact_path
    end       status

Of metrics, `values` go to MLflow and `held`, which most records lack, stay here (`budget.py`). Paths inside the run's
folder are relative to it. NaN and infinities are strings: "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ditlab.storage.files import parse_json_line, read_json_lines

Record = dict[str, Any]

_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def line_of(kind: str, fields: Mapping[str, Any]) -> bytes:
    """A record of now as a whole line. Metrics' values must have passed `numbers`."""
    record = {"kind": kind, "time": int(time.time() * 1000), **fields}
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def numbers(values: Mapping[str, float]) -> dict[str, float | str]:
    """Metrics as records hold them."""
    return {key: value if math.isfinite(value) else _NAMES[str(value)] for key, value in values.items()}


def parse(line: bytes) -> Record | None:
    """The record of a line, None for a damaged one."""
    record = parse_json_line(line)
    return record if record and _is_record(record) else None


def read_records(path: Path) -> Iterator[Record]:
    """Every whole record of a journal, in order; torn and damaged lines are passed over."""
    return (record for record in read_json_lines(path) if _is_record(record))


def _is_record(record: Record) -> bool:
    return "kind" in record and "time" in record
