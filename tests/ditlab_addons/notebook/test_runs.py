"""Runs, lists of runs and samples in a notebook: plain HTML, whatever their files and names
hold.
"""

import json
import shutil

import pytest

import ditlab
from ditlab_addons.notebook.runs import MOST_RUNS
from support.plain_html import PlainHtml

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.fixture
def mine(own_home):
    """A copy of the finished run, to be damaged."""
    return ditlab.open_run("small")


def page_of(owner):
    html = owner._repr_html_()
    assert html is not None
    return PlainHtml(html)


def change_record(run, **values):
    """Write values into `run.json`, and open the run again."""
    record = json.loads(run.folder.record.read_bytes())
    run.folder.record.write_text(json.dumps({**record, **values}))
    return run.refresh()


def test_a_finished_run_is_shown(mine):
    page = page_of(mine)
    assert page.text.startswith(f"small : run {mine.id} of the family dit")
    assert "finished, step 4 of 4" in page.text and "--resume" not in page.text
    assert "eval/velocity" in page.text
    assert "train/loss" in page.text
    assert "model.depth 1 6" in page.text
    assert [picture["alt"] for picture in page.pictures] == [f"samples of run {mine.id} at step 4"]


@pytest.mark.parametrize("status", ["interrupted", "failed", "running"])
def test_an_unfinished_run_says_how_to_go_on(mine, status, monkeypatch):
    monkeypatch.chdir(mine.folder.path)
    page = page_of(change_record(mine, status=status, step=2, message=f"lost {MARKUP}"))
    assert f'ditlab.train(run.spec, resume="{mine.id}")' in page.text
    assert f"lost {MARKUP}" in page.text
    assert f"ditlab train spec.yaml --resume {mine.id}" in page.text and "step 2 of 4" in page.text


def damage_journal(run):
    lines = run.folder.journal.read_bytes().splitlines()
    run.folder.journal.write_bytes(b"\n".join([lines[0], b"\xff garbage", *lines[2:], b""]))


def fill_pictures_with_markup(run):
    for path in run.folder.media.rglob("*.png"):
        path.write_text(MARKUP)


def lead_pictures_out_of_the_folder(run):
    other = run.home.root / "other"
    shutil.move(run.folder.media, other)
    run.folder.media.symlink_to(other)


def damage_spec(run):
    run.folder.spec.write_text("{" * 50)


DAMAGE = {
    damage_journal: "damaged lines are skipped here (1)",
    lambda run: run.folder.record.write_text("{"): "run.json cannot be read",
    damage_spec: "spec.yaml",
    fill_pictures_with_markup: "is no PNG",
    lead_pictures_out_of_the_folder: "their path leads out of the run's folder",
    lambda run: shutil.rmtree(run.folder.media): "the last samples cannot be read",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_costs_itself_alone(mine, damage):
    damage(mine)
    page = page_of(mine)
    sentence = DAMAGE[damage]
    assert sentence in page.text and f"run {mine.id} of the family dit" in page.text
    assert "eval/velocity" in page.text and "finished, step 4 of 4" in page.text
    assert ("model.depth 1 6" in page.text) == (damage is not damage_spec)
    assert bool(page.pictures) == any(
        run_file in sentence for run_file in ("lines", "run.json", "spec")
    )


def test_a_run_without_its_folder_is_shown(mine):
    shutil.rmtree(mine.folder.path)
    assert "finished, step 4 of 4" in page_of(mine).text


def test_runs_are_a_list_and_a_table(mine):
    other = mine.folder.path.with_name("0" * 8)
    shutil.copytree(mine.folder.path, other)
    changes = {"name": MARKUP, "status": "failed", "created": "2020-01-01T00:00:00.000+00:00"}
    change_record(ditlab.open_run(other.name), **changes)
    runs = ditlab.find_runs()
    assert isinstance(runs, list) and [run.id for run in runs] == [mine.id, other.name]
    page = page_of(runs)
    assert page.text.startswith("Runs : 2 runs")
    assert f"{MARKUP} 00000000 dit" in page.text
    assert "failed" in page.text
    assert f"small {mine.id} dit" in page.text and page.text.count(" velocity ") == 2
    assert runs[0].id == mine.id
    assert page_of(ditlab.find_runs(name="nothing")).text == "Runs : 0 runs"
    (other / "journal.jsonl").write_bytes(b"\xff" * 1000)
    assert f"{MARKUP} 00000000 dit" in page_of(runs).text


def test_long_lists_and_names_are_cut(mine):
    long = change_record(mine, name="x" * 10_000)
    assert "x" * 301 not in page_of(long).text and "more characters" in page_of(long).text
    many = ditlab.find_runs() * 80
    page = page_of(type(ditlab.find_runs())(many))
    assert page.text.count(mine.id) == MOST_RUNS and "50 older ones not shown" in page.text
