"""`runs query`: tables of journals and specs, read by SQL that can write nothing."""

import math
import os
import shutil
from contextlib import closing

import pytest

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.tracking.index import cache_file
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import create_run, update_record
from ditlab_addons.query.query import query_runs


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path / "home").ensure()
    for number, (name, size) in enumerate(
        (("wide", 4_000_000), ("small", 900_000), ("tiny", 100_000))
    ):
        folder = create_run(home, name, family="dit", spec_hash="a", run_id=f"run{number}")
        spec = {
            "name": name,
            "optimizer.lr": str(10.0**-number),
            "revision": "2026_11",
            "odd": "nan",
        }
        with closing(JournalWriter(folder)) as journal:
            journal.append("params", values={"parameters.total": str(size), **spec})
            journal.append("tags", values={"ditlab.main_metric": "eval/velocity"})
            for step in range(1, 101):
                journal.log_metrics(
                    step, {"train/loss": 1 / step, "train/samples_per_second": 50.0 + number}
                )
            loss = math.nan if number == 2 else 0.5
            journal.log_metrics(101, {"train/loss": loss, "eval/velocity": 0.3 + number / 10})
        update_record(folder, status="finished", step=101)
    return home


def test_a_question_of_one_line(home):
    sql = (
        "SELECT name, main_value FROM runs WHERE created > datetime('now', '-7 days') AND "
        "parameters < 2e6 "
    )
    answer = query_runs(home, sql + "ORDER BY main_value LIMIT 3")
    assert answer == (["name", "main_value"], [("small", 0.4), ("tiny", 0.5)], [])
    one = query_runs(
        home, "SELECT train_loss, samples_per_second, main_metric FROM runs ORDER BY run"
    )
    recent = pytest.approx((0.01 + 1 / 99.5) / 2, rel=0.2)
    assert one.rows[0] == (recent, 50.0, "eval/velocity") and one.rows[2][0] is None
    joined = query_runs(
        home,
        "SELECT s.value, m.value FROM specs s JOIN metrics m USING (run) WHERE s.field = "
        "'optimizer.lr' AND m.metric = 'eval/velocity' ORDER BY s.value DESC",
    )
    assert joined.rows == [(1, 0.3), (0.1, 0.4), (0.01, 0.5)]
    unknown = query_runs(home, "SELECT run, step FROM metrics WHERE value IS NULL")
    assert unknown.rows == [("run2", 101)]
    texts = query_runs(
        home,
        "SELECT value FROM specs WHERE field IN ('revision', 'odd') AND run = 'run0' ORDER BY "
        "field",
    )
    assert texts.rows == [("nan",), ("2026_11",)], "a text that Python would take for a number"
    assert query_runs(home, "SELECT count(*) FROM metrics").rows == [(3 * 202,)]


def test_answers_follow_journals_and_specs(home):
    """Alike with the index and without it; a changed journal and a changed spec are read anew."""
    sql = "SELECT run, count(*), sum(step), max(time) FROM metrics GROUP BY run ORDER BY run"
    first = query_runs(home, sql)
    assert query_runs(home, sql) == first
    kept = cache_file(home)
    whole = kept.read_bytes()
    for damage in (b"no database", whole[:8192], whole[:4096] + bytes(len(whole) - 4096)):
        kept.write_bytes(damage)
        assert query_runs(home, sql) == first
    stat = (journal := home.run("run1").journal).stat()
    # its lines are damaged now
    journal.write_bytes(journal.read_bytes().replace(b'"step":7,', b'"step":8,'))
    os.utime(journal, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert query_runs(home, sql).rows[1][1] == first.rows[1][1] - 2
    with closing(JournalWriter(home.run("run0"))) as journal:
        journal.log_metrics(102, {"train/loss": 0.25})
    assert query_runs(home, sql).rows[0][:3] == ("run0", 203, first.rows[0][2] + 102)
    with closing(JournalWriter(home.run("run0"), node=1)) as journal:
        journal.log_metrics(102, {"system/node_1/cpu": 0.25})
    assert query_runs(home, sql).rows[0][1] == 204, "another node's journal"
    fields = "SELECT field, value FROM specs WHERE run = 'run0' ORDER BY field"
    whole = [("name", "wide"), ("odd", "nan"), ("optimizer.lr", 1), ("revision", "2026_11")]
    assert query_runs(home, fields).rows == whole
    with closing(JournalWriter(home.run("run0"))) as journal:
        changes = {"optimizer.lr": ("1.0", "3.0"), "odd": ("nan", "")}
        journal.append("resume", step=102, changes=changes, rates="")
    assert query_runs(home, fields).rows == [whole[0], ("optimizer.lr", 3), whole[3]]
    home.run("run2").journal.unlink()
    home.run("run2").journal.mkdir()
    (note,) = query_runs(home, "SELECT 1 FROM specs").notes
    assert note.startswith("run run2: ")
    shutil.rmtree(home.run("run1").path)
    assert [row[0] for row in query_runs(home, sql).rows] == ["run0", "run2"]


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH 'other.db' AS other",
        "PRAGMA query_only = 0",
        "VACUUM INTO 'copy.db'",
        "SELECT load_extension('x')",
        "DELETE FROM runs",
        "SELECT 1; SELECT 2",
        "SELECT nope FROM runs",
        "",
        "SELECT count(*) FROM points",
    ],
)
def test_nothing_but_one_select_is_answered(home, sql, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="write one SELECT over"):
        query_runs(home, sql)
    assert {path.name for path in tmp_path.iterdir()} == {"home"}


def test_a_misspelt_name_may_mean_the_command_of_an_add_on(ditlab):
    assert "Did you mean 'query'?" in ditlab("runs", "qery").err
