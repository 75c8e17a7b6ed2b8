"""MLflow's database damaged: each command says one sentence, training goes on, and a new database
gets everything.
"""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from ditlab.tracking.mlflow_connection import database_damage, holds_run
from support.command import run_process
from support.damaged.commands import fault_of, run_watched
from support.damaged.home import OTHER


def garbage(path):
    path.write_bytes(b"no database at all\n" * 1000)


def empty(path):
    path.write_bytes(b"")


def half(path):
    os.truncate(path, path.stat().st_size // 2)


def no_header(path):
    path.write_bytes(bytes(100) + path.read_bytes()[100:])


def torn_pages(path):
    """Pages of noise in the places of metrics and tags; the schema is whole."""
    pages = "SELECT rootpage FROM sqlite_master WHERE name IN ('metrics', 'tags')"
    ((size,),) = execute(path, "PRAGMA page_size")
    with path.open("r+b") as file:
        for (page,) in execute(path, pages):
            file.seek((page - 1) * size)
            file.write(b"\x5a" * size)


def without_runs(path):
    execute(path, "DROP TABLE runs")


def of_the_future(path):
    execute(path, "UPDATE alembic_version SET version_num = 'ffffffffffff'")


def execute(path, sql, values=()):
    """Rows of a statement. MLflow is not used: it would keep the file open."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql, values).fetchall()


DAMAGES = (garbage, empty, half, no_header, torn_pages, without_runs, of_the_future)
UNREADABLE = (garbage, no_header)


def test_a_damaged_database_is_named(one, tmp_path):
    database = one.home.mlflow_database
    whole = database.read_bytes()
    assert database_damage(database) == "" and database_damage(tmp_path / "none.db") == ""
    for damage in UNREADABLE:
        damage(database)
        said = f"{database} cannot be read (file is not a database)"
        assert database_damage(database) == said
        database.write_bytes(whole)
    torn_pages(database)
    assert re.fullmatch(r".*mlflow\.db is damaged in parts \(.*Page.*\)", database_damage(database))


def test_a_look_at_a_database_leaves_the_locks_on_it(tmp_path):
    """SQLite's locks are the process's: a descriptor that is closed ends them, and two writers
    break the file.
    """
    database = tmp_path / "mlflow.db"
    write = "import sqlite3, sys; sqlite3.connect(sys.argv[1], 0).execute('BEGIN IMMEDIATE')"
    with closing(sqlite3.connect(database, isolation_level=None)) as ours:
        ours.executescript(
            "CREATE TABLE runs (run_uuid TEXT); CREATE TABLE experiments (name TEXT)"
        )
        ours.execute("BEGIN IMMEDIATE")
        assert not holds_run(database, "none") and database_damage(database) == ""
        other = subprocess.run(
            [sys.executable, "-c", write, str(database)], capture_output=True, text=True, timeout=60
        )
    assert "database is locked" in other.stderr


def points_in_mlflow(database, run_id):
    """(Metric, step) of every point of a run."""
    query = (
        "SELECT metrics.key, step FROM metrics JOIN tags USING (run_uuid) WHERE tags.key = ? "
        "AND tags.value = ?"
    )
    return set(execute(database, query, ("ditlab.run", run_id)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("damage", DAMAGES)
def test_commands_on_a_damaged_database(one, finished, tmp_path, damage):
    """Training and evaluation go on; `runs sync` fills a new database, but for one of a later
    MLflow, and keeps all.
    """
    run_watched("runs", "sync", one=one, cwd=tmp_path).ok()
    database = one.home.mlflow_database
    expected = points_in_mlflow(database, one.first.run_id)
    assert expected, "the run was sent"
    whole = database.read_bytes()
    journals = {folder: folder.journal.read_bytes() for folder in (one.first, one.other)}
    train = ("train", finished.spec, "--local")
    commands = {
        "train": (*train, "--resume", one.first.run_id, "--set", "training.steps=6"),
        "new": train,
        "evaluate": ("evaluate", OTHER),
        "rm": ("runs", "rm", OTHER, "--mlflow", "--dry-run"),
    }
    faults = []
    for name, arguments in commands.items():
        database.write_bytes(whole)
        damage(database)
        said = run_watched(*arguments, one=one, cwd=tmp_path)
        found = [fault_of(said)]
        if name in ("train", "new") and said.code != 0:
            found.append(f"the training did not go on: {said.err[-500:]}")
        if len(re.findall(r"mlflow\.db.*|MLflow refused.*", said.err)) > 2:
            found.append(f"more than a sentence: {said.err}")
        faults += [f"{name}: {fault}" for fault in found if fault]
    assert not faults, "\n\n".join(faults)
    for folder, content in journals.items():
        assert folder.journal.read_bytes().startswith(content)
    database.write_bytes(whole)
    damage(database)
    damaged = database.read_bytes()

    def synced_apart():  # in a process of its own: this one has the former file open
        return run_process("runs", "sync", "--json", home=one.home.root, cwd=tmp_path)

    synced = synced_apart()
    if damage is of_the_future:
        assert synced.code == 2 and fault_of(synced) == "" and database.read_bytes() == damaged
        return
    synced.ok()
    if damage is not empty:  # which MLflow itself makes a database of
        assert (one.home.root / synced.json["refilled"]["database"]).read_bytes() == damaged
    assert points_in_mlflow(database, one.first.run_id) >= expected
    again = synced_apart().json["synced"]
    assert again and not any(each["sent"] for each in again), "and once"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("damage", [*UNREADABLE, half])
def test_the_server_on_a_damaged_database_ends_in_a_sentence(one, tmp_path, damage):
    damage(one.home.mlflow_database)
    said = run_process("ui", "--port", "5963", "--wait", "60", home=one.home.root, cwd=tmp_path)
    assert said.code in (1, 2) and "Traceback" not in said.err, said.err
    lines = [line for line in said.err.splitlines() if line.startswith("ditlab: ")]
    assert len(lines) == 1 and "mlflow" in lines[0], said.err
