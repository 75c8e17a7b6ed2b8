"""The command line as click has it: all commands, and lines taken apart by them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import click

from ditlab import load, load_sweep
from ditlab.cli.main import cli
from ditlab.spec.files import is_sweep


def every_command(group: click.Group = cli, *names: str) -> Iterator[tuple[str, click.Command]]:
    """Yield all commands of `ditlab`, groups among them, with the words that call each."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        words = (*names, name)
        yield " ".join(words), command
        if isinstance(command, click.Group):
            yield from every_command(command, *words)


def taken(words: Sequence[str]) -> tuple[str, click.Context]:
    """Take apart the words behind `ditlab` as their command does, but without a look at the files
    that they name; return the command's words, and its context.

    Raises click's error for what the command does not take.
    """
    command: click.Command = cli
    context = click.Context(cli)
    path: list[str] = []
    left = list(words)
    while isinstance(command, click.Group) and left and not left[0].startswith("-"):
        name, found, left = command.resolve_command(context, left)
        assert name is not None and found is not None
        path.append(name)
        command = found
        context = click.Context(command, parent=context)
    if "--help" not in left:
        with mock.patch.object(click.Path, "convert", lambda type_, value, *_: value):
            context = command.make_context(" ".join(path), left)
    return " ".join(path), context


def load_named_specs(context: click.Context) -> None:
    """Load the specs of the repository that a command names, with its settings."""
    params = context.params
    for each in params.get("specs") or [params.get("spec") or params.get("sweep")]:
        if isinstance(each, str) and "*" not in each and Path(each).is_file():
            spec = Path(each)
            (load_sweep if is_sweep(spec) else load)(spec, params.get("overrides") or ())
