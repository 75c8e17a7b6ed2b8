"""Files stay in DITLAB_HOME and in the run's own folder, whatever names a run, an experiment or a
journal holds.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest

from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.names import safe_folder
from ditlab.tracking.records import find_run
from ditlab.tracking.tracker import RunTracker

NewRun = Callable[..., RunFolder]
OUT = [
    "..",
    ".",
    "../../out",
    "a/../../../out",
    "/etc/out",
    "..%2F..%2Fout",
    "%2e%2e/out",
    "%252e%252e%252fout",
    "~",
    "a\\..\\out",
    "file:///tmp/out",
    "a" * 300,
    "mit Leerzeichen",
    "naïve",
    " ",
]


@pytest.mark.usefixtures("store")
def test_an_experiments_artifacts_stay_below_the_homes(home: Home, new_run: NewRun) -> None:
    before = {path.name for path in home.root.parent.iterdir()}
    trackers = {}
    for experiment in OUT:
        trackers[experiment] = tracker = RunTracker(new_run(), None, home)
        tracker.start("digits", experiment, "dit")
        tracker.log_text("a note", "note.txt")
    for experiment, tracker in trackers.items():
        assert tracker.close(60) == 0, experiment
        client = mlflow.MlflowClient(tracker.uri)
        assert [file.path for file in client.list_artifacts(str(tracker.mlflow_run_id))] == [
            "note.txt"
        ], experiment
    notes = [
        path.relative_to(home.artifacts).parts
        for path in home.artifacts.rglob("note.txt")
        if path.is_file()
    ]
    assert {parts[1] for parts in notes} == {tracker.mlflow_run_id for tracker in trackers.values()}
    assert [len(parts) for parts in notes] == [4] * len(OUT)  # experiment, run, artifacts, file
    assert {path.name for path in home.root.parent.iterdir()} == before


def test_different_names_get_different_folders() -> None:
    assert len({safe_folder(name) for name in OUT}) == len(OUT)
    assert safe_folder("digits 2") == "digits 2"
    assert all("%" not in safe_folder(name) and "/" not in safe_folder(name) for name in OUT)


@pytest.mark.parametrize("name", ["..", ".", "", "../../x", "/etc", "a/b", "a\0b"])
def test_no_run_has_such_an_id(home: Home, new_run: NewRun, name: str) -> None:
    new_run()
    with pytest.raises(UserError, match="is no id of a run"):
        home.run(name)
    with pytest.raises(UserError, match="is unknown"):
        find_run(home, name)


def test_a_record_that_names_another_place_is_the_folders_own(home: Home, new_run: NewRun) -> None:
    folder = new_run()
    record = json.loads(folder.record.read_text())
    folder.record.write_text(json.dumps({**record, "run_id": "../../elsewhere"}))
    assert find_run(home, folder.run_id).record.run_id == folder.run_id
    with pytest.raises(UserError):
        find_run(home, "../../elsewhere")


FOREIGN: list[tuple[str, dict[str, Any]]] = [
    ("artifact", {"path": "{out}/secret.txt", "artifact_path": None}),
    ("artifact", {"path": "../../../secret.txt", "artifact_path": None}),
    ("artifact", {"path": "media/link.txt", "artifact_path": None}),
    ("artifact", {"path": "media/folder", "artifact_path": None}),
    ("artifact", {"path": "media/plain.txt", "artifact_path": "../../up"}),
    ("artifact", {"path": "media/plain.txt", "artifact_path": "/abs"}),
    ("table", {"path": "{out}/secret.txt", "artifact_path": None}),
    ("image", {"path": "{out}/secret.txt", "key": "../../up", "step": 1}),
    ("artifact", {"path": "media/a\0b", "artifact_path": None}),
]
"""Records, as another user may write them, that name files outside the run's folder."""


@pytest.mark.usefixtures("store")
def test_a_journal_of_another_user_gives_no_file_outside_the_run(
    home: Home, new_run: NewRun, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("nobody's business")
    client = mlflow.MlflowClient(f"sqlite:///{home.mlflow_database}")
    for kind, fields in FOREIGN:
        folder, warnings = new_run(), list[str]()
        (folder.media / "folder").mkdir(parents=True)
        (folder.media / "plain.txt").write_text("plain")
        (folder.media / "link.txt").symlink_to(tmp_path / "secret.txt")
        (folder.media / "folder" / "link.txt").symlink_to(tmp_path / "secret.txt")
        tracker = RunTracker(folder, None, home, warn=warnings.append)
        tracker.start("digits", "digits", "dit")
        path = fields["path"].format(out=tmp_path)
        tracker.journal.append(kind, **{**fields, "path": path})
        tracker.journal.log_metrics(1, {"train/loss": 1.0})
        assert tracker.close(30) == 0, path
        assert len(warnings) == 1 and "leads out of" in warnings[0], path
        run = client.get_run(str(tracker.mlflow_run_id))
        assert (
            run.data.metrics == {"train/loss": 1.0} and client.list_artifacts(run.info.run_id) == []
        ), path
    kept = [path for path in home.artifacts.rglob("*") if path.is_file()]
    assert kept == [] and not (tmp_path / "up").exists()


@pytest.mark.usefixtures("store")
def test_a_file_from_elsewhere_is_copied_when_it_is_logged(
    home: Home, new_run: NewRun, tmp_path: Path
) -> None:
    drawn = tmp_path / "out" / "curve.png"
    drawn.parent.mkdir()
    drawn.write_bytes(b"drawn")
    tracker = RunTracker(new_run(), None, home)
    tracker.start("digits", "digits", "dit")
    tracker.log_artifact(drawn, "figures")
    drawn.unlink()
    assert tracker.close(30) == 0
    (file,) = mlflow.MlflowClient(tracker.uri).list_artifacts(str(tracker.mlflow_run_id), "figures")
    assert file.path == "figures/curve.png" and file.file_size == 5


@pytest.mark.usefixtures("store")
def test_a_journal_of_another_user_names_no_parent_outside(home: Home, new_run: NewRun) -> None:
    journal = JournalWriter(new_run())
    journal.append(
        "start", run_id="../../x", name="n", experiment="e", family="dit", parent="../../y"
    )
    journal.close()
    with RunTracker(journal.folder, None, home) as tracker:
        assert tracker.close(30) == 0
    assert not list(home.root.parent.glob("x*"))
