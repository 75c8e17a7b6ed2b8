"""The section `notify` of experiments and sweeps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from ditlab.spec.uris import refuse_address
from ditlab_models.contract import Spec

NotifyEvent = Literal["finished", "failed", "diverged", "lost"]


class Notification(Spec):
    """Messages to people about events of a run."""

    on: Annotated[tuple[NotifyEvent, ...], Field(strict=False)]
    """Events: `finished`; `failed`; `diverged`, a failure by NaN or infinity; `lost`, a worker or
    node was lost, and the run goes on without it (one message), or the process that leads the run
    is gone, which `ditlab watch RUN --notify` notices."""
    to: str
    """`env:NAME`: environment variable of the process that starts the run, with one or several
    addresses. An http(s) address receives JSON by POST, others are those of apprise (`pip install
    'ditlab[notify]'`). A spec never holds an address itself."""

    @field_validator("on")
    @classmethod
    def _some_event(cls, on: tuple[NotifyEvent, ...]) -> tuple[NotifyEvent, ...]:
        if not on:
            raise ValueError(
                "notify.on=[] names no event; write some, such as [finished, failed], or leave "
                "`notify` out."
            )
        return on

    _names_a_variable = field_validator("to")(refuse_address)

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return self.to.removeprefix("env:")


class NotifySection(Spec):
    """Section of an experiment."""

    notify: Annotated[tuple[Notification, ...], Field(strict=False)] = ()
    """Messages to people: `[{on: [finished, failed, diverged, lost], to: env:DITLAB_NOTIFY}]`. The
    trials of a sweep send none."""


class SweepNotifySection(Spec):
    """Section of a sweep."""

    notify: Annotated[tuple[Notification, ...], Field(strict=False)] = ()
    """Messages to people about the sweep, as `notify` of an experiment."""
