"""Files stay in DITLAB_HOME and in the run's own folder, whatever names a run, an experiment or a
journal holds.
"""

import json

import pytest

from ditlab.errors import UserError
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.names import safe_folder
from ditlab.tracking.records import find_run
from ditlab.tracking.tracker import RunTracker
from support.damage import refused
from support.stored import Stored

OUT = [
    "..",
    ".",
    "../../out",
    "a/../../../out",
    "/etc/out",
    "..%2F..%2Fout",
    "%252e%252e%252fout",
    "~",
    "a\\..\\out",
    "file:///tmp/out",
    "a" * 300,
    "naïve",
    " ",
]


@pytest.mark.usefixtures("store")
def test_an_experiments_artifacts_stay_below_the_homes(home, new_run):
    before = {path.name for path in home.root.parent.iterdir()}
    trackers = {}
    for experiment in OUT:
        trackers[experiment] = tracker = RunTracker(new_run(), None, home)
        tracker.start("digits", experiment, "dit")
        tracker.log_text("a note", "note.txt")
    for experiment, tracker in trackers.items():
        assert tracker.close(60) == 0, experiment
        assert Stored(tracker).files() == ["note.txt"], experiment
    notes = [
        path.relative_to(home.artifacts).parts
        for path in home.artifacts.rglob("note.txt")
        if path.is_file()
    ]
    assert {parts[1] for parts in notes} == {tracker.mlflow_run_id for tracker in trackers.values()}
    assert [len(parts) for parts in notes] == [4] * len(OUT)  # experiment, run, artifacts, file
    assert {path.name for path in home.root.parent.iterdir()} == before


def test_different_names_get_different_folders():
    assert len({safe_folder(name) for name in OUT}) == len(OUT)
    assert safe_folder("digits 2") == "digits 2"
    assert all("%" not in safe_folder(name) and "/" not in safe_folder(name) for name in OUT)


@pytest.mark.parametrize("name", ["..", ".", "", "../../x", "/etc", "a/b", "a\0b"])
def test_no_run_has_such_an_id(home, new_run, name):
    new_run()
    with refused("is no id of a run"):
        home.run(name)
    with refused("is unknown"):
        find_run(home, name)


def test_a_record_that_names_another_place_is_the_folders_own(home, new_run):
    folder = new_run()
    record = json.loads(folder.record.read_text())
    folder.record.write_text(json.dumps({**record, "run_id": "../../elsewhere"}))
    assert find_run(home, folder.run_id).record.run_id == folder.run_id
    with pytest.raises(UserError):
        find_run(home, "../../elsewhere")


FOREIGN = [
    ("artifact", "{out}/secret.txt", None),
    ("artifact", "../../../secret.txt", None),
    ("artifact", "media/link.txt", None),
    ("artifact", "media/folder", None),
    ("artifact", "media/plain.txt", "../../up"),
    ("artifact", "media/plain.txt", "/abs"),
    ("table", "{out}/secret.txt", None),
    ("image", "{out}/secret.txt", "../../up"),
    ("artifact", "media/a\0b", None),
]
"""Records, as another user may write them, that name files outside the run's folder: kind, path,
artifact path or key.
"""


@pytest.mark.usefixtures("store")
def test_a_journal_of_another_user_gives_no_file_outside_the_run(home, new_run, tracked, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("nobody's business")
    for kind, path, place in FOREIGN:
        folder = new_run()
        (folder.media / "folder").mkdir(parents=True)
        (folder.media / "plain.txt").write_text("plain")
        for link in ("link.txt", "folder/link.txt"):
            (folder.media / link).symlink_to(secret)
        tracker = tracked(folder)
        fields = {"key": place, "step": 1} if kind == "image" else {"artifact_path": place}
        tracker.journal.append(kind, path=path.format(out=tmp_path), **fields)
        tracker.journal.log_metrics(1, {"train/loss": 1.0})
        assert tracker.close(30) == 0, path
        assert len(tracker.said) == 1 and "leads out of" in tracker.said[0], path
        found = Stored(tracker)
        assert found.run.data.metrics == {"train/loss": 1.0} and found.files() == [], path
    kept = [path for path in home.artifacts.rglob("*") if path.is_file()]
    assert kept == [] and not (tmp_path / "up").exists()


@pytest.mark.usefixtures("store")
def test_a_file_from_elsewhere_is_copied_when_it_is_logged(new_run, tracked, tmp_path):
    drawn = tmp_path / "curve.png"
    drawn.write_bytes(b"drawn")
    tracker = tracked(new_run())
    tracker.log_artifact(drawn, "figures")
    drawn.unlink()
    assert tracker.close(30) == 0
    assert Stored(tracker).file("figures/curve.png").read_bytes() == b"drawn"


@pytest.mark.usefixtures("store")
def test_a_journal_of_another_user_names_no_parent_outside(home, new_run):
    journal = JournalWriter(new_run())
    journal.append(
        "start", run_id="../../x", name="n", experiment="e", family="dit", parent="../../y"
    )
    journal.close()
    with RunTracker(journal.folder, None, home) as tracker:
        assert tracker.close(30) == 0
    assert not list(home.root.parent.glob("x*"))
