"""Text of files on a terminal: no markup, no control characters, no secrets."""

import io
import json

import pytest
from rich.table import Table
from rich.text import Text

from ditlab.cli.progress import TerminalConsole, status_text
from ditlab.cli.terminal import escape_for_terminal, escape_line
from ditlab.home import Home
from ditlab.spec.files import load_experiment
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.records import create_run, update_record
from support.python_process import run_python
from support.sweeps import BASE, LR, sweep_of

HOSTILE = "[red]x[/]\x1b[2J"
SHOWN = "[red]x[/]\\x1b[2J"


@pytest.mark.parametrize(
    "character, escape",
    [
        ("\0", "\\x00"),
        ("\x1b", "\\x1b"),
        ("\x7f", "\\x7f"),
        ("\x9b", "\\x9b"),
        ("\u202e", "\\u202e"),
        ("\u200f", "\\u200f"),
        ("\u2028", "\\u2028"),
        ("\udc80", "\\udc80"),
    ],
)
def test_control_characters_become_escapes(character, escape):
    assert escape_for_terminal(f"a{character}b") == f"a{escape}b"


def test_layout_and_other_scripts_stay():
    text = "ä 漢字 🙂 · \ttab\nnext"
    assert escape_for_terminal(text) == text
    assert escape_line("a\tb\nc") == "a\\tb\\nc"


def test_console_prints_names_as_they_are(monkeypatch):
    monkeypatch.setenv("SOME_PASSWORD", "not-to-be-seen")
    console = TerminalConsole(
        file=io.StringIO(), force_terminal=True, width=80, _environ={"TERM": "xterm"}
    )
    table = Table(title=f"{HOSTILE} title", caption="[/nothing]")
    table.add_column(HOSTILE)
    table.add_row(f"{HOSTILE} cell not-to-be-seen :smile:")
    table.add_row(Text(f"text {HOSTILE}"))
    table.add_row(status_text(f"failed{HOSTILE}"))
    console.print(table, f"{HOSTILE} printed")
    found = console.file.getvalue()
    assert found.count(SHOWN) == 6 and "\x1b[2J" not in found
    assert "[/nothing]" in found and ":smile:" in found
    assert "not-to-be-seen" not in found and "***" in found


@pytest.fixture
def hostile_run(home, spec):
    """The id of a run without a checkpoint, whose name is markup and an escape sequence."""
    folder = create_run(Home.from_environment(), HOSTILE, family=HOSTILE, spec_hash="")
    folder.spec.write_text(dump_yaml(load_experiment(spec).to_dict()))
    update_record(folder, status="failed", message=HOSTILE)
    return folder.run_id


def assert_tame(said):
    assert "\x1b" not in said.out + said.err and "Traceback" not in said.err, said


def test_name_of_a_run_in_the_list(ditlab, hostile_run):
    said = ditlab("runs").ok()
    assert SHOWN in said.out
    assert_tame(said)
    assert ditlab("runs", "--json").json["runs"][0]["name"] == HOSTILE


@pytest.mark.parametrize(
    "command",
    ["compare RUN other", "sample RUN", "evaluate RUN", "figures RUN", "export RUN --out x"],
)
def test_name_of_a_run_in_an_error(ditlab, hostile_run, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    for name in (HOSTILE, f"{HOSTILE}unknown"):
        words = [name if word == "RUN" else word for word in command.split()]
        assert_tame(ditlab(*words).refused(SHOWN))


def test_an_unknown_command_and_path_in_an_error(ditlab, tmp_path):
    assert_tame(ditlab(HOSTILE).refused())
    said = ditlab("train", tmp_path / "\x1b[2J.yaml", "--dry-run")
    assert_tame(said.refused("\\x1b[2J.yaml"))


def test_values_of_a_sweep(ditlab, tmp_path):
    base = {**BASE, "name": HOSTILE}
    sweep = {**sweep_of(LR, trials=2).to_dict(), "name": HOSTILE, "base": base}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    for path in (tmp_path / "sweep.json", tmp_path / f"{HOSTILE.replace('/', '_')}.yaml"):
        assert_tame(ditlab("tune", path, "--dry-run").refused("\\x1b[2J"))


def test_warning_of_another_package():
    code = "import warnings; from ditlab.cli import main; warnings.showwarning = main._show_warning; warnings.warn('\\x1b[2J[red]')"
    said = run_python("-c", code).stderr
    assert "\\x1b[2J[red]" in said and "\x1b" not in said
