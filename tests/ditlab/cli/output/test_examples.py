"""Examples in the help of every command, each taken apart by the command itself."""

import re
import shlex
from pathlib import Path

from ditlab.cli.main import examples_of
from ditlab.parts import commands as described
from support.click_commands import every_command, load_named_specs, taken

CHECKOUT = Path(__file__).parents[4]
EXAMPLES = [line for command in described().values() for line in command.examples]


def words_of(example):
    """Words after `ditlab`, without what a shell does around them."""
    inner = example.removeprefix('eval "$(').removesuffix(')"')
    words = shlex.split(re.split(" [<>] ", inner)[0])
    assert words[0] == "ditlab"
    return words[1:]


def test_every_command_has_examples():
    found = dict(every_command())
    assert set(described()) <= set(found)
    assert all(examples_of(name) for name in found)


def test_examples_are_taken_by_their_commands(monkeypatch):
    monkeypatch.chdir(CHECKOUT)
    for line in EXAMPLES:
        path, context = taken(words_of(line))
        assert line in examples_of(path), line
        load_named_specs(context)


def test_help_shows_examples_as_they_are_written(ditlab):
    for name in ("sample", "data import text", "runs sync"):
        said = ditlab(*name.split(), "--help")
        assert said.out.rstrip("\n").endswith(
            "".join(f"\n    {line}" for line in examples_of(name))
        ), said.out
        assert "  Examples:\n" in said.out
    assert max(map(len, EXAMPLES)) <= 76
