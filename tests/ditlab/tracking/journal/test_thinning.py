"""The budget of points: dense early, then thinned, and the same however often a run is killed."""

import math
import random

import pytest

from ditlab.tracking.history import metric_history
from ditlab.tracking.journal_writer import JournalWriter, Thinning
from support.journals import read_records


def test_a_million_steps_stay_within_the_budget():
    thinning = Thinning(10_000)
    sent = [step for step in range(10**6) if thinning.selects()]
    assert 5000 < len(sent) < 10_000
    assert sent[:1000] == list(range(1000))


@pytest.mark.parametrize("seed", range(4))
def test_kills_and_rollbacks_change_nothing_of_what_is_sent(new_run, seed):
    draw = random.Random(seed)
    steps, budget = 2000, 300
    values = [
        draw.choice([draw.gauss(0, 1), draw.gauss(0, 1), 0.0, math.nan]) for _ in range(steps)
    ]
    folder, step, kills = new_run(), 0, 12
    journal = JournalWriter(folder, budget=budget)
    while step < steps:
        journal.log_metrics(step, {"train/loss": values[step], "train/lr": step})
        if step % 100 == 0:
            journal.log_metrics(step, {"eval/loss": values[step]})
        step += 1
        if kills and draw.random() < 0.01:
            kills -= 1
            if draw.random() < 0.7:
                journal.close()
                if draw.random() < 0.5:  # killed within a line
                    with folder.journal.open("ab") as file:
                        file.write(b'{"kind":"metrics","time":1,"step":99')
                journal = JournalWriter(folder, budget=budget)
            # back to a checkpoint, in the same process or the next
            step = max(0, step - draw.randrange(80))
    journal.close()
    thinning = Thinning(budget)
    sent = {
        record["step"]: float(record["values"]["train/loss"])
        for record in read_records(folder.journal)
        if "train/loss" in record["values"]
    }
    expected = {step: value for step, value in enumerate(values) if thinning.selects()}
    assert repr(sent) == repr(expected)  # by text, as NaN equals nothing
    assert len(sent) < steps / 2
    history = metric_history(folder)
    for name in ("train/loss", "train/lr"):
        assert history[name].steps.tolist() == list(range(steps))
    assert history["eval/loss"].steps.tolist() == list(range(0, steps, 100))
