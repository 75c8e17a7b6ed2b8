"""Variables of the user's own environment do not reach the Ray instance and the processes that a
run starts.
"""

import json
import os
import subprocess
import sys

import pytest

from ditlab.cluster.session import (
    LONGEST_FOLDER,
    check_address,
    check_socket_folder,
    start_with_patience,
)
from ditlab.engine.distributed import current_rank
from ditlab.errors import RunFailed, UserError
from support.damage import refused
from support.trainings.workers import TINY, tiny, train_here

MPI = {f"OMPI_COMM_WORLD_{name}": "1" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")}


def test_a_folder_that_is_too_long_for_sockets_is_refused_with_the_remedy(monkeypatch):
    def refusal(**variables):
        for name in ("RAY_TMPDIR", "TMPDIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        try:
            check_socket_folder()
        except UserError as error:
            return str(error)
        return ""

    most = LONGEST_FOLDER
    assert (
        refusal()
        == ""
        == refusal(TMPDIR="/" + "x" * (most - 1))
        == refusal(TMPDIR="/" + "x" * 94, RAY_TMPDIR="/tmp")
    )
    for name in ("TMPDIR", "RAY_TMPDIR"):
        for value in ("/" + "x" * most, "/" + "ü" * (most // 2 + 1), "here", ""):
            assert refusal(**{name: value}).startswith(
                f"{name}={value} is no folder for Ray's sockets"
            )
    assert refusal(TMPDIR="here").endswith("set RAY_TMPDIR to a shorter one, such as /tmp.")


def test_the_users_variable_is_named_and_not_an_option(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    for address, named, remedy in (
        ("127.0.0.1:9", "RAY_ADDRESS=127.0.0.1:9: ", "unset RAY_ADDRESS to train"),
        ("127.0.0.1:11", "--address 127.0.0.1:11: ", "leave --address out to train"),
    ):
        with refused(f"^{named}.*{remedy}"):
            check_address(address)


@pytest.mark.parametrize("variables", [MPI, {"LOCAL_SIZE": ""}])
def test_an_mpi_launcher_around_a_run_is_not_its_own(monkeypatch, tmp_path, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    current_rank(False, 0, 1, 0)
    assert not any(name in os.environ for name in variables)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    outcome, _ = train_here(tiny(training__steps=1), tmp_path, tmp_path / "checkpoints")
    assert outcome.status == "finished"


def test_a_start_that_fails_names_the_doctor_where_it_is(monkeypatch):
    def fail():
        raise OSError("no room in /dev/shm")

    cleaned = []
    begin = r"Ray cannot be started on this machine \(no room in /dev/shm\); "
    end = r"`ditlab train --local` trains without Ray\."
    with refused(f"^{begin}`ditlab doctor` shows what is missing, and {end}$", RunFailed):
        start_with_patience(fail, lambda: cleaned.append(1), pytest.fail)
    assert cleaned == [1], "it is not tried again"
    monkeypatch.setitem(sys.modules, "ditlab_addons", None)
    with refused(f"^{begin}{end}$", RunFailed):
        start_with_patience(fail, lambda: None, pytest.fail)


UV_RUN = """
import subprocess, sys
sys.exit(subprocess.call([PYTHON, "-m", "ditlab", *sys.argv[1:]]))
"""
ASKING = """
from ray._private.worker import _maybe_modify_runtime_env
from ditlab.cluster.ray_internals import without_uv
print(sorted(_maybe_modify_runtime_env(None, False) or ()))
with without_uv():
    print(sorted(_maybe_modify_runtime_env(None, False) or ()))
"""


def test_ray_packs_no_folder_below_uv_run_though_it_was_imported_before(tmp_path):
    """A process whose first arguments are `uv run` is what Ray looks for among a driver's
    parents.
    """
    (tmp_path / "run").write_text(
        f"import subprocess\nsubprocess.run([{sys.executable!r}, '-c', {ASKING!r}], check=True)"
    )
    done = subprocess.run(
        ["uv", "run"],
        executable=sys.executable,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["['py_executable', 'working_dir']", "[]"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_training_on_ray_in_surroundings_that_are_for_other_things(tmp_path):
    """Below `uv run`, below mpirun, behind a proxy that takes nothing, with a long TMPDIR beside
    the RAY_TMPDIR that its refusal names.
    """
    folder = tmp_path / ("x" * max(1, 94 - len(str(tmp_path))))
    folder.mkdir()
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("[project]\nname = 'mine'\nversion = '1'\n")
    (project / "run").write_text(UV_RUN.replace("PYTHON", repr(sys.executable)))
    with (project / "large.bin").open("wb") as file:
        file.truncate(600 << 20)  # which Ray would refuse to pack
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(TINY))
    environment = {
        **os.environ,
        **MPI,
        "TMPDIR": str(folder),
        "RAY_TMPDIR": "/tmp",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://[::1]:9",
        "all_proxy": "http://127.0.0.1:9",
        "DITLAB_HOME": str(tmp_path / "home"),
        "SLURM_PROCID": "3",
        "PMI_RANK": "3",
    }
    for name in ("no_proxy", "NO_PROXY", "RAY_ADDRESS"):
        environment.pop(name, None)
    done = subprocess.run(
        ["uv", "run", "train", str(spec), "--set", "resources.workers=1"],
        executable=sys.executable,
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "takes nothing" not in done.stderr and "crash" not in done.stderr
