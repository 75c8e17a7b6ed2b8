"""Reports of sweeps over samples: the frontier, what is told apart, and what that makes the sentences say."""

import math
from dataclasses import replace

import numpy as np

from ditlab.quality.text import ENTROPY
from ditlab_addons.race.samples.report import (
    PointResult,
    SamplingSummary,
    frontier_figure,
    rows_of,
    verdict,
    write_sampling_report,
)


def summary(*points, mode="min", num_seeds=4):
    """Points of (network evaluations a sample, values by seed); None for a point that is not measured."""
    results = []
    for number, point in enumerate(points):
        by_seed = {}
        if point is not None:
            cost, values = point
            by_seed = {
                "quality/frechet": values,
                "cost/evaluations": [cost] * num_seeds,
                "cost/seconds": [1e-3] * num_seeds,
            }
        results.append(
            PointResult(number, {"sampling.steps": number + 1}, by_seed, ("--set", f"sampling.steps={number + 1}"))
        )
    axes = ["sampling.steps"]
    seeds = range(0, 100 * num_seeds, 100)
    return SamplingSummary(
        "5eed5eed", "settings", "1a2b3c4d", "digits", 400, "quality/frechet", mode, axes, results, 100, seeds
    )


SHARED = (0.0, 0.5, -0.4, 0.2)
"""What a seed does to every point alike."""


def about(mean, *own):
    return [mean + shared + each for shared, each in zip(SHARED, own or (0.0,) * 4, strict=True)]


def test_points_are_told_apart_by_pairs_though_their_intervals_overlap():
    found = summary(
        (10, about(2.0)), (20, about(1.9, 0.01, -0.01, 0.01, 0.0)), (40, about(1.9, 0.05, -0.05, 0.05, -0.04))
    )
    one, two, three = found.points
    assert one.interval("quality/frechet").high > two.interval("quality/frechet").mean
    assert found.difference(one, two).excludes_zero and found.best is two
    assert found.close_to_best() == [three] and found.frontier == [two, one] and found.rival(three) is two
    columns, rows = rows_of(found)
    told = {row[columns.index("point")]: row[columns.index("told apart")] for row in rows}
    assert [row[0] for row in rows] == [1, 0, 2] and told == {0: None, 1: "yes", 2: "no"}
    assert "It is not told apart from 1 other: 2." in verdict(found)


def test_the_cheapest_point_that_is_not_told_apart_is_named():
    found = summary((10, about(2.0, 0.1, -0.1, 0.1, -0.1)), (40, about(1.99)), mode="min")
    text = " ".join(verdict(found))
    assert "The cheapest of them is point 0, 10 evaluations a sample" in text
    assert found.best.number == 1 and summary((10, about(2.0)), (40, about(1.0)), mode="max").best.number == 0


def test_one_seed_tells_nothing_apart():
    found = summary((10, [2.0]), (20, [1.0]), num_seeds=1)
    assert "One seed of the noise tells nothing of others" in " ".join(verdict(found))
    assert found.best.number == 1 and [each.number for each in found.close_to_best()] == [0]


def test_missing_and_infinite_values_are_neither_best_nor_ranked(tmp_path, blank_pictures):
    found = summary((10, about(2.0)), (20, [math.nan, 1.0, 1.0, 1.0]), None)
    assert found.best.number == 0 and [each.number for each in found.measured] == [0] and not found.is_done
    page = write_sampling_report(found, tmp_path, None)[1].read_text()
    assert "2 of 3 points are measured" in page and "ditlab tune --resume 5eed5eed" in page
    assert verdict(summary(None)) == [
        "No point has a finite value of quality/frechet yet.",
    ]


def test_of_points_that_are_alike_one_in_twenty_sweeps_tells_some_apart_at_most():
    generator = np.random.default_rng(0)
    wrong = 0
    for _ in range(300):
        shared = generator.normal(size=5)
        found = summary(*((10, list(shared + generator.normal(size=5))) for _ in range(4)), num_seeds=5)
        wrong += len(found.close_to_best()) < 3
    assert wrong <= 24  # 5 % and 2.4 standard deviations


def test_the_figure_has_a_bar_a_point_and_rings_the_frontier():
    (panel,) = frontier_figure(summary((10, about(2.0)), (20, about(2.5)), (40, about(1.0))), "About.").panels
    marks, ring = panel.groups
    assert (len(marks.x), ring.texts, len(panel.curves)) == (3, ["2", "0"], 3)
    assert frontier_figure(summary(None), "About.") is None


def test_a_point_whose_entropy_fell_is_named():
    """Held-out text has 5 to 5.2 nats: 4.9 lies below, but by less than a twentieth; 4 lies below by more."""
    found = summary(*[(10, about(2.0))] * 3)
    points = []
    for point, entropy in zip(found.points, (5.15, 4.0, 4.9), strict=True):
        known = {"": entropy, "_high": entropy + 0.05, "_held_out": 5.1, "_held_out_low": 5.0}
        of_text = {f"{ENTROPY}{end}": [value] * 4 for end, value in known.items()}
        points.append(replace(point, by_seed={**point.by_seed, **of_text}))
    text = " ".join(verdict(replace(found, points=points)))
    assert "Entropy fell more than 5% below held-out text's, point 1: text there" in text
