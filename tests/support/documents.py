"""Commands on the pages of the documentation: lines of shell blocks, with the reasons why some are
not run.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
SHELLS = ("", "sh", "bash", "console", "shell")
"""Languages of blocks that hold commands."""
PROGRAMS = (
    "ditlab",
    "python",
    "make",
    "pip",
    "ray",
    "kubectl",
    "helm",
    "docker",
    "sbatch",
    "scancel",
    "tail",
    "openssl",
    "umask",
    "printf",
    "export",
    "set",
    "eval",
    ".",
    "pytest",
    "ruff",
    "mypy",
    "lint-imports",
    "curl",
    "git",
    "mkdir",
)
"""First words of lines that are commands; other lines of such blocks are output."""
NEVER_RUN = {
    "ditlab ui": "a server that runs until it is stopped",
    "ditlab watch": "a server that runs until it is stopped",
    "ditlab submit": "a job of a cluster, which tests/ditlab/cluster submits to Ray nodes of its own",
}
"""Commands that no test of a page runs, whatever the page."""
DIT, UNET, CLASSES, DEMO = (
    f"ditlab train experiments/digits/{name}.yaml" for name in ("dit", "unet", "dit_class", "demo")
)
FOLLOWED = {
    "docs/tutorials/pictures.md": (),
    "docs/specs.md": (),
    "docs/data.md": (),
    "docs/sweeps.md": (),
    "docs/tutorials/text.md": (),
    "docs/tutorials/own_loss.md": (),
    "docs/tutorials/points.md": (),
    "docs/tutorials/sweep.md": (),
    "docs/families/dit.md": (DIT, CLASSES),
    "docs/families/unet.md": (DIT,),
    "docs/figures.md": (DIT,),
    "docs/pages.md": (DIT,),
    "README.md": (DEMO,),
    "docs/ways.md": (DEMO, DIT, UNET),
}
"""Pages whose commands a test runs from start to end, and the trainings that a reader has made
before.
"""
_PAGE_NOTE = re.compile(r"^<!-- not run on this page: (.*?) -->$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]*?) -->\n+)?"
    r"(?:^(?P<fence>```+)(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=fence)[ ]*$"
    r"|(?<=\n\n)(?P<indented>(?:^ {4}[^\n]*\n|^\n)+))",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class DocumentedCommand:
    """A command line of a page."""

    page: str
    """Path of the page in the repository."""
    text: str
    """The line, continued lines joined, without prompt and comment."""
    reason: str | None
    """Why no test runs it; None for a command that is to be run."""

    @property
    def words(self) -> list[str]:
        """The words that the shell passes on, without redirections."""
        return shlex.split(re.split(r" (?:>|\||&&|<) ", self.text)[0])

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def documented_commands(page: Path) -> Iterator[DocumentedCommand]:
    """Find the commands of a page, in order."""
    text = page.read_text(encoding="utf-8")
    whole = _PAGE_NOTE.search(text)
    for block in _BLOCK.finditer(text):
        if block["indented"] is None and block["language"] not in SHELLS:
            continue
        reason = block["reason"] or (whole[1] if whole else None)
        for line in command_lines(block["body"] or block["indented"]):
            why = reason or NEVER_RUN.get(" ".join(line.split()[:2]))
            yield DocumentedCommand(
                str(page.relative_to(CHECKOUT)), line, " ".join(why.split()) if why else None
            )


def command_lines(block: str) -> Iterator[str]:
    """Find the commands of a block: continued lines are joined, prompts and comments dropped."""
    for line in re.sub(r"[ ]*\\\n[ ]*", " ", block).splitlines():
        line = _without_comment(line.strip().removeprefix("$ "))
        if line.split(" ")[0].rpartition("/")[2] in PROGRAMS:
            yield line


def _without_comment(line: str) -> str:
    lexer = shlex.shlex(line, posix=False, punctuation_chars="")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:  # a quote that the next line closes
        return line
    cut = next((number for number, word in enumerate(words) if word.startswith("#")), None)
    return line if cut is None else line[: line.index(f" {words[cut]}")].rstrip() if cut else ""


@dataclass(frozen=True)
class PrintedOutput:
    """Output that a page shows below a command with a prompt."""

    page: str
    """Path of the page in the repository."""
    command: str
    """The command, without its prompt."""
    text: str
    """The lines below it, up to the next prompt or the end of the block."""

    def __str__(self) -> str:
        return f"{self.page}: $ {self.command}"


def printed_outputs(page: Path) -> Iterator[PrintedOutput]:
    """Find the commands of a page that stand after a prompt, and have output below them."""
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        body = re.sub(r"[ ]*\\\n[ ]*", " ", block["body"] or "")
        for command, text in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.MULTILINE):
            if text.strip():
                yield PrintedOutput(str(page.relative_to(CHECKOUT)), command, text)


_VARYING = {
    r"(?<![-\w])[0-9a-f]{8}(?!\w)": "ID",  # of a run
    r"with \d+ threads?": "with N threads",  # of this machine
    r"training loss [\d.]+": "training loss X",  # rounding differs by machine, and grows
    r"\S*/?(?:ditlab|python\S* -m ditlab) (?=ui|sample)": "ditlab ",  # where the command lies
}
"""Patterns of what differs from one run to the next in shown output, and what stands in its
place.
"""


def masked(output: str) -> str:
    """Output without what differs from one run to the next, and without spaces at ends of lines."""
    for varying, name in _VARYING.items():
        output = re.sub(varying, name, output)
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def is_printed(shown: str, printed: str) -> bool:
    """Tell whether shown output is what was printed, but for what differs from one run to the next.

    `...` in a line of its own stands for any lines that were left out, within a line for any text.
    """
    lines = []
    for line in masked(shown).splitlines():
        if line.strip() == "...":
            lines.append(r"(?:.*\n)*?")
        else:
            lines.append(re.escape(line).replace(r"\.\.\.", ".*") + r"\n")
    return re.fullmatch("".join(lines), masked(printed)) is not None


def build_site(folder: Path) -> Path:
    """Build the site, in which every warning is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, str(folder)], cwd=CHECKOUT, capture_output=True, text=True, env=variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
