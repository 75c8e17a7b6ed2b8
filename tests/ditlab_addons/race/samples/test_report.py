"""Reports of sweeps over samples: the sweep's page, with a picture and a table of quality over
cost.
"""

import math

from ditlab.quality.text import ENTROPY
from ditlab.reports.sweep_records import (
    AxisInfo,
    SweepSummary,
    Trial,
    best,
    configurations_of,
    pareto,
)
from ditlab_addons.race.samples.report import cost_table, with_cost, write_sampling_report

METRIC = "quality/frechet"


def summary(*configurations, mode="min", **more):
    """Configurations of (network evaluations a sample, values by seed); None for one that is not
    measured.
    """
    draws = []
    for number, configuration in enumerate(configurations):
        for seed in range(4):
            metrics = {}
            if configuration is not None and math.isfinite(configuration[1][seed]):
                evaluations, values = configuration
                metrics = {METRIC: values[seed], "cost/evaluations": evaluations}
                metrics["cost/seconds"] = 1e-3
                metrics |= {name: values[number] for name, values in more.items()}
            status = "waiting" if configuration is None else "finished"
            values = {"sampling.steps": number + 1}
            facts = {"configuration": number, "seed": seed}
            draws.append(
                Trial(len(draws), "1a2b3c4d", values, status, 400, 400, 1.0, metrics, **facts)
            )
    return SweepSummary(
        "5eed5eed",
        "settings",
        (METRIC,),
        (mode,),
        [AxisInfo("sampling.steps", "linear")],
        configurations_of(draws, (METRIC,)),
        "grid",
        "none",
        1.0,
        len(draws),
        "samples of run 1a2b3c4d",
        4,
    )


SHARED = (0.0, 0.5, -0.4, 0.2)
"""What a seed does to every configuration alike."""


def about(mean, *own):
    return [mean + shared + each for shared, each in zip(SHARED, own or (0.0,) * 4, strict=True)]


def page(tmp_path, found):
    options = {
        number: ["--set", f"sampling.steps={number + 1}"] for number in range(len(found.trials))
    }
    files = write_sampling_report(found, tmp_path, None, "1a2b3c4d", options)
    return files[1].read_text(), [file.name for file in files]


def test_configurations_are_compared_by_pairs_and_by_cost(tmp_path, blank_pictures):
    found = summary(
        (10, about(2.0)),
        (20, about(1.9, 0.01, -0.01, 0.01, 0.0)),
        (40, about(1.95, 0.05, -0.05, 0.05, -0.04)),
    )
    assert best(found).number == 1
    assert [each.number for each in pareto(with_cost(found))] == [1, 0]
    assert [row[0] for row in cost_table(found).rows] == [1, 0, 2]
    text, names = page(tmp_path, found)
    assert "frontier.png" in names and "ditlab sample 1a2b3c4d --set sampling.steps=2" in text
    assert best(summary((10, about(2.0)), (40, about(1.0)), mode="max")).number == 0


def test_missing_and_infinite_values_are_not_best(tmp_path, blank_pictures):
    found = summary((10, about(2.0)), (20, [math.nan] * 4), None)
    assert best(found).number == 0 and [row[0] for row in cost_table(found).rows] == [0]
    text, _ = page(tmp_path, found)
    assert "8 of 12 trials have ended" in text and "ditlab tune --resume 5eed5eed" in text
    assert "nothing can be ranked" in page(tmp_path / "none", summary(None))[0]


def test_a_configuration_whose_entropy_fell_is_named(tmp_path, blank_pictures):
    """Held-out text has 5 to 5.2 nats: 4.9 lies below, but by less than a twentieth; 4 lies below
    by more.
    """
    entropies = (5.15, 4.0, 4.9)
    of_text = {ENTROPY: entropies, f"{ENTROPY}_high": [each + 0.05 for each in entropies]}
    of_text |= {f"{ENTROPY}_held_out": [5.1] * 3, f"{ENTROPY}_held_out_low": [5.0] * 3}
    text, _ = page(tmp_path, summary(*[(10, about(2.0))] * 3, **of_text))
    assert "few samples carry" not in text.lower()
    assert "Entropy fell more than 5% below held-out text's with 1: text there" in text


def test_configurations_are_named_whose_figures_few_samples_carry(tmp_path, blank_pictures):
    ends = {"quality/kid": [1.0] * 3, "quality/kid_low": [0.5] * 3, "quality/kid_high": [2.0] * 3}
    ends["quality/kid_df"] = [300.0, 4.0, 20.0]
    text, _ = page(tmp_path, summary(*[(10, about(2.0))] * 3, **ends))
    assert "carry the variance of figures of 1 (fewer than 20 degrees of freedom)" in text
