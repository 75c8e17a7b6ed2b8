"""Names of the quality metrics, and the note shown wherever people read them."""

from collections.abc import Iterable

CLASSIFIER_DISTANCES = ("quality/frechet", "quality/kernel", "quality/kernel_error")
"""Frechet and kernel distance on the classifier's features (lower is better), and the latter's standard error."""
ENCODER_DISTANCES = ("quality/frechet_dino", "quality/kernel_dino", "quality/kernel_dino_error")
"""The same on features of the image encoder that the experiment names (DINOv3)."""
NEAREST = ("quality/nearest", "quality/nearest_held_out")
"""Distance of samples, and of held-out images, to the nearest training image: `nearest` far below `nearest_held_out`
is copying."""

QUALITY_METRICS: tuple[str, ...] = (*CLASSIFIER_DISTANCES, *NEAREST)
"""Metrics of every data set of images with classes."""

AGREEMENT = "quality/agreement"
"""Share of samples that show what their captions say, by the classifiers: all columns of classes right at once."""
AGREEMENT_REAL = "quality/agreement_real"
"""Value of held-out images: that of perfect samples."""
AGREEMENT_CHANCE = "quality/agreement_chance"
"""Product of the largest classes' shares: the value of samples that show nothing of their captions."""


def agreement_of(column: str) -> str:
    """Return the name of the share of samples whose class of one column is their caption's."""
    return f"{AGREEMENT}_{column}"


def agreement_names(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the agreement metrics, for images with these columns of classes."""
    return (AGREEMENT, *map(agreement_of, columns), AGREEMENT_REAL, AGREEMENT_CHANCE)


QUALITY_NOTE = (
    "on features of DiTLab's own classifier of this data set (dino: of the image encoder that the experiment "
    "names): numbers compare runs on the same data, never with published FID"
)
