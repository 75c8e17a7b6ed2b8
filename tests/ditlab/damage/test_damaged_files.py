"""Damage of any file of a home is said in a sentence, costs no other run, ends in no traceback and
changes nothing in silence."""

import pytest

from support.damaged import readers
from support.damaged.cases import Judge, Verdicts, cases, run_all
from support.sweeps import prepared, sweep_of

NUM_FLIPS, NUM_TYPED = 10_000, 2_000


@pytest.mark.parametrize(
    "part", [pytest.param(1, marks=pytest.mark.slow), 100], ids=["whole", "a hundredth"]
)
def test_damage_is_said(one, part):
    every = cases(readers.ledger(prepared(sweep_of())))
    verdicts = Verdicts()
    run_all(Judge(one, verdicts), every, NUM_FLIPS // part, NUM_TYPED // part)
    print(verdicts.counts)
    assert not verdicts.faults, "\n\n".join(
        [f"{len(verdicts.faults)} faults", *verdicts.faults[:40]]
    )
