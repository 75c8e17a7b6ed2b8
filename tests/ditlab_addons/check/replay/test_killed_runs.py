"""A run killed three times, on 1, 2 and 1 workers: every step replays to the loss of its receipt,
bit for bit.
"""

from dataclasses import replace

import pytest

from ditlab.home import Home
from ditlab.receipts.reading import read_receipts
from ditlab_addons.check import process_group
from ditlab_addons.check.replay.check import EXACT, check_replay
from ditlab_addons.check.replay.replaying import open_source
from support.opened import file_states, open_training_run
from support.trainings.attempts import LocalAttempt, train_attempts
from support.trainings.forks import small
from support.trainings.groups import warm_processes

STEPS = 18
ATTEMPTS = [LocalAttempt(1, 7), LocalAttempt(2, 11), LocalAttempt(1, 15), LocalAttempt(2)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("killed") / "home"


@pytest.fixture
def warm(monkeypatch, home):
    monkeypatch.setattr(process_group, "_context", warm_processes)
    monkeypatch.setenv("DITLAB_HOME", str(home))


def killed(keep, stage=0, precision="fp32"):
    experiment = small(
        training={"steps": STEPS, "precision": precision},
        engine={"zero": {"stage": stage}},
        batch={"size": 32, "micro": 4},
        checkpoint={"every": 4, "keep": keep},
    )
    return train_attempts(experiment, ATTEMPTS)


def opened(folder, home):
    return open_training_run(folder.run_id, Home(home), lambda text: None)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("stage", "precision"), [(0, "fp32"), (2, "bf16"), (3, "fp32")])
def test_every_step_of_a_run_killed_three_times_replays(warm, home, stage, precision):
    """From step 0 and from kept checkpoints; nothing of the run's folder changes."""
    folder = killed(keep=9, stage=stage, precision=precision)
    before = file_states(folder.path)
    source = open_source(opened(folder, home))
    assert list(source.whole) == [4, 8, 12, 16, 18]
    assert {each.workers for each in source.history.executions} == {1, 2}
    receipts = read_receipts(folder)
    for number, attempt in enumerate(ATTEMPTS, start=1):
        written = receipts.rows["step"][receipts.rows["attempt"] == number].tolist()
        # A kill falls between the journal's line and the row of the step at work; no row before it
        # is lost.
        end = attempt.killed_at or STEPS + 1
        assert written == list(range(receipts.attempts[number].step + 1, end)), (
            "a kill costs rows of done steps"
        )
    kept = check_replay(source, 1, STEPS)
    assert kept.tolerance == EXACT and not kept.unchecked
    losses = {
        each.step: each
        for each in kept.comparisons
        if (each.quantity, each.source) == ("loss", "receipts")
    }
    assert sorted(losses) == [*range(1, STEPS + 1)]
    assert [each for each in kept.comparisons if not each.holds] == []
    single = check_replay(open_source(opened(folder, home)), 14, 14)
    assert single.holds and "checkpoint 12" in single.replayed.origin
    from_start = replace(open_source(opened(folder, home)), manifests={})
    again = check_replay(from_start, 1, STEPS)
    assert again.holds and len(again.comparisons) == len(kept.comparisons)
    assert "from step 0" in again.replayed.origin
    assert file_states(folder.path) == before
