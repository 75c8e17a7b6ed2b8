"""Differences between the configurations of a sweep over its seeds: of each to the best one, and
whether that is significantly different.
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
class ConfigurationDifference:
    """Difference of a configuration to the best one, in the sweep's first metric."""

    configuration: Trial
    interval: Interval
    """Interval of the configuration's value minus the best one's."""

    def to_dict(self) -> dict[str, Any]:
        """The difference in JSON's types."""
        return {
            "configuration": self.configuration.number,
            "is_paired": not self.interval.num_other,
            **self.interval.to_dict(),
        }


def mean_interval(configuration: Trial, metric: str) -> Interval:
    """Interval of a configuration's mean over seeds."""
    values = [metrics[metric] for metrics in configuration.by_seed.values()]
    return paired_interval(values or [configuration.metrics[metric]])


def differences_to_best(summary: SweepSummary) -> list[ConfigurationDifference]:
    """Return the difference of every configuration to the best one, in the order of `rank`: of
    configurations of its status alone.

    The error is shared (Bonferroni), so that all intervals hold together with CONFIDENCE. Empty for
    a sweep of one seed, of several metrics, and where there is no best configuration; and where the
    scheduler has a verdict: its number of seeds followed the results, so that its own intervals
    alone hold.
    """
    first = best(summary)
    if first is None or summary.verdict or summary.num_seeds < 2 or len(summary.metrics) > 1:
        return []
    alike = [
        configuration
        for configuration in rank(summary)
        if configuration.status == first.status and objectives(summary, configuration)
    ]
    others = alike[1:]
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(others))
    found = []
    for configuration in others:
        interval = configuration_interval(summary, configuration, first, confidence)
        found.append(ConfigurationDifference(configuration, interval))
    return found


def configuration_interval(
    summary: SweepSummary, configuration: Trial, other: Trial, confidence: float
) -> Interval:
    """Interval of one configuration's value minus another's: of pairs by seed where they share
    draws, else between means.
    """
    metric = summary.metrics[0]
    shared = [seed for seed in configuration.by_seed if seed in other.by_seed]
    are_pairs = all(
        configuration.values.get(path) == other.values.get(path) for path in summary.unshared
    )
    if are_pairs and shared:
        return paired_interval(
            [configuration.by_seed[seed][metric] - other.by_seed[seed][metric] for seed in shared],
            confidence,
        )
    one = [values[metric] for values in configuration.by_seed.values()]
    two = [values[metric] for values in other.by_seed.values()]
    return unpaired_interval(one, two, confidence)


def not_told_apart(differences: Sequence[ConfigurationDifference]) -> list[int]:
    """Return the numbers of configurations that may be as good as the best one."""
    return [each.configuration.number for each in differences if not each.interval.excludes_zero]


def difference_sentence(
    summary: SweepSummary, difference: ConfigurationDifference, first: Trial
) -> str:
    """Describe the difference of a configuration to the best one in a sentence."""
    configurations = (
        f"configuration {difference.configuration.number}",
        f"configuration {first.number}",
    )
    text = describe_difference(
        difference.interval, configurations, summary.modes[0], summary.metrics[0]
    )
    return f"{text[0].upper()}{text[1:]}."


def fewer_seeds_sentences(summary: SweepSummary) -> list[str]:
    """Write a sentence on configurations whose mean is over fewer seeds than another's of their
    status; none without any.
    """
    configurations = [each for each in summary.trials if objectives(summary, each)]
    most: dict[str, int] = {}
    for each in configurations:
        most[each.status] = max(each.num_seeds, most.get(each.status, 0))
    fewer = [each.number for each in configurations if each.num_seeds < most[each.status]]
    if not fewer:
        return []
    sentence = "Configurations with values of fewer seeds than others are ranked behind those"
    return [f"{sentence}: {listed(fewer, 8)}."]
