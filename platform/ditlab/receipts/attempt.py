"""Attempts at a run: who trained, with what, from which step on."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

Natural = Annotated[int, Field(ge=0, lt=1 << 53)]
Positive = Annotated[int, Field(ge=1, lt=1 << 16)]


@dataclass(frozen=True)
class RecordedAttempt:
    """One attempt: a process group that begins or goes on with a run."""

    attempt: Positive
    """Number, from 1."""
    step: Natural
    """Steps done where it begins."""
    workers: Positive
    halvings: Natural
    """Number of times that the micro-batch was halved for memory."""
    left_out: list[Natural]
    """Steps, from 1, whose batches it leaves out."""
    device: str
    """`cpu`, or the GPU's name."""
    processor: str
    """Model of the first worker's CPU."""
    threads: Natural
    """Threads that each worker computes with."""
    versions: dict[str, str]
    """Versions of Python, torch, deepspeed, numpy and ditlab."""
    code: str
    """SHA-256 over the Python sources of ditlab, denoisers and the plugin packages of the run."""
    data: str
    """Fingerprint of the training data."""
    spec_hash: str
    numerics: Natural
    """Version of the numbers (`ditlab.numerics`)."""
    blocks: str
    """Origin of the blocks' numbers (`ditlab.spec.compiling`)."""
    chain: str
    """Head of the chain where it begins, in hexadecimal."""
    digest: str = ""
    """SHA-256 of all fields above, in hexadecimal."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def to_record(self) -> dict[str, Any]:
        """Return the fields of its line, with the digest over all others."""
        record = asdict(self)
        del record["digest"]
        return record | {"digest": _digest(record)}


_adapter = TypeAdapter(RecordedAttempt)


def parse_attempt(record: Mapping[str, Any]) -> RecordedAttempt | None:
    """Return the attempt of a line; None for a line that is damaged or no attempt's."""
    fields = {name: value for name, value in record.items() if name != "digest"}
    try:
        found = _adapter.validate_python(dict(record))
    except ValidationError:
        return None
    return found if found.digest == _digest(fields) else None


def _digest(fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
