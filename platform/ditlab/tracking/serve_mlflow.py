"""`mlflow server` in one process: `python serve_mlflow.py OPTIONS`, with the options of that
command.

MLflow's command imports all of the server to prepare the database, then starts a second process
that imports all of it again and serves. This program lets the first one serve, which halves what a
start computes. A file that is run by its path, as its imports are MLflow's alone: it runs in a
home, where relative entries of PYTHONPATH lead nowhere.
"""

import os
import signal
import sys
from typing import Any, NoReturn

# Before MLflow: its pages check Host headers only where they see that a server is loaded as they
# are imported. What they read meanwhile, the allowed hosts, is in the environment.
import uvicorn
from mlflow import server
from mlflow.cli import cli

_UVICORN = [sys.executable, "-m", "uvicorn"]


def serve_here(command: list[str], extra_env: dict[str, str], **_: Any) -> NoReturn:
    """Do in this process what a process with this command and these further variables would do."""
    assert command[: len(_UVICORN)] == _UVICORN, command
    os.environ.update(extra_env)
    # uvicorn raises it again behind an orderly end
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.main(command[len(_UVICORN) :], prog_name="uvicorn")
    raise AssertionError("click ends the process")


if __name__ == "__main__":
    server._exec_cmd = serve_here  # private: test_process.py fails where MLflow moves it
    cli(["server", *sys.argv[1:]], prog_name="mlflow")
