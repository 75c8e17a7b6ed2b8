"""The registry of runs: making, updating, listing and finding them."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from ditlab.errors import UserError
from ditlab.home import RunFolder
from ditlab.tracking.names import as_count
from ditlab.tracking.records import (
    find_run,
    find_unfinished,
    list_runs,
    read_record,
    scan_runs,
    update_record,
)
from support import special_files
from support.damage import refused


def test_updates_of_several_threads_lose_nothing(new_run):
    folder = new_run()
    changes = [{"step": 10}, *[{"message": "m"}] * 8, {"status": "failed"}]
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda change: update_record(folder, **change), changes))
    record = read_record(folder)
    assert (record.step, record.message, record.status) == (10, "m", "failed")
    # no torn parts
    assert sorted(path.name for path in folder.path.iterdir()) == ["run.json", "run.json.lock"]


def test_a_run_is_found_by_id_prefix_and_name(home, new_run):
    folder = new_run("alone")
    for text in (folder.run_id, folder.run_id[:6], "alone"):
        found = find_run(home, text)
        assert found.folder == folder and found.note == ""


def test_the_newest_of_a_name_is_taken_and_said(home, new_run):
    old, new = new_run("twice"), new_run("twice")
    record = json.loads(old.record.read_text())
    old.record.write_text(json.dumps({**record, "created": "2020-01-01T00:00:00.000+00:00"}))
    found = find_run(home, "twice")
    assert found.folder == new
    assert old.run_id in found.note and new.run_id in found.note


def test_an_ambiguous_prefix_lists_the_candidates(home, new_run):
    first = new_run("first")
    second = RunFolder(first.path.with_name(first.run_id[:4] + "zzzz"))
    second.path.mkdir()
    second.record.write_text(first.record.read_text())
    with pytest.raises(UserError) as error:
        find_run(home, first.run_id[:4])
    assert first.run_id in str(error.value) and second.run_id in str(error.value)


def test_an_unknown_run_names_the_nearest(home, new_run):
    with refused("holds no runs"):
        find_run(home, "digits")
    new_run("digits-dit")
    with refused("did you mean 'digits-dit'"):
        find_run(home, "digit-dit")


WRONG = (
    {"name": 7},
    {"status": "odd"},
    {"step": "3"},
    {"step": -1},
    {"step": 10**30},
    {"created": "soon"},
    {"created": "2026-01-01T00:00:00"},
    {"trial": True},
    {"format": 99},
)
"""Changes of a record that leave it of a wrong shape."""


def test_a_damaged_record_costs_its_run_alone(home, new_run):
    whole, damaged = new_run("whole"), new_run("damaged")
    (home.runs / "stray").mkdir()
    record = json.loads(damaged.record.read_text())
    texts = [json.dumps({**record, **change}) for change in WRONG]
    for text in ('{"run_id": ', *texts):
        damaged.record.write_text(text)
        runs, unreadable = scan_runs(home)
        assert [record.run_id for record in runs] == [whole.run_id], text
        with pytest.raises(UserError, match=r"run\.json cannot be read \(") as error:
            read_record(damaged)
        assert list(unreadable) == [damaged.run_id] and unreadable[damaged.run_id] in str(
            error.value
        )
        if '"format": 99' in text:
            assert "it is of format 99, and this version of DiTLab reads 2" in str(error.value)


@pytest.mark.parametrize("kind", ["pipe", "device", "circle", "dangling", "socket"])
def test_a_folder_of_runs_that_is_none_is_said(home, kind):
    special_files.put(kind, home.runs)
    if kind == "dangling":
        assert list_runs(home) == []
        return
    with refused(r"train cannot be listed \(.+\); put the folder of the runs there\.$"):
        list_runs(home)


def test_journals_of_nodes_are_known_by_their_names(new_run):
    folder = new_run()
    for name in ("2", "11", "0", "01", "-1", "\u00b2\u00b3", "1x", "9" * 10, ""):
        (folder.path / f"journal.node-{name}.jsonl").touch()
    assert folder.journal_nodes() == [0, 2, 11]


def test_counts_are_whole_numbers_of_a_bounded_length():
    texts = ("0", "12", "-1", "1.0", "\u00b2", "\u0663", "9" * 30, "")
    assert [as_count(text) for text in texts] == [0, 12, *[None] * 6]


def test_the_newest_unfinished_run_of_a_spec(home, new_run):
    assert find_unfinished(home, "a", "h1") is None
    stopped, done, other = (new_run("a", spec_hash=h) for h in ("h1", "h1", "h2"))
    update_record(stopped, status="interrupted")
    update_record(done, status="finished")
    assert find_unfinished(home, "a", "h1") == stopped != other
