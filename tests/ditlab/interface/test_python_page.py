"""The code of docs/python.md, of the README's script and of docs/mlflow.md runs as it stands."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow.compute as pc
import pytest
from mlflow import MlflowClient
from pyarrow import csv, parquet

from ditlab.home import Home
from support import databases

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A working directory with the digits' experiment, in smaller batches and evaluations, and a
    home of its own.
    """
    place = Path("experiments/digits/dit.yaml")
    spec = (CHECKOUT / place).read_text()
    for number, smaller in (
        ("batch: {size: 128}", "batch: {size: 32}"),
        ("samples: 64}", "samples: 16, limit: 32}"),
    ):
        assert number in spec
        spec = spec.replace(number, smaller)
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text(spec)
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def code_of(page):
    """The Python of a page, block by block."""
    text = (CHECKOUT / page).read_text()
    return [
        textwrap.dedent(block)
        for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


def run(blocks, name):
    namespace = {"__name__": "__main__"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{name}, block {number + 1}", "exec"), namespace)
    return namespace


def assert_nothing_else(workplace):
    """Assert that a checkout, where git ignores runs/, is left as it was."""
    assert {path.name for path in workplace.iterdir()} <= {"experiments", "home", "runs"}


@pytest.mark.slow
def test_the_python_page_runs(workplace, capsys):
    found = run(code_of("docs/python.md"), "docs/python.md")
    assert (
        "model.dpeth=6: model.family=dit has no field 'dpeth'; did you mean 'depth'?"
        in capsys.readouterr().out
    )
    assert found["drawn"].values.shape == (16, 1, 8, 8)
    for file in (
        "loss.png",
        "samples/samples.png",
        "comparison/comparison.html",
        "exported/weights.safetensors",
    ):
        assert (workplace / "runs" / file).stat().st_size > 0, file
    assert_nothing_else(workplace)


@pytest.mark.slow
def test_the_readme_s_script_runs(workplace, monkeypatch, capsys):
    (script,) = code_of("README.md")
    assert len(script.splitlines()) <= 20
    monkeypatch.setenv("DITLAB_HOME", str(workplace / "runs"))
    run([script], "README.md")
    assert script.rstrip().endswith(f"# {capsys.readouterr().out.splitlines()[-1]}")
    # nothing beside what git ignores
    assert {path.name for path in workplace.iterdir()} == {"experiments", "runs"}
    for file in ("runs/loss.png", "runs/samples/samples.png"):
        assert (workplace / file).stat().st_size > 0, file


HISTORY = """\
_step,_timestamp,train/loss,eval/velocity
1,1700000000.0,1.5,
2,1700000001.5,1.25,
5,1700000003.0,,0.9
7,1700000004.0,1.0,
"""


@pytest.mark.slow
def test_a_history_of_wandb_keeps_its_steps_in_mlflow(tmp_path, mlflow_template):
    """Metrics that were logged at other steps than others, and not at all steps."""
    (script,) = [block for block in code_of("docs/mlflow.md") if "history.csv" in block]
    (tmp_path / "history.csv").write_text(HISTORY)
    databases.seed(Home(tmp_path / "runs").ensure().root, mlflow_template)
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=100)
    client = MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("digits")
    assert experiment
    (imported,) = client.search_runs([experiment.experiment_id])
    points = {
        name: [
            (point.step, point.value)
            for point in client.get_metric_history(imported.info.run_id, name)
        ]
        for name in imported.data.metrics
    }
    assert points == {"train/loss": [(1, 1.5), (2, 1.25), (7, 1.0)], "eval/velocity": [(5, 0.9)]}


def test_metrics_of_a_run_leave_as_parquet_and_csv(finished, tmp_path, monkeypatch):
    (script,) = [block for block in code_of("docs/mlflow.md") if "pyarrow.parquet" in block]
    monkeypatch.setenv("DITLAB_HOME", str(finished.home))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    run([script.replace('"digits-demo"', '"small"')], "docs/mlflow.md")
    read = [csv.read_csv("runs/digits-demo.csv"), parquet.read_table("runs/digits-demo.parquet")]
    losses = [table.filter(pc.is_valid(table["train/loss"])) for table in read]
    assert [table["step"].to_pylist() for table in losses] == [[1, 2, 3, 4]] * 2
    assert losses[0]["train/loss"].to_pylist() == pytest.approx(
        losses[1]["train/loss"].to_pylist(), rel=1e-12
    )
