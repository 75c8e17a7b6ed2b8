"""The published region network, whole: one optimiser step through the platform, on generated
windows of its size.
"""

from pathlib import Path

import pytest

SPEC = Path(__file__).parents[3] / "experiments/region/get.yaml"
ONE_STEP = (
    "data={kind: motifs, motifs: 282, regions: 900, chromosomes: 3, peaks: 1800}",
    "batch={size: 2, micro: 1}",
    "training={steps: 1, epochs: null}",
    "schedule.warmup_epochs=0.0",
    "evaluation={every: null, samples: 0}",
    "checkpoint.every=null",
)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_step_at_900_regions(ditlab):
    overrides = [part for assignment in ONE_STEP for part in ("--set", assignment)]
    said = ditlab("train", str(SPEC), *overrides, "--json").ok()
    assert said.json["status"] == "finished" and said.json["step"] == 1
    # sparse features in [0, 1] under a head of small random weights: the loss starts below one
    assert 0 < said.json["metrics"]["train/masked"] < 1
