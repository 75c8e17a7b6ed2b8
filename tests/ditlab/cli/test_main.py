"""The command itself: its help, its version, unknown names, errors as JSON, and what it imports."""

import ast
import contextlib
import io
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from ditlab import __version__
from ditlab.cli.main import main
from ditlab.cli.output import emit
from ditlab.parts import commands
from ditlab.storage.files import stamped
from support.clusters.faults import wait_until
from support.command import run_inside, run_process
from support.python_process import run_python
from support.results import strict_type
from support.trainings.endings import handles_sigterm

HEAVY = ("torch", "ray", "mlflow", "deepspeed", "pydantic", "pyarrow", "matplotlib", "numpy")


def heavy_after(*commands, light=()):
    """Heavy modules that a fresh process has imported after these commands."""
    code = (
        "import sys\n"
        "from ditlab.cli.main import main\n"
        f"for arguments in {list(commands)}:\n"
        "    sys.argv = ['ditlab', *arguments]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules and name not in {light}])"
    )
    return ast.literal_eval(run_python("-c", code).stdout.splitlines()[-1])


def test_what_the_package_logs_reaches_a_person_once(spec, tmp_path):
    """The logger has a handler that drops all, for programs that use the package."""
    for name in ("a.yaml", "b.yaml"):
        file = tmp_path / name
        file.write_text(stamped(spec.read_text()).replace("depth: 1", "depth: 2"))
        said = run_inside("validate", file, home=tmp_path / "home")
        warning = f"warning: {file} was changed since DiTLab wrote it, by hand or by damage; it "
        assert said.code == 0 and said.err.count("changed since") == 1
        assert said.err.startswith(f"{warning}counts as it is now.\n")


