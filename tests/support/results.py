"""Commands' JSON objects, held to their types in every test of this process that runs a command."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError

from ditlab.cli import output
from ditlab.cli.main import cli
from ditlab.cli.output_types import result_type, result_types


@cache
def strict_type(command: str) -> TypeAdapter[Any]:
    """Type of what a command prints, without a key too many; `data import` for each kind of
    data.
    """
    known = result_type("data import" if command.startswith("data import ") else command)
    return TypeAdapter(
        known, config=ConfigDict(extra="forbid", use_attribute_docstrings=True, strict=True)
    )


def check_result(arguments: Sequence[object], out: str) -> None:
    """Hold the last line of another process's output to the type of its command."""
    words = [str(each) for each in arguments]
    names = (" ".join(words[:number]) for number in (2, 1))
    if (name := next((each for each in names if each in result_types()), "")) and out.strip():
        strict_type(name).validate_json(out.splitlines()[-1])


@pytest.fixture(scope="session", autouse=True)
def results_are_typed() -> Iterator[None]:
    """What a command prints under `--json` has the keys and types that `ditlab schema --result`
    says.
    """
    emit = output.emit

    def checked(result: Mapping[str, Any], as_json: bool, files: Iterable[Path] = ()) -> None:
        emit(result, as_json, files)
        if as_json and (context := click.get_current_context(silent=True)):
            command = context.command_path
            if context.find_root().command is cli:
                command = command.partition(" ")[2]
            try:
                strict_type(command).validate_json(json.dumps(output.finite(result)))
            except ValidationError as error:
                found = [
                    f"{each['loc']}: {each['type']}"
                    for each in error.errors()
                    if each["loc"][0] != "ErrorOutput"
                ]
                raise AssertionError(
                    f"no results.py says what `{command} --json` prints: {found}"
                ) from None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "emit", checked)
        yield
