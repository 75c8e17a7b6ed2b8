"""A trial whose leading process was lost while it waited for a decision hears of it later."""

from types import SimpleNamespace

import pytest

from ditlab.cluster.capacity import CpuShare
from ditlab.sweeps import trial as trials
from ditlab.sweeps.folder import Takeover, record_takeover, trial_experiment
from ditlab.sweeps.trial import TrialThread, stop_trial
from ditlab.tracking.history import JournalFacts
from ditlab.tracking.journal import read_content
from ditlab.tracking.records import read_record
from ditlab.training.reporting import RunOutcome
from support.sweeps import METRIC, planned, started, sweep_of, trial_run


class Channel(dict):
    """All channels of a sweep, in this process."""

    def put(self, topic, value):
        self[topic] = value

    try_put = put

    def clear(self):
        pass


@pytest.fixture
def lead(home, monkeypatch):
    """Makes the thread of a trial that was killed, by its newest checkpoint and its config."""
    channel = Channel()
    monkeypatch.setattr(trials, "KeyValueChannel", lambda name: channel)
    outcome = RunOutcome("finished", 6, {METRIC: 1.0}, None)
    monkeypatch.setattr(TrialThread, "_train", lambda self: outcome)
    one = started(sweep_of(scheduler={"kind": "asha", "grace": 2, "reduction": 2}))

    def make(checkpoint, **config):
        trial = planned(one)[0]
        if not home.run(trial.run_id).record.exists():
            trial_run(home, one.sweep, trial, "running", {0: 9.0, 2: 3.0, 4: 2.0})
        store = SimpleNamespace(last_step=lambda: checkpoint)
        monkeypatch.setattr(trials, "checkpoint_store", lambda *_: store)
        place = one.folder.sweep_id
        share = CpuShare(1, 1.0)
        return TrialThread(home, place, one.sweep, share, None, {**trial.to_dict(), **config})

    make.sweep = one
    make.channel = channel
    return make


TRAINED = {"step": 6, METRIC: 1.0, "done": True, "status": "finished"}


def test_the_evaluation_of_the_newest_checkpoint_is_reported_again(lead):
    thread = lead(4)
    assert thread.next_result() == {"step": 4, METRIC: 2.0}
    assert thread.next_result() == TRAINED
    # an older checkpoint than the newest one would be waited for at step 2
    assert lead.channel["go"] == 4


@pytest.mark.parametrize("checkpoint", [-1, 3, 6])
def test_a_trial_that_waited_nowhere_trains_on_at_once(lead, checkpoint):
    assert lead(checkpoint).next_result() == TRAINED


def test_a_trial_that_is_stopped_there_trains_no_step(lead, home):
    thread = lead(4)
    thread.next_result()
    stop_trial(lead.channel, 0)
    assert thread.next_result() == {"step": 4, METRIC: 2.0, "done": True, "status": "stopped"}
    folder = home.run(planned(lead.sweep)[0].run_id)
    record = read_record(folder)
    assert (record.status, record.step) == ("stopped", 4)
    assert JournalFacts.of(read_content(folder.journal)).status == "stopped"


def test_a_takeover_comes_before_a_report(lead, home):
    takeover = {"run_id": "donor", "step": 4, "key": "step 4"}
    assert lead(4, takeover=takeover).next_result() == TRAINED
    trial = planned(lead.sweep)[0]
    done = Takeover(4, "donor", 4, dict(trial.values), "step 4")
    record_takeover(home.run(trial.run_id), done, trial_experiment(lead.sweep.sweep, trial))
    assert lead(4, takeover=takeover).next_result()["step"] == 4
