"""Examples in the help of every command, each taken apart by the command itself."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ditlab.api.specs import load, load_sweep
from ditlab.cli.main import cli, examples_of
from ditlab.parts import commands as described
from ditlab.spec.files import is_sweep

CHECKOUT = Path(__file__).parents[4]
EXAMPLES = [line for command in described().values() for line in command.examples]


def commands(group: click.Group, words: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command of `ditlab` with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        path = f"{words} {name}".strip()
        yield path, command
        if isinstance(command, click.Group):
            yield from commands(command, path)


def parsed(words: list[str]) -> tuple[str, click.Context]:
    """The command's words and its context. Raises click's error for what the command does not
    take.
    """
    command, context, path = cli, click.Context(cli), []
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, command, words = command.resolve_command(context, words)
        path.append(name)
        context = click.Context(command, parent=context)
    if "--help" in words:
        return " ".join(path), context
    return " ".join(path), command.make_context(path[-1], list(words))


def words_of(example: str) -> list[str]:
    """Words after `ditlab`, without what a shell does around them."""
    inner = example.removeprefix('eval "$(').removesuffix(')"')
    words = shlex.split(re.split(" [<>] ", inner)[0])
    assert words[0] == "ditlab"
    return words[1:]


@pytest.fixture(scope="module")
def in_a_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A working directory with the experiments and with data to import, under the names of the
    examples.
    """
    folder = tmp_path_factory.mktemp("examples")
    (folder / "experiments").symlink_to(CHECKOUT / "experiments")
    for name in ("idx", "photos", "pbmc.zarr"):
        (folder / name).mkdir()
    (folder / "book.txt").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield


def test_every_command_has_examples():
    found = dict(commands(cli))
    assert set(described()) <= set(found)
    assert all(examples_of(name) for name in found)


@pytest.mark.usefixtures("in_a_checkout")
def test_examples_are_taken_by_their_commands():
    for line in EXAMPLES:
        path, context = parsed(words_of(line))
        assert line in examples_of(path), line
        for spec in context.params.get("specs") or [
            context.params.get("spec") or context.params.get("sweep")
        ]:
            if isinstance(spec, Path) and "*" not in str(spec):
                spec = Path(line.partition(" < ")[2] or spec)
                (load_sweep if is_sweep(spec) else load)(spec, context.params["overrides"])


@pytest.mark.parametrize(
    "line", ["ditlab train x --lcoal", "ditlab sample", "ditlab runs sync --trakcing x"]
)
def test_an_untrue_example_is_found(line):
    with pytest.raises(click.ClickException):
        parsed(words_of(line))


def test_help_shows_examples_as_they_are_written(ditlab):
    for name in ("sample", "data import text", "runs sync"):
        said = ditlab(*name.split(), "--help")
        assert said.out.rstrip("\n").endswith(
            "".join(f"\n    {line}" for line in examples_of(name))
        ), said.out
        assert "  Examples:\n" in said.out
    assert max(map(len, EXAMPLES)) <= 76
