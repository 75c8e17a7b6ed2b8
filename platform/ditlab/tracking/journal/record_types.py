"""Types of the journal's records: what a line must hold to be read."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json
from typing_extensions import TypedDict

_KNOWN = ConfigDict(extra="forbid", strict=True)

Time = Annotated[int, Field(ge=0, lt=1 << 53)]
Step = Annotated[int, Field(ge=0, lt=1 << 53)]
Value = Annotated[float, Field(allow_inf_nan=False)] | Literal["NaN", "Infinity", "-Infinity"]
Texts = dict[str, str]


@with_config(_KNOWN)
class StartRecord(TypedDict):
    """Start or resumption of a run."""

    kind: Literal["start"]
    time: Time
    run_id: str
    name: str
    experiment: str
    family: str
    parent: NotRequired[str]


@with_config(_KNOWN)
class TextsRecord(TypedDict):
    """Parameters or tags."""

    kind: Literal["params", "tags"]
    time: Time
    values: Texts


@with_config(_KNOWN)
class MetricsRecord(TypedDict):
    """Metrics of a step."""

    kind: Literal["metrics"]
    time: Time
    step: Step
    values: dict[str, Value]
    held: NotRequired[dict[str, Value]]


@with_config(_KNOWN)
class ImageRecord(TypedDict):
    """Image of a step."""

    kind: Literal["image"]
    time: Time
    key: str
    step: Step
    path: str


@with_config(_KNOWN)
class FileRecord(TypedDict):
    """File, folder or table for MLflow's artifacts."""

    kind: Literal["artifact", "table"]
    time: Time
    path: str
    artifact_path: str | None


@with_config(_KNOWN)
class DatasetRecord(TypedDict):
    """Data that a run reads."""

    kind: Literal["dataset"]
    time: Time
    name: str
    fingerprint: str
    source: str
    counts: dict[str, Step]
    context: Literal["training", "evaluation"]


@with_config(_KNOWN)
class ModelPoint(TypedDict):
    """A metric of exported weights, as the run's `metrics` record has it."""

    name: str
    value: Annotated[float, Field(allow_inf_nan=False)]
    time: Time
    step: Step


@with_config(_KNOWN)
class OverviewRecord(TypedDict):
    """Figures of a run for MLflow's list of runs, under names that all families share."""

    kind: Literal["overview"]
    time: Time
    step: Step
    values: dict[str, Value]


@with_config(_KNOWN)
class NoteRecord(TypedDict):
    """Renewal of the note that MLflow shows with a run; the file holds the newest text."""

    kind: Literal["note"]
    time: Time
    path: str


@with_config(_KNOWN)
class ModelRecord(TypedDict):
    """Exported weights, or more metrics of weights that were exported before."""

    kind: Literal["model"]
    time: Time
    step: Step
    name: str
    path: str
    params: Texts
    points: list[ModelPoint]
    dataset: NotRequired[Texts]


@with_config(_KNOWN)
class EndRecord(TypedDict):
    """End of a run."""

    kind: Literal["end"]
    time: Time
    status: Literal["finished", "failed", "interrupted", "stopped"]


AnyRecord = (
    StartRecord | TextsRecord | MetricsRecord | ImageRecord | FileRecord | DatasetRecord | OverviewRecord | NoteRecord
    | ModelRecord | EndRecord
)  # fmt: skip
_RECORD: TypeAdapter[Any] = TypeAdapter(Annotated[AnyRecord, Field(discriminator="kind")])
_KINDS = frozenset({
    "start", "params", "tags", "metrics", "image", "artifact", "table", "dataset", "overview", "note", "model", "end",
})  # fmt: skip


def typed_record(line: bytes) -> dict[str, Any] | None:
    """Parse a line without its checksum; None where it holds no record of a known kind."""
    try:
        record: dict[str, Any] = _RECORD.validate_json(line)
    except ValidationError:
        return None
    return record


def record_of_later_version(line: bytes) -> dict[str, Any] | None:
    """Parse a line of an unknown kind, which a later version wrote; None for anything else."""
    try:
        record = from_json(line, allow_inf_nan=False)
    except ValueError:
        return None
    is_later = isinstance(record, dict) and isinstance(record.get("kind"), str) and record["kind"] not in _KINDS
    return record if is_later and isinstance(record.get("time"), int) else None
