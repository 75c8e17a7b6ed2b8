"""The scale of guidance over time: schedules, least scale, interval."""

import math

import pytest

from ditlab_models.pixelhdm.spec import PixelHDMSamplingSpec


def guidance(scale, schedule="constant", min_scale=0.0, **fields):
    return PixelHDMSamplingSpec(
        guidance=scale, guidance_schedule=schedule, min_scale=min_scale, **fields
    )


@pytest.mark.parametrize(
    ("schedule", "at_a_quarter", "at_a_half"),
    [
        ("constant", 8.0, 8.0),
        ("linear", 6.0, 4.0),
        ("cosine", 4 * (1 + math.cos(math.pi / 4)), 4.0),
        ("quadratic", 4.5, 2.0),
    ],
)
def test_schedules(schedule, at_a_quarter, at_a_half):
    spec = guidance(8.0, schedule)
    assert spec.scale_at(0.25) == pytest.approx(at_a_quarter)
    assert spec.scale_at(0.5) == pytest.approx(at_a_half)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "quadratic"])
def test_a_schedule_goes_no_lower_than_its_least_scale(schedule):
    assert guidance(8.0, schedule).scale_at(0.95) < 1
    assert guidance(8.0, schedule, min_scale=1.0).scale_at(0.95) == 1
    assert guidance(8.0, schedule, min_scale=1.0).scale_at(0.1) == guidance(8.0, schedule).scale_at(
        0.1
    )


def test_outside_its_interval_the_prediction_is_the_conditional_one():
    spec = guidance(8.0, min_scale=3.0, interval=(0.2, 0.6))
    assert [spec.scale_at(t) for t in (0.1, 0.2, 0.3, 0.5, 0.6, 0.7)] == [1, 1, 8, 8, 1, 1]


def test_plain_guidance_is_one_at_all_times():
    assert guidance(1.0).is_plain and guidance(1.0, "linear", min_scale=1.0).is_plain
    assert not guidance(1.0, "linear").is_plain and not guidance(1.5).is_plain
