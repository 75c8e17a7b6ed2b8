"""A local database that is gone, or was made again: what it had received is sent again."""

import sqlite3
from contextlib import closing

from ditlab.tracking.upload import Cursor, CursorFile

RUN = "a" * 32


def make_database(path, *runs):
    """A database with the one column that is read."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE runs (run_uuid TEXT)")
        connection.executemany("INSERT INTO runs VALUES (?)", [(run,) for run in runs])
        connection.commit()


def test_a_database_that_is_gone_or_has_no_such_run_has_received_nothing(home, new_run):
    folder = new_run()
    folder.journal.write_bytes(b"{}\n{}\n")
    database = home.mlflow_database
    cursors = CursorFile(folder, f"sqlite:///{database}")
    assert cursors.load() == Cursor(), "nothing was sent yet"
    make_database(database, RUN)
    cursors.save(Cursor(6, mlflow_run_id=RUN))
    sent = cursors.load()
    assert sent.offset == 6
    database.rename(database.with_name("aside.db"))
    assert cursors.load() == Cursor()
    make_database(database)
    assert cursors.load() == Cursor()
    database.write_bytes(b"no database")
    assert cursors.load() == sent, "it cannot be known"
    server = CursorFile(folder, "http://127.0.0.1:9")
    server.save(Cursor(3, mlflow_run_id="b" * 32))
    assert server.load().offset == 3, "a server's is not looked at"
