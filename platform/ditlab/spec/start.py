"""Start of a run from another run's checkpoint: a fork."""

import json
import re
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator

from ditlab.errors import UserError
from ditlab.spec.values import format_value
from ditlab_models.contract import Spec

_RUN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"

StartState = Literal["all", "averaged", "trained"]


class Start(Spec):
    """Checkpoint of another run, from which this one goes on: a fork."""

    run: str
    """Id of the other run, the parent."""
    step: Annotated[int, Field(ge=0, lt=2**53)]
    """Step of the parent's checkpoint."""
    state: StartState = "all"
    """`all`: weights, moments, average and step count; schedules and noise go on at that step.
    `averaged`: the moving average's weights alone, `trained`: the trained weights alone, each with
    a fresh optimiser, from step 0."""

    @field_validator("run")
    @classmethod
    def _names_a_folder(cls, run: str) -> str:
        if not re.fullmatch(_RUN, run):
            raise ValueError(
                f"start.run={format_value(run)} is no id of a run; `ditlab runs` lists them."
            )
        return run

    @property
    def first_step(self) -> int:
        """Optimiser steps that count as done when the fork begins."""
        return self.step if self.state == "all" else 0

    @property
    def point(self) -> str:
        """Run and step in a word: `3f2a1b9c@400`."""
        return f"{self.run}@{self.step}"

    def override(self) -> str:
        """Return the start as `--set` takes it."""
        return f"start={json.dumps(self.model_dump())}"


def first_step(start: Start | None) -> int:
    """Return the optimiser steps that count as done when a run begins; 0 for a run that is no
    fork.
    """
    return start.first_step if start else 0


class NamedStart(NamedTuple):
    """Id, name or prefix of an id of a run, and step as `--from` names them; None for the newest
    checkpoint.
    """

    run: str
    step: int | None


def parse_start(text: str) -> NamedStart:
    """Parse `RUN` or `RUN@STEP`. Raises UserError."""
    run, at, step = text.partition("@")
    if not re.fullmatch(_RUN, run) or (at and not re.fullmatch(r"[0-9]{1,15}", step)):
        raise UserError(
            f"--from {format_value(text)} names no checkpoint; write RUN@STEP with a whole "
            "number, such as digits-dit@400, or RUN alone for its newest one."
        )
    return NamedStart(run, int(step) if at else None)
