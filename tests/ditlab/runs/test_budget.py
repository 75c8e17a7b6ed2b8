"""DITLAB_BUDGET: device hours of a home's runs."""

from contextlib import closing

import pytest

from ditlab.api.training import train
from ditlab.home import Home
from ditlab.runs.budget import HomeBudget
from ditlab.tracking.history import DEVICES_TAG
from ditlab.tracking.index import DeviceHours
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import create_run, read_record
from support.damage import refused
from support.trainings.workers import tiny


def use(home, hours, name="used", parent=""):
    """Write a run that has held a core for so many hours."""
    folder = create_run(home, name, family="dit", spec_hash="", parent=parent)
    start = {"run_id": folder.run_id, "name": name, "experiment": "a", "family": "dit"}
    with closing(JournalWriter(folder)) as journal:
        journal.append("start", time=1, **start)
        journal.append("tags", time=1, values={DEVICES_TAG: "1 core"})
        journal.append("end", time=1 + round(3_600_000 * hours), status="finished")


@pytest.mark.parametrize("text", ["banana", "0h", "-4h", "4", "nan h"])
def test_texts_that_are_no_budget(text, monkeypatch):
    monkeypatch.setenv("DITLAB_BUDGET", text)
    sentence = "DITLAB_BUDGET=.* is no budget; write device hours above 0 with their unit"
    with refused(sentence):
        HomeBudget.from_environment()


def test_budget_that_is_used_up_is_refused_and_said(ditlab, home, spec, monkeypatch):
    """The trials of a sweep count together; GPU hours are another budget's."""
    place = Home(home).ensure()
    sweep = create_run(place, "swept", family="dit", spec_hash="", trials=2).run_id
    use(place, 1.0)
    for _ in range(2):
        use(place, 1.5, parent=sweep)
    monkeypatch.setenv("DITLAB_BUDGET", "4h")
    ditlab("train", spec, "--local", "--resume", "auto").refused(
        "DITLAB_BUDGET=4h is used up: runs under",
        "have taken 4 core hours; set a larger DITLAB_BUDGET",
    )
    assert ditlab("train", spec, "--local", "--json").json["kind"] == "budget"
    listed = ditlab("runs", "--json")
    assert listed.json["budget"] == {"hours": 4.0, "used": {"core": 4.0}}
    assert "DITLAB_BUDGET=4h: 4 core hours are used." in listed.err


@pytest.mark.slow
def test_run_ends_with_a_checkpoint_and_goes_on_with_a_larger_budget(run_home, monkeypatch):
    monkeypatch.setattr("ditlab.runs.budget.CHECK_INTERVAL", 0.05)
    monkeypatch.setattr("ditlab.runs.budget._SHARE", 1.0)
    used = DeviceHours(run_home).total()["core"]
    text = f"{3600 * used + 1:.3f}s"
    used_up = f"DITLAB_BUDGET={text} is used up"
    monkeypatch.setenv("DITLAB_BUDGET", text)
    warnings = []
    result = train(tiny(name="bounded", training__steps=100_000), local=True, warn=warnings.append)
    folder = run_home.run(result.run_id)
    assert result.status == "interrupted" and result.step > 0 and result.checkpoint is not None
    stopping = "stopping after a final checkpoint; `--resume` goes on with a larger one."
    assert warnings == [f"{used_up}: {stopping}"]
    record = read_record(folder)
    assert (record.status, record.message) == ("interrupted", used_up)
    assert result.reason == record.message  # as `--json` has it
    longer = tiny(name="bounded", training__steps=result.step + 1)
    with refused(f"{used_up}: runs under"):
        train(longer, local=True, resume=result.run_id)
    monkeypatch.setenv("DITLAB_BUDGET", "1h")
    again = train(longer, local=True, resume=result.run_id)
    assert (again.status, again.step, again.reason) == ("finished", result.step + 1, "")
