"""Output that pages show below `$ COMMAND` is what the command prints, or is named here with a
reason.
"""

import os
import re
import shlex
from pathlib import Path

import pytest

from support.command import run_inside
from support.documents import CHECKOUT, is_printed, printed_outputs
from support.python_process import run_python

PAGES = sorted([*(CHECKOUT / "docs").rglob("*.md"), CHECKOUT / "README.md"])
SHOWN = {str(output): output for page in PAGES for output in printed_outputs(page)}

DEMO = "README.md: $ make demo"
PLAN = "docs/addons/plan.md: $ ditlab plan experiments/pixelhdm/base.yaml"
AS_IT_STANDS = (
    "docs/specs.md: $ ditlab train experiments/digits/dit.yaml --set model.dpeth=6",
    "docs/agents.md: $ ditlab validate experiments/digits/dit.yaml --set model.dpeth=6 --json",
    "docs/agents.md: $ ditlab validate experiments/digits/dit.yaml --json",
)
KEYS_ONLY = "docs/agents.md: $ "
"""Objects of trainings on a busy machine: their keys are compared, their numbers are of that
machine.
"""
NOT_COMPARED = {
    "docs/data.md: $ ditlab data import images --source pets": "7,390 photographs are needed",
    "docs/cluster.md: $ ditlab doctor --cluster": "several nodes are needed; tests/ditlab_addons/doctor has them",
}
SHORT = (
    "training.steps=2",
    "schedule.warmup=0",
    "evaluation.samples=1",
    "evaluation.limit=8",
    "sampling.steps=1",
    "tracking.system_metrics=false",
)
"""Settings that make the demo a matter of seconds, and change no printed number but the steps."""


def shown(name):
    """The one block whose page and command begin so."""
    (found,) = [output for key, output in SHOWN.items() if key.startswith(name)]
    return found


def test_every_shown_output_is_compared_or_says_why_not():
    known = (DEMO, PLAN, KEYS_ONLY, *AS_IT_STANDS, *NOT_COMPARED)
    assert not [name for name in SHOWN if not name.startswith(known)]
    assert all(shown(name) for name in known if name != KEYS_ONLY)


@pytest.mark.parametrize("name", AS_IT_STANDS)
def test_a_quick_command_prints_what_its_page_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(CHECKOUT)
    check(shown(name), printed_by(shown(name).command, tmp_path / "home"))


@pytest.mark.slow
def test_the_plan_prints_what_its_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setenv("COLUMNS", "80")
    check(shown(PLAN), printed_by(shown(PLAN).command, tmp_path / "home"))


def printed_by(command, home):
    """Standard output of a command; of a mistake, which has none, the sentence."""
    said = run_inside(*shlex.split(command)[1:], home=home)
    return said.out or said.err


@pytest.mark.parametrize("name", [name for name in SHOWN if name.startswith(KEYS_ONLY)])
def test_keys_of_shown_objects_are_those_of_the_command(name):
    words = SHOWN[name].command.split()
    schema = run_inside(
        "schema", "--result", words[words.index("ditlab") + 1], home=Path("/nowhere")
    ).out
    keys = set(re.findall(r'"(\w+)":', SHOWN[name].text))
    assert keys <= {*re.findall(r'"(\w+)"', schema), "core", "eval"}


def check(output, printed):
    if not is_printed(output.text, printed):
        pytest.fail(
            f"{output.page} shows other lines than `{output.command}` prints today:\n\n{printed}"
        )


def whole(out, err):
    """Both streams of a training as a terminal shows them at the end: the next command last,
    without progress, and without the line on threads that OMP_NUM_THREADS, which tests set, brings.
    """
    said = [
        line for line in err.splitlines() if not line.startswith(("[", "threads of each worker: "))
    ]
    next_ones = [line for line in said if line.startswith("next: ")]
    return "\n".join(
        [*(line for line in said if line not in next_ones), *out.splitlines(), *next_ones, ""]
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory as a fresh checkout is one: with the experiments, without runs."""
    (tmp_path / "experiments").symlink_to(CHECKOUT / "experiments")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_short_demo_prints_what_the_readme_shows(folder, blank_pictures):
    settings = [part for setting in SHORT for part in ("--set", setting)]
    words = ("train", "experiments/digits/demo.yaml", "--local", "--no-figures", *settings)
    said = run_inside(*words, home=folder / "runs").ok()
    printed = whole(said.out, said.err).replace("2 steps", "900 steps")
    printed = printed.replace("00000002.png", "00000900.png")
    output = shown(DEMO)
    if not is_printed(output.text, printed):
        pytest.fail(
            f"README.md shows other lines than `{output.command}` prints; `python -m pytest -m "
            "slow -k whole_demo tests/ditlab/interface/test_printed_output.py` trains it and "
            f"prints those to paste:\n\n{printed}"
        )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_demo_prints_what_the_readme_shows(folder):
    """All 900 steps on Ray, as `make demo` does. The training loss may differ in its last digits,
    no more.
    """
    ours = ("DITLAB_HOME", "DITLAB_FIGURES")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    command = ("-m", "ditlab", "train", "experiments/digits/demo.yaml")
    done = run_python(*command, timeout=1800, env=kept)
    printed = whole(done.stdout, done.stderr)
    check(shown(DEMO), printed)
    losses = re.findall(r"training loss ([\d.]+)", shown(DEMO).text + printed)
    assert float(losses[-1]) == pytest.approx(float(losses[0]), rel=0.1), printed


def test_the_table_of_times_has_the_phases_of_a_run(finished, with_run):
    """Names and columns of the table on docs/performance.md, in a run's own."""
    page = (CHECKOUT / "docs" / "performance.md").read_text()
    assert table_of(page) == table_of(with_run("runs", "show", finished.run_id).out)


def table_of(text):
    """Header and phases of the first table of times in a text."""
    found = re.search(
        r"^where the time of .*\n(.*)\n((?:  \w+ +[\d,.]+ .*\n)+)", text, re.MULTILINE
    )
    assert found
    return [found[1], *(row.split()[0] for row in found[2].splitlines())]


LINES = "a: 1\n  ...\nrun 601c4930 took ... s\nnext: .venv/bin/ditlab sample 601c4930\n"


@pytest.mark.parametrize(
    "printed, same",
    [
        ("a: 1\nb\nc\nrun 12345678 took 44 s\nnext: /x/python3 -m ditlab sample 12345678\n", True),
        ("a: 1\nrun 12345678 took 44 s\nnext: ditlab sample 12345678\n", True),
        ("a: 2\nrun 12345678 took 44 s\nnext: ditlab sample 12345678\n", False),
        ("a: 1\nrun 12345678 took 44 s\nrun 1\nnext: ditlab sample 12345678\n", False),
        ("a: 1\nrun 12345678 took 44 s\n", False),
    ],
)
def test_a_changed_line_is_found(printed, same):
    assert is_printed(LINES, printed) == same
