"""A process killed while MLflow's tables are made leaves no half of them."""

import signal
import sqlite3
import subprocess
import sys
import time

import mlflow

from ditlab.tracking.upload.connection import connect

MAKE = "import sys; from pathlib import Path; from ditlab.home import Home;"
MAKE += "from ditlab.tracking.upload.connection import connect;"
MAKE += "home = Home(Path(sys.argv[1])); connect(f'sqlite:///{home.mlflow_database}', home)"


def test_the_database_is_made_whole_or_not_at_all(home):
    process = subprocess.Popen([sys.executable, "-c", MAKE, str(home.root)])
    try:
        deadline = time.monotonic() + 60
        while not _has_tables(home):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert not home.mlflow_database.exists()
    client = connect(f"sqlite:///{home.mlflow_database}", home)
    assert isinstance(client, mlflow.MlflowClient) and client.search_experiments()
    assert [path.name for path in home.root.glob(".mlflow.db-*")] == []


def _has_tables(home) -> bool:
    """Whether some table is there already, and the last migration is not done."""
    for path in home.root.glob(".mlflow.db-*/mlflow.db"):
        try:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
                if database.execute("select count(*) from sqlite_master").fetchone()[0] > 3:
                    return True
        except sqlite3.Error:
            continue
    return False