@pytest.mark.parametrize(
    "needed, commands",
    [
        ((), ("--help", "-h", "--version", "")),
        (("pydantic",), ("validate SPEC", "show SPEC")),
        (("pydantic",), ("runs",)),
        pytest.param(
            ("pydantic", "numpy", "pyarrow", "torch"),
            ("plan SPEC", "tune SWEEP --dry-run"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_commands_import_what_they_need(needed, commands, finished, tmp_path, monkeypatch):
    """Specs are checked where there is no store to compare them with."""
    home = tmp_path / "home"
    monkeypatch.setenv("DITLAB_HOME", str(home))
    if "runs" in commands:
        shutil.copytree(finished.home, home)
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        f"name: rates\nbase: {finished.spec}\nmetric: train/loss\nsearch: {{kind: grid}}\n"
        "space:\n  optimizer.lr: {kind: grid, values: [1.0e-3, 1.0e-4]}\n"
    )
    lines = [line.replace("SPEC", str(finished.spec)) for line in commands]
    written = [line.replace("SWEEP", str(sweep)).split() for line in lines]
    assert heavy_after(*written, light=needed) == []


def test_help_lists_every_command_and_each_has_its_own(ditlab):
    listed = ditlab("--help").ok().out
    for name, command in commands().items():
        assert name in listed and command.summary.split()[0] in listed
        said = ditlab(name, "--help").ok()
        assert said.err == "" and said.out.startswith(f"Usage: ditlab {name}")


def test_version(ditlab):
    assert ditlab("--version").ok().out == f"ditlab, version {__version__}\n"


def test_arguments_that_click_refuses_are_one_line_as_well(ditlab):
    for arguments, message in (
        (["trian"], "no command 'trian'; did you mean 'train'?"),
        (["train", "x.yaml", "--lcoal"], "'--local'"),
        (["train"], "Missing argument 'SPEC'"),
        (["sample", "run", "--num", "0"], "'--num'"),
    ):
        ditlab(*arguments).refused(message, "--help`)")


def test_errors_as_json(ditlab):
    for arguments in (["trian", "--json"], ["validate", "nowhere.yaml", "--json"]):
        said = ditlab(*arguments).refused()
        assert said.out.count("\n") == 1
        strict_type("validate" if arguments[0] == "validate" else "runs").validate_python(said.json)
        assert said.json["kind"] == "user_error" and said.json["message"] in said.err


def test_a_fault_of_ours_is_an_object_as_well(ditlab, spec, monkeypatch):
    monkeypatch.setattr("ditlab.api.specs.load", lambda *_: 1 / 0)
    monkeypatch.setattr("sys.argv", ["ditlab", "validate", str(spec), "--json"])
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(ZeroDivisionError):
        main()
    found = json.loads(out.getvalue())
    assert (found["kind"], found["exit_code"]) == ("crash", 1)
    assert found["message"] == "ZeroDivisionError: division by zero"


def test_numbers_that_json_cannot_hold_become_null(capsys):
    metrics = {"train/grad_norm": math.inf, "train/loss": 0.5}
    emit({"metrics": metrics, "files": [math.nan, 1]}, as_json=True)
    metrics = {"train/grad_norm": None, "train/loss": 0.5}
    assert json.loads(capsys.readouterr().out) == {"metrics": metrics, "files": [None, 1]}


ENDING = """
import atexit, os, signal, sys, time
def last_of_all():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
atexit.register(last_of_all)
from ditlab.cli.main import main
sys.argv = ["ditlab", "show", "none.yaml"]
main()
"""


def test_ctrl_c_while_the_process_ends_changes_no_exit_code(tmp_path):
    said = run_python("-c", ENDING, code=2, cwd=tmp_path).stderr
    assert "Traceback" not in said and "KeyboardInterrupt" not in said


def test_an_interruption_that_a_library_makes_another_error_of():
    """As pydantic's core does, where it calls back as it builds a schema."""
    code = (
        "import os, signal\nfrom ditlab.cli import main\n"
        "def building(**_):\n    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    except KeyboardInterrupt:\n        raise ValueError('SchemaError') from None\n"
        "main.cli.main = building\nmain.main()\n"
    )
    assert run_python("-c", code, code=130).stderr == "ditlab: interrupted.\n"


FULL = "ditlab: standard output cannot be used (No space left on device); make room there."
ENDS = (
    "<&-",
    ">&-",
    "2>&-",
    "| head -1",
    "| true",
    "2>&1 | head -1",
    "2> /dev/full",
    "> /dev/full",
)


def in_a_shell(command, end, home, cwd):
    """Run a command whose standard streams end as `end` says; the exit code is the command's."""
    line = f"set -o pipefail; {shlex.quote(sys.executable)} -m ditlab {command} {end}"
    environment = {**os.environ, "DITLAB_HOME": str(home)}
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=100, cwd=cwd, env=environment
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, code",
    [
        ("runs", 0),
        ("runs show {run}", 0),
        ("runs log {run} --json", 0),
        ("runs rm {run} --json", 2),
        ("runz --json", 2),
        ("schema", 0),
        ("show {spec}", 0),
        ("validate {spec}", 0),
        ("new", 0),
        ("data list", 0),
        ("params {spec}", 0),
        ("--help", 0),
    ],
)
def test_streams_that_are_closed_full_or_left_end_a_command_in_a_sentence(
    finished, tmp_path, command, code
):
    command = command.format(run=finished.run_id, spec=shlex.quote(str(finished.spec)))
    for end in ENDS:
        said = in_a_shell(command, end, finished.home, tmp_path)
        text = said.stdout + said.stderr
        assert "Traceback" not in text and "Exception ignored" not in text, (end, text)
        assert "DITLAB_HOME" not in said.stderr and said.returncode in (code, 1), (end, text)
        assert said.returncode == code or ">" in end or "|" in end, (end, text)
        if end == "> /dev/full" and code == 0:
            assert said.returncode == 1 and FULL in said.stderr.splitlines(), text


@pytest.mark.slow
def test_nobody_is_asked_where_standard_input_is_closed(finished, tmp_path):
    said = in_a_shell(f"runs rm {finished.run_id}", "<&-", finished.home, tmp_path)
    assert said.returncode == 2
    assert "nobody can be asked whether to delete" in said.stderr.splitlines()[-1]
    said = in_a_shell("runs --json", "> /dev/full", finished.home, tmp_path)
    assert said.returncode == 1 and said.stderr.splitlines()[-1] == FULL


@pytest.mark.slow
def test_files_of_the_working_folder_take_no_modules_place(finished, tmp_path):
    for name in ("platform", "inspect", "click", "yaml", "ditlab_models"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')")
    run_process("validate", finished.spec, home=finished.home, cwd=tmp_path).ok()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_ends_any_command_without_a_traceback(number):
    """`systemctl stop`, `timeout` and a closed terminal, where nothing is to be saved: here it
    reads a spec.
    """
    command = [sys.executable, "-m", "ditlab", "validate", "-"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: handles_sigterm(process.pid), 20, "a command that is ready")
        process.send_signal(number)
        assert process.stderr and process.stderr.read().strip() == "ditlab: interrupted."
        assert process.wait(20) == 130
