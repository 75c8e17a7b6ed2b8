"""What a node says of itself, asked in this process; and a newcomer's own look."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ditlab.cluster.nodes.joining import check_newcomer
from ditlab.cluster.nodes.report import code_version, node_report, versions
from ditlab.cluster.nodes.survey import probes
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.runs.request import RunRequest

CHECKOUT = Path(__file__).parents[3]
SAY = "from ditlab.cluster.nodes.report import code_version; print(code_version())"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The code in one folder, as in a wheel."""
    for source in ("platform/ditlab", "models/denoisers"):
        skip = shutil.ignore_patterns("__pycache__", "*.md", "*.j2")
        shutil.copytree(CHECKOUT / source, tmp_path / "wheel" / Path(source).name, ignore=skip)
    return tmp_path / "wheel"


def version_there(folder: Path) -> str:
    command = [sys.executable, "-c", SAY]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_a_copy_of_the_code_has_the_same_version_until_a_line_changes(copy):
    assert version_there(copy) == code_version()
    with (copy / "denoisers" / "dit" / "network.py").open("a") as file:
        file.write("# another line\n")
    assert version_there(copy) != code_version()


def test_probes_are_seen_where_they_are_and_leave_nothing(tmp_path):
    home, storage = Home(tmp_path / "new" / "home"), str(tmp_path / "storage")
    with probes(home, storage) as probe:
        seen = node_report(str(home.root), storage, probe)
        apart = node_report(str(tmp_path / "apart"), str(tmp_path / "apart"), probe)
    assert (seen["home"], seen["storage"], seen["problem"]) == ("", "", "")
    assert (apart["home"], apart["storage"]) == ("it is not there", "it is not there")
    assert list(tmp_path.iterdir()) == []


def test_probes_leave_a_home_that_was_there(tmp_path):
    (tmp_path / "mlflow.db").touch()
    with probes(Home(tmp_path), None):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_a_home_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    below = Home(tmp_path / "file" / "x")
    with pytest.raises(UserError, match=r"DITLAB_HOME=.*cannot be written"), probes(below, None):
        pass


def test_a_newcomer_compares_itself_with_the_launcher_and_looks_for_the_run(ray, tmp_path):
    (tmp_path / "train" / "abc").mkdir(parents=True)
    request = RunRequest({}, "abc", str(tmp_path), False, versions=versions())
    check_newcomer(request)
    check_newcomer(replace(request, versions={}, run_id="gone"))  # where nothing is asked
    with pytest.raises(UserError, match=r"deepspeed .* is installed on node .*, and deepspeed 0\.1 where"):
        check_newcomer(replace(request, versions={**versions(), "deepspeed": "0.1"}))
    with pytest.raises(UserError, match="another version of DiTLab's code is on node"):
        check_newcomer(replace(request, versions={**versions(), "ditlab": "0.1.0-000000000000"}))
    with pytest.raises(UserError, match=r"DITLAB_HOME=.* is not shared"):
        check_newcomer(replace(request, run_id="gone"))
