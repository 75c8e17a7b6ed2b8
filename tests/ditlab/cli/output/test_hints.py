"""The last line of commands for people: the next command, which works as it stands."""

import inspect
import shlex
import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import click

from ditlab.cli import output
from ditlab.data.named_stores import open_named_store
from ditlab.home import Home
from ditlab_addons.check import process_group
from support.click_commands import every_command, taken
from support.sweeps import written_sweep
from support.trainings.groups import warm_processes


def next_line(said):
    """The line that begins with `next: `, which is the last one on standard error."""
    assert said.code == 0, said.err
    (line,) = [line for line in said.err.splitlines() if line.startswith("next: ")]
    assert said.err.splitlines()[-1] == line
    return line.removeprefix("next: ")


def next_command(said):
    """The words of the next command after `ditlab`, once click has taken them."""
    words = shlex.split(next_line(said))
    assert words[0].endswith("ditlab"), words
    taken(words[1:])
    return words[1:]


def test_run_to_sample_to_evaluation_to_figures_to_export(
    blank_pictures, finished, with_run, tmp_path, monkeypatch
):
    """Each command names the next one, by the run's id, until its weights stand in a folder that
    Python opens.
    """
    monkeypatch.chdir(tmp_path)
    run_id = finished.run_id
    assert next_command(with_run("runs")) == ["runs", "show", run_id]
    drawn = with_run("sample", "small", "--num", "1", "--out", "x")
    assert next_command(drawn) == ["evaluate", run_id]
    assert next_command(with_run("evaluate", "small", "--rows", "4")) == ["figures", run_id]
    listed = next_command(with_run("figures", "small", "--list"))
    assert listed[:3] == ["figures", run_id, "--kind"] and len(listed) == 4
    drawn = next_command(with_run("figures", "small", "--kind", "loss", "--out", "y"))
    folder = str(Home.from_environment().root / "exports" / run_id)
    assert drawn == ["export", run_id, "--out", folder], "a checkout is left as it was"
    words = shlex.split(next_line(with_run(*drawn)))
    assert Path(shutil.which(words[0])).samefile(sys.executable)
    assert words[1] == "-c" and folder in words[2]
    exec(words[2], {"print": lambda network: network.eval()})


def test_what_looks_at_runs(finished, with_run, monkeypatch):
    monkeypatch.setattr(process_group, "_context", warm_processes)
    for command, expected in (
        (["replay", "small", "--step", "2"], "verify RUN"),
        (["verify", "small", "--steps", "1"], "report RUN"),
        (["runs", "log", "small"], "runs show RUN"),
        (["runs", "query", "SELECT name, run FROM runs"], "runs show RUN"),
        (["runs", "query", "SELECT count(*) FROM runs"], "runs"),
        (["runs", "rm", "small", "--dry-run"], "runs rm small"),
    ):
        found = " ".join(next_command(with_run(*command)))
        assert found == expected.replace("RUN", finished.run_id)


def test_every_command_has_a_next_one_or_a_reason_why_not():
    missing = set()
    for words, command in every_command():
        if isinstance(command, click.Group) or words.startswith("data import "):
            continue
        if "output.hint" not in inspect.getsource(command.callback):
            missing.add(words)
    # two serve until they are ended, one prints a file
    assert missing == {"ui", "watch", "schema"}


def test_figures_without_a_run(ditlab, tmp_path):
    assert next_command(ditlab("figures", "--kind", "schedules", "--out", tmp_path)) == ["runs"]


def test_specs(ditlab, spec, tmp_path):
    settings = ["--set", "training.steps=3"]
    for command in (["validate"], ["params"], ["show"]):
        said = ditlab(*command, spec, *settings)
        assert next_command(said) == ["train", str(spec), *settings, "--dry-run"], command
    planned = ditlab("train", spec, *settings, "--local", "--dry-run")
    assert next_command(planned) == ["train", str(spec), *settings, "--local"]
    tune = ["tune", str(written_sweep(tmp_path))]
    for command in ("validate", "show"):
        assert next_command(ditlab(command, tune[1])) == [*tune, "--dry-run"]
    settings = ["--set", "trials=2"]
    assert next_command(ditlab(*tune, "--dry-run", *settings)) == [*tune, *settings]


def test_training_and_its_resume(ditlab, spec, monkeypatch):
    from ditlab.api import training

    settings = ("--set", "evaluation.every=null", "--set", "training.steps=2")
    command = next_command(ditlab("train", spec, "--local", *settings))
    assert command == ["sample", ditlab("runs", "--json").json["runs"][0]["run_id"]]
    facts = ("1a2b3c4d", "interrupted", 1, 2, {}, "x", "sqlite:///x", Path("x"))
    monkeypatch.setattr(training, "train", Mock(return_value=training.TrainingResult(*facts)))
    said = ditlab("train", spec, "--local", "--resume", "auto", "--set", "seed=3").err
    assert said.endswith(f" train {spec} --set seed=3 --local --resume 1a2b3c4d\n")


def test_data(ditlab, tmp_path):
    (tmp_path / "text.txt").write_text("some text, " * 200)
    source = ("--source", tmp_path / "text.txt", "--length", "16")
    command = next_command(ditlab("data", "import", "text", *source))
    assert command[:2] == ["data", "inspect"]
    listed = next_command(ditlab("data", "list"))
    assert listed[:2] == ["data", "inspect"] and listed[2].partition("@")[0] == command[2]
    said = ditlab(*command)
    store = open_named_store("PATH", command[2], Home.from_environment())
    assert next_line(said) == f"in a spec, data: {{kind: arrow, path: {store.path}}}"


def test_none_of_an_add_on_that_is_not_here(monkeypatch, capsys):
    output.hint(False, "watch", "small")
    assert capsys.readouterr().err.endswith(" watch small\n")
    monkeypatch.setitem(sys.modules, "ditlab_addons", None)
    output.hint(False, "watch", "small")
    assert capsys.readouterr().err == ""


def test_command_as_the_shell_finds_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/ditlab")
    assert output.command_line("export", "a b", "--out", "x") == "ditlab export 'a b' --out x"
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert output.command_line("ui") == "bin/python -m ditlab ui"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ditlab").touch()
    assert output.command_line("ui") == "bin/ditlab ui"
