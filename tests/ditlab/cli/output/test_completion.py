"""Completion in a shell: commands, options, files and runs, without any heavy import."""

import os
import subprocess
import sys
import time

import pytest

from ditlab.cli.options import MOST_RUNS, complete_resume, complete_run
from ditlab.home import Home
from ditlab.tracking.records import create_run, update_record

HEAVY = ("torch", "ray", "mlflow", "deepspeed", "pydantic", "pyarrow", "matplotlib", "numpy", "rich")


def completed(line, home, shell="bash"):
    """Completions of a command line, as the shell's script asks for them, and the heavy modules that it took."""
    code = (
        "import sys\nfrom ditlab.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('heavy', [name for name in {HEAVY} if name in sys.modules])"
    )
    words = line.split(" ")
    environment = {
        **os.environ, "DITLAB_HOME": str(home), "_DITLAB_COMPLETE": f"{shell}_complete", "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == ""
    *lines, heavy = done.stdout.splitlines()
    assert heavy == "heavy []", heavy
    return lines


@pytest.fixture
def runs(home):
    """Ids of runs, the newest first: `second`, `first`, and one whose name a terminal would obey."""
    ids = []
    for age, name in enumerate(["second", "first", "bad\x1b[2J name"]):
        folder = create_run(Home.from_environment(), name, family="dit", spec_hash="")
        update_record(folder, status="finished")
        os.utime(folder.path, (1000 - age, 1000 - age))
        ids.append(folder.run_id)
    return ids


def test_commands_and_runs_are_completed_without_heavy_imports(runs, home):
    assert completed("ditlab sa", home) == ["plain,sample"]
    for command in ("sample", "report", "watch"):
        assert completed(f"ditlab {command} ", home) == [f"plain,{run_id}" for run_id in runs]


def test_runs_by_id_and_by_name(runs):
    found = complete_run(None, None, "")
    assert [(item.value, item.help) for item in found] == [
        (runs[0], "second, finished"), (runs[1], "first, finished"), (runs[2], "finished")
    ]  # fmt: skip
    assert [item.value for item in complete_run(None, None, runs[1][:5])] == [runs[1]]
    assert [(item.value, item.help) for item in complete_run(None, None, "sec")] == [("second", f"newest: {runs[0]}")]
    assert complete_run(None, None, "bad") == []
    assert [item.value for item in complete_resume(None, None, "")] == ["auto", *runs]


def test_runs_that_cannot_be_read_are_offered_by_id(runs, home):
    for place, content in zip(runs, (b"[1]", b"\xff", b"{"), strict=True):
        (home / "train" / place / "run.json").write_bytes(content)
    (home / "train" / "a b;c").mkdir()
    assert {(item.value, item.help) for item in complete_run(None, None, "")} == {(run_id, "") for run_id in runs}


def test_home_without_runs(home):
    assert complete_run(None, None, "") == []


def test_many_runs_are_bounded(home):
    for number in range(MOST_RUNS + 50):
        (home / "train" / f"{number:08d}").mkdir(parents=True)
    begin = time.process_time()
    assert len(complete_run(None, None, "")) == MOST_RUNS
    assert time.process_time() - begin < 0.5


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete -o nosort"), ("zsh", "compdef"), ("fish", "complete ")])
def test_script_of_a_shell(ditlab, shell, word):
    said = ditlab("completion", shell)
    assert said.code == 0 and word in said.out and f"_DITLAB_COMPLETE={shell}_complete" in said.out
    assert said.err.startswith("next: ")
    assert ditlab("completion", shell, "--json").json["script"].strip() == said.out.strip()


def test_bash_takes_the_script(runs, home):
    """The script, the function that it defines, and the answer of the real command."""
    script = (
        'eval "$(ditlab completion bash 2>/dev/null)"\nCOMP_WORDS=(ditlab sample "")\nCOMP_CWORD=2\n'
        '_ditlab_completion ditlab\necho "${COMPREPLY[@]}"'
    )
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # noqa: PTH120
    environment = {**os.environ, "PATH": path, "DITLAB_HOME": str(home)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == runs, done.stderr
