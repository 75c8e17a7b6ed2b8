"""Names of the quality figures, and the sentence that goes with them wherever a person reads them."""

from collections.abc import Iterable

CLASSIFIER_DISTANCES = ("quality/frechet", "quality/kernel", "quality/kernel_error")
"""Frechet and kernel distance on the classifier's features (lower is better), and the latter's standard error."""
ENCODER_DISTANCES = ("quality/frechet_dino", "quality/kernel_dino", "quality/kernel_dino_error")
"""The same on features of the image encoder that the experiment names (DINOv3)."""
NEAREST = ("quality/nearest", "quality/nearest_held_out")
"""How near samples, and held-out images, are to the nearest training image: `nearest` far below `nearest_held_out` is
copying."""

QUALITY_METRICS: tuple[str, ...] = (*CLASSIFIER_DISTANCES, *NEAREST)
"""The figures of every data set of images with classes."""

AGREEMENT = "quality/agreement"
"""Share of samples that show what their captions say, by the classifiers: all columns of classes right at once."""
AGREEMENT_REAL = "quality/agreement_real"
"""The same of held-out images: what perfect samples would get."""
AGREEMENT_CHANCE = "quality/agreement_chance"
"""Product of the largest classes' shares: what samples would get that show nothing of their captions."""


def agreement_of(column: str) -> str:
    """Name of the share of samples whose class of one column is their caption's."""
    return f"{AGREEMENT}_{column}"


def agreement_names(columns: Iterable[str]) -> tuple[str, ...]:
    """The figures of samples that are drawn from captions, where images have these columns of classes."""
    return (AGREEMENT, *map(agreement_of, columns), AGREEMENT_REAL, AGREEMENT_CHANCE)


QUALITY_NOTE = (
    "on features of DiTLab's own classifier of this data set (dino: of the image encoder that the experiment "
    "names): numbers compare runs on the same data, never with published FID"
)
