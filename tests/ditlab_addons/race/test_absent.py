"""Sweeps whose scheduler is a race, where the add-on is not here."""

import sys

from support.sweeps import started, sweep_of

RACE = {"scheduler": {"kind": "race", "grace": 2}, "seeds": {"min": 2, "max": 3}, "concurrent": 1}


def test_a_race_of_before_is_listed_and_shown_and_not_resumed(home, ditlab, monkeypatch):
    sweep_id = started(sweep_of(**RACE)).folder.sweep_id
    monkeypatch.setitem(sys.modules, "ditlab_addons", None)
    for command in (["runs"], ["runs", "show", sweep_id], ["runs", "log", sweep_id]):
        said = ditlab(*command).ok()
        assert "race" not in said.err, said.err
    ditlab("tune", "--resume", sweep_id).refused(
        "the scheduler 'race' is of the add-on race, which is not here"
    )
