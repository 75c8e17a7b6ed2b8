"""Differences between the configurations of a sweep over its seeds: of each to the best one, and
whether that is significantly different.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ditlab.intervals import (
    Interval,
    describe_difference,
    far_values,
    paired_interval,
    simultaneous_differences,
)
from ditlab.reports.formatting import listed
from ditlab.reports.sweep_axes import compares_configurations, error_of_each
from ditlab.reports.sweep_records import SweepSummary, Trial, best, objectives, rank


@dataclass(frozen=True)
class ConfigurationDifference:
    """Difference of a configuration to the best one, in the sweep's first metric."""

    configuration: Trial
    interval: Interval
    """Interval of the configuration's value minus the best one's."""
    far_seeds: Sequence[int] = ()
    """Seeds of pairs whose difference is far from the other pairs' (`far_values`)."""

    def to_dict(self) -> dict[str, Any]:
        """The difference in JSON's types."""
        return {
            "configuration": self.configuration.number,
            "is_paired": not self.interval.num_other,
            "far_seeds": list(self.far_seeds),
            **self.interval.to_dict(),
        }


def mean_interval(configuration: Trial, metric: str) -> Interval:
    """Interval of a configuration's mean over seeds."""
    values = [metrics[metric] for metrics in configuration.by_seed.values()]
    return paired_interval(values or [configuration.metrics[metric]])


def differences_to_best(summary: SweepSummary) -> list[ConfigurationDifference]:
    """Return the difference of every configuration to the best one, in the order of `rank`: of
    configurations of its status alone.

    All intervals hold together with 95 %, although the data chose the best one
    (`simultaneous_differences`); where the report may name axes, too, with 97.5 %, so that the
    whole report errs in 5 % (`error_of_each`). Configurations are compared by pairs of seeds where
    they share draws, else by means. Empty where `compares_configurations` is False.
    """
    first = best(summary)
    if first is None or not compares_configurations(summary):
        return []
    alike = [each for each in rank(summary) if _is_comparable(summary, each, first)]
    if first not in alike:
        return []
    groups = [_values_by_draws(summary, configuration) for configuration in alike]
    intervals = simultaneous_differences(groups, 1 - error_of_each(summary))
    found = []
    for configuration, group, interval in zip(alike[1:], groups[1:], intervals, strict=True):
        far = [] if interval.num_other else _far_seeds(group, groups[0])
        found.append(ConfigurationDifference(configuration, interval, far))
    return found


def _is_comparable(summary: SweepSummary, configuration: Trial, first: Trial) -> bool:
    """True if a configuration has values and the best one's status; not finished: at its step."""
    if configuration.status != first.status or not objectives(summary, configuration):
        return False
    if first.status == "finished":
        return True
    members = [each for each in configuration.members if each.status == first.status]
    return all(each.step == first.step for each in members)


def _values_by_draws(
    summary: SweepSummary, configuration: Trial
) -> dict[tuple[int, tuple[str, ...]], float]:
    """A configuration's values by seed and the values of axes along which seeds share no draws."""
    axes = tuple(repr(configuration.values.get(path)) for path in summary.unshared)
    metric = summary.metrics[0]
    if not configuration.by_seed:
        return {(0, axes): configuration.metrics[metric]}
    return {(seed, axes): values[metric] for seed, values in configuration.by_seed.items()}


def _far_seeds(
    group: dict[tuple[int, tuple[str, ...]], float], other: dict[tuple[int, tuple[str, ...]], float]
) -> list[int]:
    keys = [key for key in group if key in other]
    far = far_values([group[key] - other[key] for key in keys])
    return [keys[place][0] for place in far]


def not_significantly_different(differences: Sequence[ConfigurationDifference]) -> list[int]:
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
    return f"{text[0].upper()}{text[1:]}.{far_sentence(difference.far_seeds)}"


def far_sentence(seeds: Sequence[int | str]) -> str:
    """Say that the pairs of some seeds are far from the others, after a space; empty for none."""
    if not seeds:
        return ""
    if len(seeds) == 1:
        subject = f"The pair of seed {seeds[0]} is"
    else:
        subject = f"The pairs of seeds {listed(seeds, 8)} are"
    return f" {subject} far from the others, and the interval depends on it: train more seeds."


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
