"""Objects that commands of this folder print under `--json`."""

from typing import Any, NotRequired

from typing_extensions import TypedDict

WrittenStoreOutput = TypedDict(
    "WrittenStoreOutput",
    {
        "name": str,
        "path": str,
        "rows": int,
        "fingerprint": str,
        "outcome": str,
        "note": str | None,
        "text": dict[str, Any] | None,
        "receipt": dict[str, Any] | None,
        "left_out": dict[str, int],
        "sizes": NotRequired[dict[str, int]],
        "classes": NotRequired[list[str]],
    },
)


class ImportOutput(TypedDict):
    """`ditlab data import`."""

    stores: list[WrittenStoreOutput]
    kind: str
    dry_run: NotRequired[bool]


UploadOutput = TypedDict(
    "UploadOutput",
    {
        "name": str,
        "rows": int,
        "fingerprint": str,
        "uri": str,
        "outcome": str,
        "files_sent": int,
        "bytes": int,
    },
)

ListedStoreOutput = TypedDict(
    "ListedStoreOutput",
    {
        "store": str,
        "name": str,
        "rows": int,
        "classes": int,
        "bytes": int,
        "runs": list[str],
        "problem": str,
    },
)

StoresOutput = TypedDict("StoresOutput", {"stores": list[ListedStoreOutput]})


RESULTS = {
    "data import": ImportOutput,
    "data upload": UploadOutput,
    "data list": StoresOutput,
}
"""Type of the object of each command; `data import` stands for each kind of data."""
