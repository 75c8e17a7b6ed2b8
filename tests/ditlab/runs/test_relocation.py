"""A moved or copied home made one of its own: every file that a command acts on, and none of the original's."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.runs.locks import lock_run
from ditlab.runs.relocation import check_run_place, relocate_home
from ditlab.spec.files import load_experiment
from ditlab.spec.yaml_text import dump_yaml
from ditlab.storage.files import append_json_line, is_edited, read_json_lines, stamped
from ditlab.tracking.cursor import Cursor, CursorFile
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import create_run, read_record
from ditlab.tracking.relocation import former_places, record_place
from support import databases

SPEC: dict[str, Any] = {
    "name": "small",
    "model": {"family": "dit", "image_size": 8, "patch_size": 4, "width": 32, "depth": 1, "num_heads": 2},
    "batch": {"size": 32},
    "training": {"steps": 4},
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def original(tmp_path: Path, mlflow_template: Path) -> Home:
    """A home with a run whose spec, record, cursor and sweep name places in it."""
    home = Home(databases.seed(tmp_path / "original", mlflow_template))
    (home.stores / "mine").mkdir(parents=True)
    spec = {**SPEC, "data": {"kind": "arrow", "path": str(home.stores / "mine")}}
    spec["checkpoint"] = {"storage": str(home.root / "storage")}
    (home.root / "storage").mkdir()
    address = f"sqlite:///{home.mlflow_database}"
    content_hash = _hash(tmp_path, spec)
    folder = create_run(home, "small", family="dit", spec_hash=content_hash, run_id="aaaa0001", tracking_uri=address)
    folder.spec.write_text(stamped(dump_yaml(spec)))
    with_journal(folder, address)
    plain = create_run(home, "plain", family="dit", spec_hash="abc", run_id="aaaa0002")
    plain.spec.write_text(dump_yaml(SPEC))
    with_journal(plain, address)
    sweep = create_run(home, "sweep", family="dit", spec_hash="", run_id="bbbb0001", trials=1)
    (sweep.path / "sweep.yaml").write_text(dump_yaml({"base": spec, "fixed": {"data.path": str(home.stores)}}))
    (sweep.path / "report").mkdir()
    (sweep.path / "report" / "best.yaml").write_text("# Trial 0\n" + dump_yaml(spec))
    trial = {"number": 0, "run_id": "aaaa0001", "values": {"data.path": str(home.stores / "mine")}}
    append_json_line(sweep.path / "trials.jsonl", trial)
    record_place(home)
    return home


def _hash(folder: Path, spec: dict[str, Any]) -> str:
    path = folder / "spec.yaml"
    path.write_text(dump_yaml(spec))
    return load_experiment(path).content_hash()


def with_journal(folder: RunFolder, address: str) -> None:
    journal = JournalWriter(folder)
    journal.append("start", run_id=folder.run_id, name="small", experiment="ditlab", family="dit")
    journal.close()
    CursorFile(folder, address).save(Cursor(folder.journal.stat().st_size, "", "mlflow-id", [7]))


@pytest.fixture(params=["copied", "moved"])
def home(request: pytest.FixtureRequest, original: Home, tmp_path: Path) -> Home:
    """The original home at another place: a copy beside it, or itself."""
    if request.param == "copied":
        return Home(Path(shutil.copytree(original.root, tmp_path / "other", symlinks=True)))
    return Home(original.root.rename(tmp_path / "other"))


def test_every_path_that_a_command_acts_on_is_mapped(home: Home, original: Home, tmp_path: Path) -> None:
    before = contents(original.root)
    folder = home.run("aaaa0001")
    with pytest.raises(UserError, match="run `ditlab runs relocate` once"):
        check_run_place(home, folder)
    done = relocate_home(home)
    assert (done.former, done.left) == ((original.root,), [])
    spec = load_experiment(folder.spec)
    record = read_record(folder)
    assert spec.to_dict()["data"]["path"] == str(home.stores / "mine")
    assert spec.checkpoint.storage == str(home.root / "storage")
    text = folder.spec.read_text()
    assert text == stamped("".join(text.splitlines(keepends=True)[:-1]))
    assert record.spec_hash == spec.content_hash() and record.tracking_uri == f"sqlite:///{home.mlflow_database}"
    for run_id in ("aaaa0001", "aaaa0002"):
        cursor = CursorFile(home.run(run_id), f"sqlite:///{home.mlflow_database}").load()
        assert (cursor.mlflow_run_id, cursor.deferred) == ("mlflow-id", [7]) and cursor.offset > 0
    sweep = home.run("bbbb0001").path
    best = (sweep / "report" / "best.yaml").read_text()
    assert best.startswith("# Trial 0\n") and str(home.stores / "mine") in best
    (trial,) = read_json_lines(sweep / "trials.jsonl").records
    assert trial["values"] == {"data.path": str(home.stores / "mine")}
    for file in ("spec.yaml", "sweep.yaml", "best.yaml", "trials.jsonl", "run.json", "mlflow.db", "places.json"):
        for path in home.root.rglob(file):
            assert str(original.root).encode() not in path.read_bytes(), path
    assert contents(original.root) == before
    assert former_places(home) == ()
    check_run_place(home, folder)
    assert relocate_home(home).former == ()


def test_a_dry_run_names_the_same_files_and_changes_none(home: Home) -> None:
    before = contents(home.root)
    planned = relocate_home(home, dry_run=True)
    assert contents(home.root) == before
    done = relocate_home(home)
    assert planned.files == done.files and planned.database.changes == done.database.changes
    assert {file.name for file in done.files} == {
        "spec.yaml", "sweep.yaml", "best.yaml", "trials.jsonl", "run.json", "journal.cursor.json",
    }  # fmt: skip
    assert json.loads(json.dumps(done.to_dict()))["former"] == [str(done.former[0])]


@pytest.mark.parametrize("num_writes", [0, 1, 5, 7])
def test_a_relocation_that_is_cut_short_goes_on(
    original: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_writes: int
) -> None:
    """After a full disk at one of its eight writes the home is refused, and the next call goes on.

    The last write, of the home's places, comes when every path has been mapped.
    """
    from ditlab.storage import files

    copy = Home(Path(shutil.copytree(original.root, tmp_path / "copy")))
    left, real = iter(range(num_writes)), files.flush_to_disk

    def flush(file: Any) -> None:
        if next(left, None) is None:
            raise OSError(28, "No space left on device")
        real(file)

    with monkeypatch.context() as patch:
        patch.setattr(files, "flush_to_disk", flush)
        with pytest.raises(OSError, match="No space"):
            relocate_home(copy)
    if num_writes < 7:
        with pytest.raises(UserError, match="is a copy of"):
            check_run_place(copy, copy.run("aaaa0002"))
    assert former_places(copy) == (original.root,)
    relocate_home(copy)
    check_run_place(copy, copy.run("aaaa0001"))
    assert load_experiment(copy.run("aaaa0001").spec).checkpoint.storage == str(copy.root / "storage")
    assert read_record(copy.run("aaaa0001")).spec_hash == load_experiment(copy.run("aaaa0001").spec).content_hash()


def test_a_home_whose_run_trains_is_left(home: Home) -> None:
    with lock_run(home.run("aaaa0002")):
        before = contents(home.root)
        with pytest.raises(UserError, match="cannot be relocated while a process trains run aaaa0002"):
            relocate_home(home)
    assert contents(home.root) == before


@pytest.mark.parametrize("name", ["train", "artifacts", "stores"])
def test_links_to_the_original_are_refused(original: Home, tmp_path: Path, name: str) -> None:
    """`cp -a` copies a link as a link: through it the copy would write into what the original uses."""
    original.artifacts.mkdir()
    elsewhere = (original.root / name).rename(tmp_path / "disk")
    (original.root / name).symlink_to(elsewhere)
    copy = Home(Path(shutil.copytree(original.root, tmp_path / "copy", symlinks=True)))
    before = contents(tmp_path)
    with pytest.raises(UserError, match=f"copy/{name} is a link to .*disk, which a copy of this folder shares"):
        relocate_home(copy)
    assert contents(tmp_path) == before


def test_a_linked_run_and_damaged_files_are_left_and_said(original: Home, tmp_path: Path) -> None:
    copy = Home(Path(shutil.copytree(original.root, tmp_path / "copy")))
    shutil.rmtree(copy.run("aaaa0002").path)
    copy.run("aaaa0002").path.symlink_to(original.run("aaaa0002").path)
    copy.run("aaaa0001").record.write_text("{")
    with (copy.run("bbbb0001").path / "trials.jsonl").open("a") as ledger:
        ledger.write("{torn\n")
    (copy.run("bbbb0001").path / "report" / "best.yaml").write_text(f"a: [{original.stores}")
    shutil.rmtree(copy.stores)
    before = contents(original.root)
    left = "\n".join(relocate_home(copy).left)
    assert "run aaaa0001: " in left and "run.json cannot be read" in left
    assert "trials.jsonl has damaged lines, and stays as it is." in left
    assert "best.yaml cannot be read" in left
    assert f"names {copy.stores / 'mine'}, which is not there; copy it from {original.stores / 'mine'}." in left
    assert contents(original.root) == before


def test_an_edit_by_hand_is_still_seen_after_a_relocation(home: Home) -> None:
    path = home.run("aaaa0001").spec
    path.write_text(path.read_text().replace("steps: 4", "steps: 5"))
    assert is_edited(path.read_bytes())
    relocate_home(home)
    assert is_edited(path.read_bytes()) and load_experiment(path).training.steps == 5


def test_a_home_that_was_never_elsewhere_is_left(original: Home) -> None:
    before = contents(original.root)
    assert relocate_home(original).to_dict()["former"] == []
    assert contents(original.root) == before
