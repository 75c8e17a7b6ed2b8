"""Commands on every page: programs and options exist, specs load, and each is run by a test or says
why not.
"""

import click
import pytest

from support.click_commands import load_named_specs, taken
from support.documents import (
    CHECKOUT,
    FOLLOWED,
    DocumentedCommand,
    command_lines,
    documented_commands,
)

OF_EXPERIMENTS = CHECKOUT.glob("experiments/*/README.md")
PAGES = sorted([*CHECKOUT.glob("docs/**/*.md"), CHECKOUT / "README.md", *OF_EXPERIMENTS])
COMMANDS = [command for page in PAGES for command in documented_commands(page)]
OF_DITLAB = [command for command in COMMANDS if command.words[0] == "ditlab"]

RUN_BY = {
    **dict.fromkeys(FOLLOWED, "documents/test_followed_pages.py"),
    "docs/own_family.md": "ditlab/test_own_family_page.py",
    "docs/recovery.md": "ditlab_addons/housekeeping/test_moved_home.py",
}
"""Pages whose commands a test runs; commands of the others are parsed, and their specs loaded."""
OF_A_PACKAGE = "objective.weights.edges"
"""A field that the package of docs/tutorials/own_loss.md brings."""
MISTAKE = "model.dpeth=6"
"""A field that docs/specs.md shows as a mistake."""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_commands_are_taken_by_their_parsers(page, monkeypatch):
    monkeypatch.chdir(CHECKOUT)
    for command in documented_commands(page):
        if command.words[0] != "ditlab":
            continue
        try:
            _, context = taken(command.words[1:])
        except click.ClickException as error:
            pytest.fail(f"{command}: {error.format_message()}")
        if OF_A_PACKAGE not in command.text and MISTAKE not in command.text:
            load_named_specs(context)


@pytest.mark.parametrize(
    "line",
    [
        "train x --lcoal",
        "sample",
        "sample x --num",
        "figures x --theme blue9",
        "runs sync --trakcing x",
    ],
)
def test_words_that_a_command_does_not_take_are_found(line):
    with pytest.raises(click.ClickException):
        taken(line.split())


def test_files_and_targets_that_commands_name_exist():
    makefile = (CHECKOUT / "Makefile").read_text()
    for command in COMMANDS:
        for word in command.words:
            is_spec = command in OF_DITLAB and word.startswith("experiments/") and "*" not in word
            if is_spec or (word.endswith(".py") and "/" in word):
                assert (CHECKOUT / word).is_file(), command
        if command.words[0] == "make":
            assert all(f"\n{target}:" in makefile for target in command.words[1:]), command


def test_commands_of_followed_pages_are_run_or_say_why_not():
    """A page of which a test runs the commands exists, and has some; every reason is a sentence."""
    run = {command.page for command in COMMANDS if not command.reason}
    for page, test in RUN_BY.items():
        assert (CHECKOUT / "tests" / test).is_file() and page in run, page
    assert all(len(command.reason) > 10 for command in COMMANDS if command.reason)


def test_pages_that_nobody_follows_say_why():
    """Commands of the site that no test runs carry a note; those of the README and of results have
    their own tests.
    """
    silent = [
        command
        for command in OF_DITLAB
        if command.page.startswith("docs/") and command.page not in RUN_BY and not command.reason
    ]
    assert not silent, "\n".join(map(str, silent))


def test_the_collector_reads_prompts_comments_and_continued_lines():
    block = (
        "$ ditlab train a.yaml \\\n    --local   # a comment\nrun 1a "
        "finished\n.venv/bin/ditlab ui\nditlab: no\n"
    )
    assert list(command_lines(block)) == ["ditlab train a.yaml --local", ".venv/bin/ditlab ui"]
    command = DocumentedCommand("page", 'ditlab show a.yaml --set "b={c: 1}" > out.yaml', None)
    assert command.words == ["ditlab", "show", "a.yaml", "--set", "b={c: 1}"]
