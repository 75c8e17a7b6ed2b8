"""State of a sweep's trials in its driver: those that run are read, and what has ended is not read
again.
"""

import shutil

from ditlab.sweeps.progress import PROGRESS, WARNINGS, SweepTrials
from ditlab.tracking.records import update_record
from support.sweeps import METRIC, planned, started, sweep_of, trial_run


class Channel(dict):
    """A sweep's channel, without Ray."""

    def topics(self):
        return list(self)

    def remove(self, topic):
        del self[topic]


def test_states_of_trials(home):
    one, channel, warnings = started(sweep_of()), Channel(), []
    first, second, _, last = trials = planned(one)
    trial_run(home, one.sweep, first, "finished", {2: 3.0, 6: 2.0})
    trial_run(home, one.sweep, second, "running", {2: 3.0})
    states = SweepTrials(one, channel, warnings.append)
    read = states.read()  # an earlier session's runs are not named on the channel
    assert [trial.status for trial in read] == ["finished", "running", "waiting", "waiting"]
    assert (states.num_ended, states.leader.number, states.leader.metrics) == (1, 0, {METRIC: 2.0})
    assert not states.is_any_running()  # it ran in the process that is gone

    shutil.rmtree(home.run(first.run_id).path)
    channel[f"{PROGRESS}1"] = {"step": 4, "metrics": {METRIC: 2.5}}
    channel[f"{WARNINGS}1"] = ["slow", "slower"]
    read = states.read()
    assert (read[0].status, read[1].step, read[1].metrics) == ("finished", 4, {METRIC: 2.5})
    assert states.is_any_running() and warnings == ["trial 1: slow", "trial 1: slower"]

    channel[f"{WARNINGS}1"].append("slowest")
    update_record(home.run(second.run_id), status="stopped")
    channel[f"{WARNINGS}2"] = ["could not be run: no data"]
    states.read()
    assert warnings[2:] == ["trial 1: slowest", "trial 2: could not be run: no data"]
    assert channel == {} and not states.is_any_running() and states.num_ended == 2

    trial_run(home, one.sweep, last, "finished", {6: 1.0})
    assert states.read()[3].status == "waiting"  # nothing was heard of it
    states.add(one.folder.plan_trial(home, 4, trials[0].values))
    read = states.read(is_last=True)
    assert [trial.number for trial in read] == [0, 1, 2, 3, 4] and read[3].status == "finished"
    assert (states.num_ended, states.leader.number) == (3, 3)
