"""Decisions after a step, as a table, and what holds for every combination of facts and
settings.
"""

from itertools import product

import pytest

from ditlab.receipts.records import STOP_VERB, VERBS
from ditlab.training.decisions import Action, Intervals, StepFacts, decide

EVERY_2 = Intervals(evaluation=2, checkpoint=3)
ASYNC = Intervals(evaluation=2, checkpoint=3, is_async=True)
WAITING = Intervals(evaluation=2, checkpoint=3, is_async=True, waits_for_values=True)
UNTIL_4 = Intervals(evaluation=None, checkpoint=3, until=4)
UNSAVED = Intervals(evaluation=2, checkpoint=3, until=4, saves=False)
NEVER = Intervals(evaluation=None, checkpoint=None)


@pytest.mark.parametrize(
    ("facts", "intervals", "expected"),
    [
        (StepFacts(1, False), EVERY_2, ""),
        (StepFacts(2, False), EVERY_2, "CHECK EVALUATE JUDGE"),
        (StepFacts(6, False), EVERY_2, "CHECK EVALUATE SAVE JUDGE"),
        (StepFacts(5, True), EVERY_2, "CHECK EVALUATE SAVE"),
        (StepFacts(2, False), ASYNC, "CHECK SAVE"),
        (StepFacts(2, False), WAITING, "CHECK SAVE JUDGE"),
        (StepFacts(4, False), UNTIL_4, "CHECK SAVE STOP"),
        (StepFacts(4, False), UNSAVED, "CHECK STOP"),
        (StepFacts(4, True), UNSAVED, "CHECK EVALUATE"),
        (StepFacts(1, False, is_bad=True), EVERY_2, "CHECK"),
        (StepFacts(2, False, must_stop=True), EVERY_2, "CHECK SAVE STOP"),
        (StepFacts(5, True, must_stop=True), EVERY_2, "CHECK EVALUATE SAVE"),
        (StepFacts(1, False, verb="sample"), EVERY_2, "CHECK REQUEST"),
        (StepFacts(1, False, verb="checkpoint"), EVERY_2, "CHECK REQUEST SAVE"),
        (StepFacts(2, False, verb=STOP_VERB), EVERY_2, "CHECK REQUEST SAVE STOP"),
        (StepFacts(5, True, verb=STOP_VERB), EVERY_2, "CHECK EVALUATE REQUEST SAVE"),
    ],
)
def test_what_follows_a_step(facts, intervals, expected):
    actions = decide(facts, intervals)
    assert [action.name for action in Action if action in actions] == expected.split()


def test_what_holds_for_all_facts():
    yes = (False, True)
    for is_last, is_bad, must_stop, verb in product(yes, yes, yes, ("", *VERBS)):
        for intervals in (EVERY_2, ASYNC, WAITING, UNTIL_4, UNSAVED, NEVER):
            for step in (1, 2, 3, 4, 6):
                actions = decide(StepFacts(step, is_last, is_bad, must_stop, verb), intervals)
                assert Action.CHECK in actions or not actions, (
                    "nothing is done with numbers that were not checked"
                )
                assert not {Action.STOP, Action.EVALUATE} <= actions, "a stop has a time limit"
                assert not (is_last and Action.STOP in actions)
                assert not (must_stop and Action.REQUEST in actions), (
                    "its time is limited: a request is not begun and stays for the next attempt"
                )
                assert intervals.saves or Action.SAVE not in actions
