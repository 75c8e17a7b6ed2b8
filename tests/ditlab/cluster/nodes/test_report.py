"""The report of a node, made in this process; and the check of a node that joins later."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ditlab.cluster.node_report import code_version, node_report, versions
from ditlab.cluster.survey import check_joining_node, probe_files
from ditlab.home import Home
from ditlab.runs.launch import Launch
from support.clusters.nodes import CHECKOUT
from support.damage import refused
from support.trainings.workers import tiny

PRINT_VERSION = "from ditlab.cluster.node_report import code_version; print(code_version())"


@pytest.fixture
def copy(tmp_path):
    """The code in one folder, as in a wheel."""
    for source in ("platform/ditlab", "models/ditlab_models"):
        skip = shutil.ignore_patterns("__pycache__", "*.md", "*.j2")
        shutil.copytree(CHECKOUT / source, tmp_path / "wheel" / Path(source).name, ignore=skip)
    return tmp_path / "wheel"


def version_there(folder):
    command = [sys.executable, "-c", PRINT_VERSION]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


def test_a_copy_of_the_code_has_the_same_version_until_a_line_changes(copy):
    assert version_there(copy) == code_version()
    with (copy / "ditlab_models" / "dit" / "network.py").open("a") as file:
        file.write("# another line\n")
    assert version_there(copy) != code_version()


def test_probes_are_read_where_they_were_written_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("ditlab.cluster.node_report.FILE_TIMEOUT", 0.3)
    home, storage = Home(tmp_path / "new" / "home"), str(tmp_path / "storage")
    with probe_files(home, storage) as probe:
        seen = node_report(str(home.root), storage, probe)
        apart = node_report(str(tmp_path / "apart"), str(tmp_path / "apart"), probe)
    assert (seen["home"], seen["storage"], seen["problem"]) == ("", "", "")
    assert (apart["home"], apart["storage"]) == ("it is not there", "it is not there")
    assert list(tmp_path.iterdir()) == []


def test_probes_leave_a_home_that_was_there(tmp_path):
    (tmp_path / "mlflow.db").touch()
    with probe_files(Home(tmp_path), None):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_a_home_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    below = Home(tmp_path / "file" / "x")
    with refused(r"DITLAB_HOME=.*cannot be written"), probe_files(below, None):
        pass


def test_a_joining_node_checks_versions_and_the_runs_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("ditlab.cluster.survey.node_name", lambda: "10.0.0.7/3f9a01bc")
    monkeypatch.setattr("ditlab.cluster.survey.FILE_TIMEOUT", 0.3)
    (tmp_path / "train" / "abc").mkdir(parents=True)

    def check(run_id, **changed):
        launch = Launch(tiny(), Home(tmp_path), run_id, versions={**versions(), **changed})
        check_joining_node(launch)

    check("abc")
    with refused(r"deepspeed .* is installed on node .*, and deepspeed 0\.1 where"):
        check("abc", deepspeed="0.1")
    with refused(r"ditlab .* is installed on node"):
        check("abc", ditlab="0.1.0-000000000000")
    with refused(r"DITLAB_HOME=.* is not shared"):
        check("gone")
