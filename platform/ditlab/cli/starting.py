"""Options of a fork: `--from` and `--weights-only`."""

from collections.abc import Callable
from typing import Any

import click

from ditlab.cli.completing import complete_run

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

start_option: Decorator = click.option(
    "--from",
    "start_from",
    metavar="RUN[@STEP]",
    shell_complete=complete_run,
    help="Go on from another run's checkpoint, with its optimiser and step: a fork. Without STEP, its newest one.",
)
weights_only_option: Decorator = click.option(
    "--weights-only",
    is_flag=True,
    help="Take over weights alone, from step 0: averaged ones where there is an average; --set start.state=trained for "
    "the others.",
)


def start_overrides(start_from: str | None, weights_only: bool, resume: str | None, prefix: str = "") -> list[str]:
    """Return what `--from` and `--weights-only` set in a spec, as `--set` takes it. Raises UserError."""
    if start_from is None and not weights_only:
        return []
    from ditlab.home import Home
    from ditlab.runs.forks import requested_start

    start = requested_start(start_from, weights_only, resume, Home.from_environment())
    return [prefix + start.override()] if start else []
