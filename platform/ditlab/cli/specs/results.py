"""Objects that commands of this folder print under `--json`."""

from typing import Any, NotRequired

from typing_extensions import TypedDict

from ditlab.cli.output_types import FilesOutput

ParamsOutput = TypedDict(
    "ParamsOutput",
    {
        "total": int,
        "trainable": int,
        "components": dict[str, int],
        "training_only": dict[str, int],
        "not_trained": dict[str, int],
        "roles": dict[str, int],
        "by_parameter": list[dict[str, Any]],
        "shapes": NotRequired[list[dict[str, Any]]],
    },
)


class ValidateOutput(TypedDict):
    """`ditlab validate`."""

    valid: list[str]
    spec_hash: dict[str, str]
    """Hash over the fields that decide the trained weights, of each experiment."""
    not_compared: dict[str, str]
    """Reason why a spec was not compared with its data, by spec: they are not on this machine, or
    not written yet.
    """


ShowOutput = TypedDict("ShowOutput", {"spec": dict[str, Any], "spec_hash": NotRequired[str]})


RESULTS = {
    "params": ParamsOutput,
    "validate": ValidateOutput,
    "show": ShowOutput,
    "schema": FilesOutput | dict[str, Any],
}
"""Type of the object of each command."""
