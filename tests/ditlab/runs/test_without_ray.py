"""Training, evaluation and sampling in one process load no Ray, and the first step waits for what
it needs alone.
"""

import json
import os
from pathlib import Path

import pytest

from support.command import run_inside
from support.databases import seed
from support.python_process import run_python

SPEC = """\
name: alone
model: {family: dit, image_size: 8, patch_size: 4, width: 16, depth: 1, num_heads: 2}
batch: {size: 16}
training: {steps: 2}
evaluation: {every: 2, samples: 2, limit: 16}
sampling: {steps: 2}
tracking: {system_metrics: false}
"""
TESTS = Path(__file__).parents[2]
LATER = ("mlflow", "sqlalchemy", "alembic", "optuna", "transformers", "fastapi", "ray")
"""Packages that a training to its first step does without."""
COMMANDS = f"""
import sys

sys.path.append({str(TESTS)!r})
from support.trainings.first_step import FirstStep
from ditlab.cli.main import main
from ditlab.tracking import system_metrics

system_metrics._LONGEST = 600.0  # however slow the machine is
at_first_step = []
sys.meta_path.insert(0, FirstStep(lambda: at_first_step.extend(sys.modules)))
for command in (["train", "alone.yaml", "--local"], ["evaluate", "alone"], ["sample", "alone", "--num", "2"]):
    sys.argv = ["ditlab", *command]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (command, end.code)
    assert at_first_step and not set({LATER!r}) & set(at_first_step), set({LATER!r}) & set(at_first_step)
    assert "torch" in sys.modules and "deepspeed" in sys.modules
    assert "ray" not in sys.modules, command
print("done without ray")
"""


@pytest.mark.slow
def test_local_commands_load_no_ray(tmp_path, mlflow_template, monkeypatch):
    seed(tmp_path / "home", mlflow_template)
    (tmp_path / "alone.yaml").write_text(SPEC)
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    done = run_python("-c", COMMANDS, cwd=tmp_path)
    assert done.stdout.endswith("done without ray\n")


def imported(home, *arguments):
    """Modules that a command has imported by its first step."""
    program = TESTS / "support" / "trainings" / "first_step.py"
    environment = {**os.environ, "DITLAB_HOME": str(home)}
    done = run_python(program, *arguments, env=environment)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_what_the_first_draw_waits_for(finished):
    """Nothing that draws figures is imported before there are samples."""
    modules = imported(finished.home, "sample", finished.run_id)
    drawing = {"matplotlib", "scipy", "sklearn", "torch._dynamo"}
    assert "torch" in modules and not modules & {*LATER, *drawing}


SLOW = [
    pytest.param(each, marks=pytest.mark.slow)
    for each in ("digits/unet", "region/small", "dlm/small", "pixelhdm/small")
]


@pytest.mark.parametrize("family", ["digits/dit", *SLOW])
def test_what_the_first_step_waits_for(family, tmp_path):
    """Without evaluation, nothing that draws or writes pages is imported before the first step."""
    spec = TESTS.parent / "experiments" / f"{family}.yaml"
    command = ["train", spec, "--local"]
    for change in ("evaluation.every=null", "evaluation.samples=0", "engine.compile=false"):
        command += ["--set", change]
    # the data
    run_inside(*command, "--dry-run", home=tmp_path / "home").ok()
    modules = imported(tmp_path / "home", *command)
    drawing = {"matplotlib", "jinja2", "PIL", "scipy", "pandas", "sklearn"}
    drawing.add("torch._inductor.compile_fx")
    assert not modules & {*LATER, *drawing}, family
    # The compiler takes a second. A loss of dlm is kept out of graphs.
    assert ("torch._dynamo" in modules) == (family == "dlm/small"), family
