"""Object that `ditlab runs query` prints under `--json`."""

from typing import Any

from typing_extensions import TypedDict


class QueryOutput(TypedDict):
    columns: list[str]
    rows: list[dict[str, Any]]


RESULTS = {"runs query": QueryOutput}
