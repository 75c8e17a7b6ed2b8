"""Text of `run.json`: written with a checksum, read with every field checked."""

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from ditlab.errors import first_line
from ditlab.home import RunFolder
from ditlab.storage.checksums import add_checksum, has_checksum, is_intact
from ditlab.storage.plain_files import MIB, read_plain

FORMAT = 2
"""Version of `run.json` that is written; files without the key are of version 1, which had no checksum."""

Status = Literal["running", "finished", "failed", "interrupted", "stopped"]
"""`stopped` is a trial that its sweep's scheduler ended early, for good."""


def _check_time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("no time zone")
    return text


Time = Annotated[str, AfterValidator(_check_time)]
Natural = Annotated[int, Field(ge=0, lt=1 << 53)]


@dataclass(frozen=True)
class RunRecord:
    """Content of `run.json`."""

    run_id: str
    name: str
    family: str
    spec_hash: str
    created: Time
    """ISO 8601, UTC."""
    updated: Time
    """ISO 8601, UTC: when this record last changed."""
    status: Status = "running"
    step: Natural = 0
    total_steps: Natural = 0
    tracking_uri: str = ""
    message: str = ""
    """Reason of a failure or interruption."""
    parent: str = ""
    """Id of the sweep that a trial belongs to."""
    trial: Annotated[int, Field(ge=-1, lt=1 << 53)] = -1
    """Number of a trial in its sweep."""
    trials: Natural = 0
    """Number of trials of a sweep; 0 for a training run."""
    start: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,99}@[0-9]{1,15})?$")] = ""
    """Checkpoint of another run that a fork goes on from, `3f2a1b9c@400`; left out of the file for other runs."""
    plugins: dict[str, str] = field(default_factory=dict, hash=False)
    """Versions of the other packages that the experiment's parts come from, by name; left out of the file where there
    are none."""
    is_altered: bool = field(default=False, compare=False)
    """True if the file's checksum is wrong: a person changed it, or it is damaged. Not in the file."""


class UnreadableRecord(Exception):
    """A run's record cannot be read; the message is the reason, without a full stop."""

    def __init__(self, reason: str, is_run: bool = True) -> None:
        super().__init__(reason)
        self.is_run = is_run
        """False for a folder that holds nothing of a run."""


_RECORD: TypeAdapter[RunRecord] = TypeAdapter(RunRecord)


def encode_run_record(record: RunRecord) -> bytes:
    """The bytes of `run.json`."""
    values = {"format": FORMAT, **asdict(record)}
    del values["is_altered"]
    for name in ("start", "plugins"):
        if not values[name]:
            del values[name]
    return add_checksum(json.dumps(values, indent=1).encode())


def read_run_record(folder: RunFolder) -> RunRecord:
    """Read a run's record. Raises UnreadableRecord."""
    try:
        content = read_plain(folder.record, MIB)
    except FileNotFoundError:
        has_files = folder.path.is_dir() and any(folder.path.iterdir())
        raise UnreadableRecord("it is missing", is_run=has_files) from None
    except OSError as error:
        raise UnreadableRecord(first_line(error)) from None
    if folder.path.is_symlink():
        raise UnreadableRecord("the run's folder is a link; move the folder itself here")
    version = _version(content)
    if type(version) is not int or version > FORMAT:
        raise UnreadableRecord(f"a later version of DiTLab wrote it, in format {version!r}; this one reads {FORMAT}")
    try:
        record = _RECORD.validate_json(content, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        raise UnreadableRecord(f"{'.'.join(map(str, problem['loc']))[:80]}: {problem['msg']}") from None
    # The folder's name is the id; a copied folder is a run of its own.
    is_altered = (version > 1 or has_checksum(content)) and not is_intact(content)
    if record.run_id == folder.run_id and record.is_altered == is_altered:
        return record  # `replace` takes longer than the parsing
    return replace(record, run_id=folder.run_id, is_altered=is_altered)


def _version(content: bytes) -> object:
    try:
        values: Any = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise UnreadableRecord(f"no JSON: {first_line(error)}") from None
    if not isinstance(values, dict):
        raise UnreadableRecord("no JSON object")
    return values.get("format", 1)
