"""The command line's reference, from the commands themselves."""

import inspect
from collections.abc import Iterator

import click

from ditlab.cli.main import cli

INTRODUCTION = """# The command line

Made from the commands' own help. Every command takes `-h` or `--help`, and ends with
examples there. Exit codes: 0 done, 1 a run failed, 2 the input is
wrong, 130 interrupted after a final checkpoint.

"""


def commands_page() -> str:
    """Return the page: a section for each command."""
    return INTRODUCTION + "\n".join(
        _section(command, context) for command, context in walk(cli, "ditlab")
    )


def walk(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield the commands below one, with the contexts that know their whole names; groups of
    commands are included.
    """
    context = click.Context(
        command, info_name=name, parent=parent, max_content_width=100, terminal_width=100
    )
    if parent is not None:
        yield command, context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            if (found := command.get_command(context, below)) and not found.hidden:
                yield from walk(found, below, context)


def _section(command: click.Command, context: click.Context) -> str:
    level = "#" * (1 + context.command_path.count(" "))
    text = f"{level} {context.command_path}\n\n{_prose(command.help or '')}\n\n"
    text += (
        f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    )
    rows = [
        record
        for param in command.params
        if (record := param.get_help_record(context)) and record[1]
    ]
    if rows:
        text += "\n| option | |\n|---|---|\n"
        text += "".join(f"| `{_cell(what)}` | {_meaning(why)} |\n" for what, why in rows)
    if command.epilog:
        text += "\n```text\n" + "\n".join(_examples(command.epilog)) + "\n```\n"
    return text


def _examples(epilog: str) -> list[str]:
    return [
        line.strip()
        for line in epilog.replace("\b", "").splitlines()
        if line.strip().startswith(("ditlab", "eval"))
    ]


def _cell(text: str) -> str:
    return " ".join(text.split())


def _meaning(text: str) -> str:
    return _prose(_cell(text)).replace("|", "\\|")


def _prose(text: str) -> str:
    return inspect.cleandoc(text.replace("\b\n", "")).replace("<", "&lt;")
