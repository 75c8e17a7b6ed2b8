"""The local database: whole or missing after a kill, and made once by two processes that start
together.
"""

import sqlite3
import time

import mlflow
import pytest

from ditlab.tracking.mlflow_connection import connect
from support.forked import Forked

MAKE = "import sys; from pathlib import Path; from ditlab.home import Home;"
MAKE += "from ditlab.tracking.mlflow_connection import connect;"
MAKE += "home = Home(Path(sys.argv[1])); connect(f'sqlite:///{home.mlflow_database}', home)"


LOG = """
from ditlab.home import Home
from ditlab.tracking.records import create_run
from ditlab.tracking.tracker import RunTracker
home = Home.from_environment()
tracker = RunTracker(create_run(home, "trial", family="dit", spec_hash="a"), None, home)
tracker.start("trial", "sweep", "dit")
tracker.journal.log_metrics(1, {"train/loss": 1.0})
print(tracker.close(120))
"""


@pytest.mark.slow
def test_the_database_is_made_whole_or_not_at_all_and_once(home):
    process = Forked(MAKE, str(home.root))
    try:
        deadline = time.monotonic() + 120
        while not _has_tables(home):
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.kill()
    assert not home.mlflow_database.exists()
    both = [Forked(LOG) for _ in range(2)]
    assert [one.stdout.read().strip() for one in both] == ["0", "0"]
    client = connect(f"sqlite:///{home.mlflow_database}", home)
    assert isinstance(client, mlflow.MlflowClient)
    (experiment,) = [found for found in client.search_experiments() if found.name == "sweep"]
    assert len(client.search_runs([experiment.experiment_id])) == 2
    assert [path.name for path in home.root.glob(".mlflow.db-*")] == []


def _has_tables(home):
    """Return True if the unfinished database has some tables."""
    for path in home.root.glob(".mlflow.db-*/mlflow.db"):
        try:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
                if database.execute("select count(*) from sqlite_master").fetchone()[0] > 3:
                    return True
        except sqlite3.Error:
            continue
    return False
