"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab import parts
from ditlab.cli.output import say
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.storage.local import refuse_ray_copy

if TYPE_CHECKING:
    from ditlab.api.run import Run
    from ditlab.cli.progress import ProgressBars
    from ditlab.tracking.records import FoundRun


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class NewPath(click.Path):
    """Path that a command writes: none in the copy of a folder that Ray deletes after a job."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path as given. Raises UserError for one that is lost with a job."""
        found = super().convert(value, param, ctx)
        option = param.opts[0] if param else "path"
        refuse_ray_copy(
            Path(os.fsdecode(found)).absolute(),
            f"{option} {value}",
            "give an absolute path outside it",
        )
        return found


as_json = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object as the last line of standard output."
)
anyway = click.option(
    "--anyway",
    is_flag=True,
    help="Go on where the data are other than the run's; nothing is added to the run.",
)
overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="P=V",
    help="Override a field by its dotted path: optimizer.lr=1e-4.",
)
quick = click.option(
    "--quick",
    is_flag=True,
    help=(
        "Shorten it to about a minute: few steps, small batches, few evaluated samples. Prints "
        "what it changes; fields of --set stay."
    ),
)
grace = click.option(
    "--grace",
    type=click.FloatRange(min=1.0),
    default=25.0,
    show_default=True,
    metavar="S",
    envvar="DITLAB_GRACE",
    help=(
        "Seconds from a signal (Ctrl-C, SIGTERM, a batch system's) to the end: what is not "
        "saved by then is lost."
    ),
)
seeds = click.option(
    "--seeds",
    type=click.IntRange(min=2),
    metavar="N",
    help=(
        "Train N runs, one after the other, under the spec's seed, the next one, and so on: a "
        "group, which `ditlab compare` and `ditlab runs` show as one. With --resume GROUP its "
        "unfinished runs go on."
    ),
)
figures = click.option(
    "--figures/--no-figures",
    default=None,
    envvar="DITLAB_FIGURES",
    help=(
        "Draw all of the family's figures at the end, or none. Default: samples and loss, then "
        "others for up to a tenth of the training's time; with --quick samples and loss alone; "
        "of a large network without a GPU the loss."
    ),
)
spec = click.argument("spec", type=click.Path(path_type=Path))
run = click.argument("run")
ema = click.option(
    "--ema",
    metavar="LENGTH",
    help="An average of this relative length, as in `ditlab evaluate --ema`.",
)
train_address = click.option(
    "--address", help="Ray cluster to train on (default: RAY_ADDRESS, else this machine alone)."
)


class FormatChoice(click.Choice[str]):
    """Form of an export."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return a known form. Raises UserError for one of an add-on that is not here."""
        if value not in self.choices and (reason := parts.absent_part("export format", str(value))):
            raise UserError(reason)
        return super().convert(value, param, ctx)


def export_format(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--format` of exports."""
    others = parts.export_formats()
    own = "ditlab, or safetensors: weights and spec."
    text = " ".join([own, *(each.help for each in others.values())])
    choice = FormatChoice([*parts.OWN_FORMATS, *others])
    return click.option(
        "--format", "form", type=choice, default="ditlab", show_default=True, help=text
    )(command)


def start_checks(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each check before a run begins (`ditlab.parts.StartCheck`)."""
    for check in parts.start_checks().values():
        command = click.option(f"--{check.name}", is_flag=True, help=check.help)(command)
    return command


def added(name: str) -> Decorator:
    """Return the options of add-ons for a command (`ditlab.parts.CommandOption`)."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in parts.command_options(name).values():
            command = click.option(option.name, is_flag=True, help=option.help)(command)
        return command

    return decorated


def start(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `--from` and `--weights-only`."""
    text = (
        "Go on from another run's checkpoint, with its optimiser and step: a fork. Without "
        "STEP, its newest one."
    )
    alone = (
        "Take over only the weights, and begin at step 0: averaged weights where that run "
        "keeps an average; --set start.state=trained takes the trained ones."
    )
    decorated = click.option("--weights-only", is_flag=True, help=alone)(command)
    meta = "RUN[@STEP]"
    return click.option("--from", "start_from", metavar=meta, help=text)(decorated)


def batch(default: int | None) -> Decorator:
    """Return the option `--batch` with its default; None: the run's own."""
    text = "Samples at once; lower it where memory is short."
    shown = True if default else "the run's"
    return click.option(
        "--batch", default=default, show_default=shown, type=click.IntRange(min=1), help=text
    )


@contextmanager
def opened_run(name: str, anyway: bool = False) -> Iterator[tuple[Run, ProgressBars]]:
    """Open a run of DITLAB_HOME, and show what is done with it inside as progress. Raises
    UserError.
    """
    from ditlab.cli.progress import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab.api.run import open_run

        progress.stage("opening the run")
        yield open_run(name, warn=progress.say, on_progress=progress, anyway=anyway), progress


def find_noted(name: str) -> FoundRun:
    """Find a run or sweep in DITLAB_HOME, and print the note on it, if any. Raises UserError."""
    from ditlab.tracking.records import find_run

    found = find_run(Home.from_environment(), name)
    if found.note:
        say(found.note)
    return found


def start_overrides(
    start_from: str | None, weights_only: bool, resume: str | None, prefix: str = ""
) -> list[str]:
    """Return what `--from` and `--weights-only` set in a spec, as `--set` takes it. Raises
    UserError.
    """
    if start_from is None and not weights_only:
        return []
    from ditlab.runs.forks import requested_start

    start = requested_start(start_from, weights_only, resume, Home.from_environment())
    return [prefix + start.override()] if start else []
