"""A DITLAB_HOME that was moved, copied, damaged or made before formats had a number, through the
commands.
"""

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from ditlab.home import Home
from ditlab.runs.locks import lock_run
from ditlab.storage.files import encode_json_line, is_as_stamped, read_json_lines, stamped
from ditlab.tracking.upload import CursorFile

WRITING = (("evaluate", "small"), ("figures", "small", "--kind", "loss"), ("ui",))


def digests(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.fixture
def copied(finished, tmp_path, monkeypatch):
    """A copy of the finished run's home, as DITLAB_HOME."""
    copy = tmp_path / "copy"
    shutil.copytree(finished.home, copy)
    monkeypatch.setenv("DITLAB_HOME", str(copy))
    return copy


def stored(database, query):
    with closing(sqlite3.connect(database)) as connection:
        return sorted(connection.execute(query).fetchall())


POINTS = (
    "SELECT metrics.key, step, metrics.value FROM metrics JOIN tags USING (run_uuid) WHERE "
    "tags.key = 'ditlab.run'"
)


def test_whatever_writes_is_refused_with_the_remedy(finished, copied, tmp_path, cli):
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        f"name: s\nbase: {finished.spec}\nspace: {{optimizer.lr: {{kind: grid, values: [0.1]}}}}\n"
        "metric: eval/velocity\nmode: min\nsearch: {kind: grid}\n"
    )
    before, original = digests(copied), digests(finished.home)
    for arguments in (*WRITING, ("train", finished.spec, "--local"), ("tune", sweep)):
        cli(*arguments).refused(
            f"ditlab: DITLAB_HOME={copied} is a copy of {finished.home}; run `ditlab runs "
            "sync` once, which fills MLflow again from the runs' journals.\n"
        )
    assert digests(copied) == before and digests(finished.home) == original


@pytest.mark.parametrize("is_moved", [pytest.param(False, marks=pytest.mark.slow), True])
def test_sync_makes_it_a_home_of_its_own(finished, copied, monkeypatch, tmp_path, is_moved, cli):
    """Every metric and file is in MLflow again, and the other home is unchanged."""
    if is_moved:
        copied = copied.rename(tmp_path / "moved")
        monkeypatch.setenv("DITLAB_HOME", str(copied))
    home, run = Home(copied), finished.run_id
    old = stored(home.mlflow_database, POINTS)
    original = digests(finished.home)
    said = cli("runs", "sync", "--json").ok()
    filled = said.json["refilled"]
    assert (
        stored(home.mlflow_database, POINTS) == old == stored(copied / filled["database"], POINTS)
    )
    assert (
        f"the old database and its files are {filled['database']} and {filled['artifacts']}"
        in said.err
    )
    for arguments in (
        ("evaluate", "small"),
        ("figures", "small", "--kind", "loss"),
        ("sample", "small", "--num", "2"),
    ):
        cli(*arguments).ok()
    again = cli("runs", "sync", "small", "--json")
    assert again.json == {"synced": [{"run_id": run, "sent": 0, "left": 0}], "refilled": None}
    ((uri,),) = stored(home.mlflow_database, "SELECT artifact_uri FROM runs")
    assert (Path(uri) / "figures" / "loss.png").is_file() and Path(uri).is_relative_to(copied)
    assert digests(finished.home) == original


def test_paths_of_the_home_in_specs_and_trials_follow_it(finished, copied, cli):
    folder = Home(copied).run(finished.run_id)
    spec = yaml.safe_load(folder.spec.read_text())
    spec["data"] = {"kind": "arrow", "path": f"{finished.home}/stores/mine"}
    spec["checkpoint"]["storage"] = f"{finished.home}-elsewhere"
    folder.spec.write_text(stamped(yaml.safe_dump(spec)))
    values = {"data.path": f"file://{finished.home}/stores/é", "note": f"/mnt{finished.home}/x"}
    trial = encode_json_line({"number": 0, "values": values})
    (folder.path / "trials.jsonl").write_bytes(trial)
    cli("runs", "sync").ok()
    moved = yaml.safe_load(folder.spec.read_text())
    assert moved["data"]["path"] == f"{copied}/stores/mine"
    assert is_as_stamped(folder.spec.read_bytes())
    assert moved["checkpoint"]["storage"] == f"{finished.home}-elsewhere"
    (trial,) = read_json_lines(folder.path / "trials.jsonl").records
    assert trial["values"] == values | {"data.path": f"file://{copied}/stores/é"}


@pytest.mark.parametrize("place", [pytest.param("rename", marks=pytest.mark.slow), "sync_runs"])
def test_a_refill_that_is_cut_short_goes_on(copied, monkeypatch, place, cli):
    from ditlab_addons.housekeeping import sync

    old = stored(copied / "mlflow.db", POINTS)

    def cut(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path if place == "rename" else sync, place, cut)
        assert cli("runs", "sync").code == 130
    cli("evaluate", "small").refused("run `ditlab runs sync` once")
    said = cli("runs", "sync", "--json").ok()
    assert said.json["refilled"]["database"]
    for name in ("mlflow.db", "artifacts"):
        assert len([*copied.glob(f"{name}.before-*")]) == 1
    assert stored(copied / "mlflow.db", POINTS) == old
    cli("evaluate", "small").ok()


def test_a_home_whose_run_is_sent_is_left(finished, copied, cli):
    home = Home(copied)
    folder = home.run(finished.run_id)
    sending = CursorFile(folder, f"sqlite:///{home.mlflow_database}")
    with lock_run(folder):
        assert sending.acquire()
        before = digests(copied)
        cli("runs", "sync").refused(f"while a process sends run {finished.run_id}")
        assert digests(copied) == before
    sending.release()


@pytest.mark.parametrize("content", [b"{", b'["format"]', b'{"format": 2}'])
def test_a_damaged_marker_is_written_again_by_sync(copied, content, cli):
    Home(copied).marker.write_bytes(content)
    cli("runs").ok()
    cli("evaluate", "small").refused(
        "has a damaged home.json, so that it is not known where it was made; run"
    )
    cli("runs", "sync").ok()
    assert json.loads(Home(copied).marker.read_bytes()) == {"format": 2, "folder": str(copied)}


def test_a_home_of_another_format_is_one_sentence(finished, copied, cli):
    marker = Home(copied).marker
    of_before = (
        f"DITLAB_HOME={copied} holds runs and no home.json: an earlier version made it, and commit "
        "0f22711 is the last that reads it; check that out, or set DITLAB_HOME to another folder."
    )
    for change, sentence in (
        (lambda: marker.write_text('{"format": 7}'), "has files of format 7, and this version"),
        (marker.unlink, of_before),
    ):
        change()
        before = digests(copied)
        for arguments in (
            *WRITING,
            ("runs",),
            ("runs", "sync"),
            ("train", finished.spec, "--local"),
        ):
            cli(*arguments).refused(sentence)
        assert digests(copied) == before
