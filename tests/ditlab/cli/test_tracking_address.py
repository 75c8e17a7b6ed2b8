"""`tracking.uri: null` where MLFLOW_TRACKING_URI is set: at the launch of a run, and in every later
command.
"""

import json
import shutil
from pathlib import Path

import mlflow
import pytest
import yaml

from ditlab.home import Home
from ditlab.spec.sweep import load_sweep
from ditlab.tracking import mlflow_connection
from ditlab.tracking.access import launch_address
from support import databases
from support.damage import refused
from support.served import served

mlflow_template = databases.mlflow_template


def metrics_in(database):
    """Latest metrics by the run's name."""
    client = mlflow.MlflowClient(f"sqlite:///{database}")
    experiments = [each.experiment_id for each in client.search_experiments()]
    return {run.info.run_name: run.data.metrics for run in client.search_runs(experiments)}


def test_null_is_the_environments_address_at_launch_and_the_runs_own_later(
    ditlab, home, spec, tmp_path, monkeypatch, mlflow_template
):
    shutil.copyfile(mlflow_template, tmp_path / "team.db")
    team, other = tmp_path / "team.db", tmp_path / "other.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{team}")
    said = ditlab("train", spec, "--local", "--json", "--set", "training.steps=2").ok()
    folder = Home(home).run(said.json["run_id"])
    assert said.json["tracking_uri"] == f"sqlite:///{team}"
    assert json.loads(folder.record.read_text())["tracking_uri"] == f"sqlite:///{team}"
    assert yaml.safe_load(folder.spec.read_text())["tracking"]["uri"] == f"sqlite:///{team}"
    assert "train/loss" in metrics_in(team)["small"] and not Home(home).mlflow_database.exists()
    # Whatever the environment says later, the run stays where it is.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{other}")
    assert ditlab("train", spec, "--local", "--resume", folder.run_id).code == 0
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert ditlab("runs", "sync", folder.run_id).code == 0
    assert ditlab("evaluate", folder.run_id).code == 0
    assert list(metrics_in(team)) == ["small"]
    assert not other.exists() and not Home(home).mlflow_database.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["C#", "a?b", "50%25", "ü 🎈 'q\"u' back\\slash &+;[br]*:c"])
def test_an_odd_folder_holds_all_of_a_home(ditlab, tmp_path, spec, monkeypatch, name):
    """Database, artifacts, checkpoints and export lie in the folders that were named; MLflow and
    its UI read them.
    """
    monkeypatch.setattr(mlflow_connection, "_make_database", databases.REAL)
    for folder in ("home", "kept", "export"):
        (tmp_path / folder).mkdir()
    home, kept = Home(tmp_path / "home" / name), tmp_path / "kept" / name
    monkeypatch.setenv("DITLAB_HOME", str(home.root))
    storage = json.dumps(f"checkpoint.storage={kept.as_uri()}")[1:-1]
    said = ditlab(
        "train", spec, "--local", "--json", "--set", storage, "--set", "training.steps=2"
    ).ok()
    run = said.json["run_id"]
    assert ditlab("train", home.run(run).spec, "--local", "--resume", run).code == 0
    assert ditlab("export", run, "--out", tmp_path / "export" / name).code == 0
    assert [path.name for path in (tmp_path / "kept").rglob("step-*")] and not home.run(
        run
    ).checkpoints.exists()
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")}
    assert found == {f"{each}/{name}" for each in ("export", "home", "kept")}
    client = mlflow.MlflowClient(said.json["tracking_uri"])
    (found,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert "train/loss" in found.data.metrics
    number = found.info.run_id
    assert "spec.yaml" in [each.path for each in client.list_artifacts(number)]
    assert (
        Path(client.download_artifacts(number, "spec.yaml", str(tmp_path)))
        .read_text()
        .startswith("name: small")
    )
    with served(home.root) as server:
        assert f"/experiments/{found.info.experiment_id}/runs" in server.page
        assert server.ask(f"/get-artifact?run_id={number}&path=spec.yaml")[1].startswith(
            b"name: small"
        )


def test_the_specs_address_comes_first(home, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9/")
    assert launch_address(None, Home(home)) == "http://127.0.0.1:9"
    assert launch_address("sqlite:////x/y.db", Home(home)) == "sqlite:////x/y.db"
    assert launch_address(None, Home(home), environment=False) is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", " ")
    assert launch_address(None, Home(home)) is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:pass-word@host:5000")
    with refused(r"^MLFLOW_TRACKING_URI=http://me:\*\*\*@host:5000 holds a p"):
        launch_address(None, Home(home))


def test_a_sweep_takes_the_address_at_its_begin_and_keeps_it(home, spec, tmp_path, monkeypatch):
    from ditlab.spec.sweep_space import differences
    from ditlab.sweeps.prepare import portable_sweep

    path = tmp_path / "sweep.yaml"
    path.write_text(
        f"name: s\nbase: {spec.name}\nspace: {{optimizer.lr: {{kind: grid, values: [0.1, 0.2]}}}}\n"
        "search: {kind: grid}\nmetric: eval/velocity\n"
    )
    sweep = load_sweep(path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    begun, address = portable_sweep(sweep, Home(home))
    assert begun.fixed["tracking.uri"] == address == "http://127.0.0.1:9"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:10")
    for given in (sweep, begun):
        again, address = portable_sweep(given, Home(home), begun)
        assert address == "http://127.0.0.1:9" and differences(begun, again) == []
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    at_home, address = portable_sweep(sweep, Home(home))
    assert "tracking.uri" not in at_home.fixed and address == f"sqlite:///{home}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:pass-word@127.0.0.1:10")
    assert portable_sweep(sweep, Home(home), at_home)[1] == f"sqlite:///{home}/mlflow.db"
