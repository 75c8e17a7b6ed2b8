"""What a command line changes of a finished run: how it samples, and where the encoders of its prompts are."""

from collections.abc import Mapping, Sequence
from typing import Any

from ditlab.errors import UserError
from ditlab.spec.overrides import Assignment, parse_overrides

TAKEN = ("sampling", "encoders")
"""Sections of an experiment that a finished run still takes: its encoders may lie elsewhere than where it trained."""


def sampling_changes(given: Mapping[str, Any], overrides: Sequence[str]) -> list[Assignment]:
    """`given`: values by the name of a field of `sampling`, None where an option was left out; `overrides`: the texts
    of `--set`. Raises UserError for an override of anything else."""
    changes = [
        Assignment(f"sampling.{name}", value, f"--{name} {value}") for name, value in given.items() if value is not None
    ]
    for change in parse_overrides(overrides):
        if change.keys[0] not in TAKEN or len(change.keys) < 2:
            raise UserError(
                f"{change.source}: a finished run takes sampling settings and other places of its encoders alone; "
                "write --set sampling.KEY=VALUE or --set encoders.KEY=VALUE."
            )
        changes.append(change)
    return changes
