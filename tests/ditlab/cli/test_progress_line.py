"""The live progress line of a training."""

import pytest

from ditlab.cli.progress import describe_progress
from ditlab.training.reporting import TrainingProgress


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0:00"), (35, "0:35"), (754, "12:34"), (7509, "2:05:09"), (90_000, "25:00:00"), (1e6, "277:46:40")],
)
def test_time_left_goes_on_past_a_day(seconds, shown):
    line = describe_progress(
        TrainingProgress(5, 10, 1530.2, {"train/loss": 0.51234, "train/lr": 1e-3}, seconds_left=seconds)
    )
    assert line == f"step 5/10 · loss 0.5123 · 1,530 samples/s · {shown} left"
