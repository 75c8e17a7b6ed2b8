"""The command itself: its help, its version, names that are none, errors as JSON."""

import json
import subprocess
import sys

import pytest

from denoisers.families import families
from ditlab.cli.main import COMMANDS
from support.command import run_process

HEAVY = ("torch", "ray", "mlflow", "deepspeed", "pydantic", "pyarrow", "matplotlib", "numpy")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"], []], ids=str)
def test_help_and_version_import_nothing_heavy(arguments):
    code = (
        "import sys\n"
        f"sys.argv = ['ditlab', *{arguments}]\n"
        "from ditlab.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_lists_every_command(ditlab):
    said = ditlab("--help")
    assert said.code == 0
    for name, (_, text) in COMMANDS.items():
        assert name in said.out and text.split()[0] in said.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(ditlab, name):
    said = ditlab(name, "--help")
    assert said.code == 0 and said.err == ""
    assert said.out.startswith(f"Usage: ditlab {name}")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("data", "runs", "ui")])
def test_every_command_takes_json(ditlab, name):
    assert "--json" in ditlab(name, "--help").out


def test_version(tmp_path):
    from ditlab import __version__

    said = run_process("--version", home=tmp_path / "home")
    assert (said.code, said.out.strip()) == (0, f"ditlab, version {__version__}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "no command 'trian'; did you mean 'train'?"),
        (["train", "x.yaml", "--lcoal"], "'--local'"),
        (["train"], "Missing argument 'SPEC'"),
        (["sample", "run", "--num", "0"], "'--num'"),
    ],
    ids=["command", "option", "argument", "value"],
)
def test_what_click_refuses_is_one_line_as_well(ditlab, arguments, message):
    said = ditlab(*arguments)
    assert said.code == 2 and said.out == ""
    assert message in said.err and said.err.count("\n") == 1 and "--help`)" in said.err


@pytest.mark.parametrize("arguments", [["trian", "--json"], ["validate", "nowhere.yaml", "--json"]], ids=str)
def test_errors_as_json(ditlab, arguments):
    said = ditlab(*arguments)
    assert said.code == 2 and said.out.count("\n") == 1
    assert set(said.json) == {"status", "message", "exit_code"}
    assert said.json["status"] == "error" and said.json["message"] in said.err


def test_a_closed_pipe_is_no_traceback(spec, tmp_path):
    command = f"{sys.executable} -m ditlab schema | head -c 10"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
    assert len(done.stdout) == 10


def test_doctor_says_what_there_is(ditlab, home):
    said = ditlab("doctor", "--json")
    assert said.code == (1 if said.json["missing"] else 0)
    assert set(said.json) == {"missing", "findings"}
    found = {finding["what"]: finding for finding in said.json["findings"]}
    assert {"Python", "torch", "deepspeed", "DITLAB_HOME", "model families"} <= set(found)
    assert ", ".join(families()) in found["model families"]["found"]
    assert all(finding["remedy"] for finding in found.values() if finding["verdict"] != "ok")
    assert said.out.count("\n") == 1 and "Python" in said.err
    assert not home.exists()


def test_errors_as_json_hold_on_one_line(ditlab, spec):
    said = ditlab("validate", spec, spec.with_name("none.yaml"), "--json", "--set", "model.depth=0")
    assert len(json.loads(said.out.splitlines()[-1])["message"].splitlines()) == 2
