"""Device hours of a home, read from its journals a piece at a time."""

import shutil

from ditlab.tracking.history import DEVICES_TAG, JournalFacts
from ditlab.tracking.index import DeviceHours, cache_file
from ditlab.tracking.journal import encode_record
from support.journals import read_records


def at(second, kind, **fields):
    return encode_record(kind, {"time": 1_000_000 + 1000 * second, **fields})


def started(second, devices):
    start = at(second, "start", run_id="a", name="a", experiment="a", family="dit")
    return start + at(second, "tags", values={DEVICES_TAG: devices})


def step(second):
    return at(second, "metrics", step=second, values={"train/loss": 1.0})


PIECES = [
    (started(0, "2 GPU at 3"), {}),
    (step(900), {"GPU": 0.5}),
    (step(1800), {"GPU": 1.0}),  # killed after this
    (started(90_000, "1 GPU at 3"), {"GPU": 1.0}),
    (step(91_800) + step(92_000)[:-9], {"GPU": 1.5}),  # a line that is being written
    (step(92_000)[-9:] + at(93_600, "end", status="finished"), {"GPU": 2.0}),
    (step(99_000), {"GPU": 2.0}),  # by an evaluation
    (started(100_000, "4 core") + step(100_900), {"GPU": 2.0, "core": 1.0}),
    (step(99_000), {"GPU": 2.0, "core": 1.0}),  # the clock was set back
]
"""What a journal grows by, and the hours that it then tells."""


def test_hours_of_a_growing_journal_and_of_one_that_is_gone(home, new_run):
    place, folder = home, new_run()
    hours = DeviceHours(place)
    for piece, expected in PIECES:
        with folder.journal.open("ab") as file:
            file.write(piece)
        assert hours.total() == DeviceHours(place).total() == expected  # by what was read before
    cache_file(place).unlink()
    whole = DeviceHours(place)
    assert whole.by_run() == {folder.run_id: {"GPU": 2.0, "core": 1.0}}
    assert whole.total(["0000", folder.run_id]) == {"GPU": 2.0, "core": 1.0} and not whole.total([])
    facts = JournalFacts()
    for record in read_records(folder.journal):
        facts.add(record)
    assert (facts.seconds, facts.price) == (6300, 6.0)
    facts.count_time(1_000_000 + 1000 * 99_900)
    assert (facts.seconds, facts.device_hours) == (7200, {"GPU": 2.0, "core": 2.0})
    shutil.rmtree(folder.path)
    assert not hours.total()
