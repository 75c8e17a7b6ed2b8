"""Sizes of images by aspect ratio."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ditlab.data.images.decoding import AspectBuckets, ImageSize

AT_256 = AspectBuckets(resolution=256, step=64, min_side=64, max_side=512)


def test_sides_are_steps_and_areas_at_most_the_resolutions():
    assert len(AT_256.sizes) == len(set(AT_256.sizes)) == 34  # by height: 8, 8, 5, 4, 3, 2, 2, 2
    assert {(256, 256), (128, 512), (512, 128), (192, 320), (64, 64)} < set(AT_256.sizes)
    for height, width in AT_256.sizes:
        assert (
            height % 64 == width % 64 == 0
            and min(height, width) >= 64
            and max(height, width) <= 512
        )
        assert height * width <= 256**2
    assert {(width, height) for height, width in AT_256.sizes} == set(AT_256.sizes)


def test_the_shortest_side_is_rounded_up_to_a_step_and_may_leave_nothing():
    assert min(AspectBuckets(256, 64, 100, 512).sizes) == (128, 128)
    assert AspectBuckets(32, 64, 64, 512).sizes == ()


@pytest.mark.parametrize(
    ("image", "size"),
    [
        ((1000, 1000), (256, 256)),
        ((255, 255), (192, 192)),
        ((600, 900), (192, 320)),
        ((130, 5000), (128, 512)),
        ((63, 10_000), None),
        ((10_000, 63), None),
    ],
)
def test_images_get_the_size_that_suits_them(image, size):
    assert AT_256.choose(*image) == size


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_nothing_is_enlarged_and_no_size_scores_less(height, width):
    chosen = AT_256.choose(height, width)
    fitting = [size for size in AT_256.sizes if size.height <= height and size.width <= width]
    if chosen is None:
        assert not fitting and min(height, width) < 64
        return
    assert chosen in fitting
    image = ImageSize(height, width)
    least = min(AT_256.score(image, size) for size in fitting)
    assert math.isclose(AT_256.score(image, chosen), least, abs_tol=1e-11)


@given(st.integers(64, 3000), st.integers(64, 3000))
def test_the_crop_in_the_score_is_the_share_that_falls_off(height, width):
    chosen = AT_256.choose(height, width)
    assert chosen is not None
    scale = max(chosen.height / height, chosen.width / width)
    kept, area = (
        chosen.height * chosen.width / (height * width * scale**2),
        chosen.height * chosen.width / 256**2,
    )
    score = AT_256.score(ImageSize(height, width), chosen)
    assert score == pytest.approx(0.7 * (1 - kept) + 0.3 * (1 - area), abs=1e-9)
