"""Sweeps whose trials are evaluated asynchronously decide as those that are evaluated by their
workers.
"""

import threading

import pytest

from ditlab.api.sweeps import tune
from ditlab.home import Home
from ditlab.spec.sweep import build_sweep
from ditlab.tracking.history import metric_history
from ditlab_addons.ask.request import ask
from support.sweeps import METRIC, by_number, small_sweep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run_sweep(on_progress=None, fixed=None, **fields):
    fixed = {"training.steps": 8, "resources.cpus_per_worker": 1, **(fixed or {})}
    space = {"optimizer.lr": {"kind": "grid", "values": [1e-2, 1e-6, 1.1e-2]}}
    sweep = small_sweep(space=space, fixed=fixed, concurrent=1, **fields)
    return tune(build_sweep(sweep, "test"), on_progress=on_progress)


def found(result):
    return [
        (trial.values, trial.seed, trial.status, trial.step, trial.metrics[METRIC])
        for trial in by_number(result)
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"scheduler": {"kind": "race", "grace": 2, "reduction": 2}, "seeds": {"min": 2, "max": 3}},
        {"scheduler": {"kind": "asha", "grace": 2, "reduction": 2}},
    ],
    ids=["race", "asha"],
)
def test_decisions_are_those_of_evaluations_in_the_training(fields, ray, tracked_home):
    inline, asynchronous = (
        run_sweep(fixed={"evaluation.mode": mode}, **fields) for mode in ("inline", "async")
    )
    assert found(asynchronous) == found(inline)
    assert {trial.status for trial in inline.summary.trials} == {"finished", "stopped"}
    for pair in zip(by_number(inline), by_number(asynchronous), strict=True):
        one, other = (metric_history(tracked_home.run(trial.run_id))[METRIC] for trial in pair)
        values, of_other = (
            dict(zip(each.steps.tolist(), each.values.tolist(), strict=True))
            for each in (one, other)
        )
        # passed over where the evaluator comes after a newer checkpoint
        of_other.setdefault(0, values[0])
        assert of_other == values


def test_a_trial_is_asked_and_its_sweep_decides_as_before(ray, tracked_home):
    fixed = {"training.steps": 1600, "evaluation.every": 400}
    fields = {"fixed": fixed, "scheduler": {"kind": "asha", "grace": 400, "reduction": 2}}
    expected, answers, threads = run_sweep(**fields), {}, {}

    def ask_trial(folder):
        answers[folder.run_id] = ask(folder, "evaluate")

    def ask_each(progress):
        for trial in progress.trials:
            folder = Home(tracked_home.root).run(trial.run_id)
            if folder.run_id not in threads and folder.journal.exists():
                threads[folder.run_id] = threading.Thread(
                    target=ask_trial, args=(folder,), daemon=True
                )
                threads[folder.run_id].start()

    result = run_sweep(ask_each, **fields)
    for thread in threads.values():
        thread.join(60)
    assert found(result) == found(expected)
    assert len(answers) == 3 and any(
        each.status == "done" and each.metrics for each in answers.values()
    ), answers
