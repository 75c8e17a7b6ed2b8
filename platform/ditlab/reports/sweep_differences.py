"""Differences between the arms of a sweep over its seeds: of each to the best one, and whether that
is told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ditlab.intervals import Interval, describe_difference, paired_interval, unpaired_interval
from ditlab.reports.formatting import listed
from ditlab.reports.sweep_records import SweepSummary, Trial, best, objectives, rank

CONFIDENCE = 0.95
"""Confidence that all intervals of a sweep hold together."""


@dataclass(frozen=True)
class ArmDifference:
    """Difference of an arm to the best one, in the sweep's first metric."""

    arm: Trial
    interval: Interval
    """Interval of the arm's value minus the best one's."""

    def to_dict(self) -> dict[str, Any]:
        """The difference in JSON's types."""
        return {
            "arm": self.arm.number,
            "is_paired": not self.interval.num_other,
            **self.interval.to_dict(),
        }


def mean_interval(arm: Trial, metric: str) -> Interval:
    """Interval of an arm's mean over seeds."""
    return paired_interval(
        [values[metric] for values in arm.by_seed.values()] or [arm.metrics[metric]]
    )


def differences_to_best(summary: SweepSummary) -> list[ArmDifference]:
    """Return the difference of every arm to the best one, in the order of `rank`: of arms of its
    status alone.

    The error is shared (Bonferroni), so that all intervals hold together with CONFIDENCE. Empty for
    a sweep of one seed, of several metrics, and where there is no best arm; and where the scheduler
    has a verdict: its number of seeds followed the results, so that its own intervals alone hold.
    """
    first = best(summary)
    if first is None or summary.verdict or summary.num_seeds < 2 or len(summary.metrics) > 1:
        return []
    alike = [
        arm for arm in rank(summary) if arm.status == first.status and objectives(summary, arm)
    ]
    others = alike[1:]
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(others))
    return [ArmDifference(arm, arm_interval(summary, arm, first, confidence)) for arm in others]


def arm_interval(summary: SweepSummary, arm: Trial, other: Trial, confidence: float) -> Interval:
    """Interval of one arm's value minus another's: of pairs by seed where they share draws, else
    between means.
    """
    metric = summary.metrics[0]
    shared = [seed for seed in arm.by_seed if seed in other.by_seed]
    are_pairs = all(arm.values.get(path) == other.values.get(path) for path in summary.unshared)
    if are_pairs and shared:
        return paired_interval(
            [arm.by_seed[seed][metric] - other.by_seed[seed][metric] for seed in shared], confidence
        )
    one, two = ([values[metric] for values in each.by_seed.values()] for each in (arm, other))
    return unpaired_interval(one, two, confidence)


def not_told_apart(differences: Sequence[ArmDifference]) -> list[int]:
    """Return the numbers of arms that may be as good as the best one."""
    return [each.arm.number for each in differences if not each.interval.excludes_zero]


def difference_sentence(summary: SweepSummary, difference: ArmDifference, first: Trial) -> str:
    """Describe the difference of an arm to the best one in a sentence."""
    arms = (f"arm {difference.arm.number}", f"arm {first.number}")
    text = describe_difference(difference.interval, arms, summary.modes[0], summary.metrics[0])
    return f"{text[0].upper()}{text[1:]}."


def fewer_seeds_sentences(summary: SweepSummary) -> list[str]:
    """Write a sentence on arms whose mean is over fewer seeds than another's of their status; none
    without any.
    """
    arms = [arm for arm in summary.trials if objectives(summary, arm)]
    most: dict[str, int] = {}
    for arm in arms:
        most[arm.status] = max(arm.num_seeds, most.get(arm.status, 0))
    fewer = [arm.number for arm in arms if arm.num_seeds < most[arm.status]]
    if not fewer:
        return []
    return [
        f"Arms with values of fewer seeds than others are ranked behind those: {listed(fewer, 8)}."
    ]
