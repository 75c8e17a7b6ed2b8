"""A local database that is gone, or was made anew: what it had received is sent again."""

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from ditlab.home import Home, RunFolder
from ditlab.tracking.cursor import Cursor, CursorFile
from ditlab.tracking.database_damage import made_at


def make_database(path: Path, made: float | None) -> None:
    """A database with the one column that is read, of MLflow's default experiment."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE experiments (creation_time BIGINT)")
        connection.execute("INSERT INTO experiments VALUES (?)", (None if made is None else round(1000 * made),))
        connection.commit()


def test_a_database_that_is_gone_or_newer_has_received_nothing(home: Home, new_run) -> None:
    folder: RunFolder = new_run()
    folder.journal.write_bytes(b"{}\n{}\n")
    database, now = home.mlflow_database, time.time()
    cursors = CursorFile(folder, f"sqlite:///{database}")
    assert cursors.load_received() == Cursor(), "nothing was sent yet"
    make_database(database, now - 60)
    cursors.save(Cursor(6, mlflow_run_id="a" * 32))
    sent = cursors.load()
    assert cursors.load_received() == sent and sent.offset == 6
    database.rename(database.with_name("aside.db"))
    assert cursors.load_received() == Cursor() and cursors.load() == sent
    make_database(database, now + 60)
    assert made_at(database) > now and cursors.load_received() == Cursor()
    make_database(database, None)  # of an MLflow that did not write the time
    assert made_at(database) == 0 and cursors.load_received() == sent
    database.write_bytes(b"no database")
    assert cursors.load_received() == sent, "it cannot be known"
    database.unlink()
    os.mkfifo(database)
    assert cursors.load_received() == sent
    server = CursorFile(folder, "http://127.0.0.1:9")
    server.save(Cursor(3, mlflow_run_id="b" * 32))
    assert server.load_received().offset == 3, "a server's is not looked at"
