"""Names of the quality figures, and the sentence that goes with them wherever a person reads them."""

QUALITY_METRICS: tuple[str, ...] = (
    "quality/frechet",
    "quality/kernel",
    "quality/kernel_error",
    "quality/nearest",
    "quality/nearest_held_out",
)
"""Frechet and kernel distance (lower is better) with the latter's standard error; how near samples, and held-out
images, are to the nearest training image: `nearest` far below `nearest_held_out` is copying."""

QUALITY_NOTE = (
    "on features of DiTLab's own classifier of this data set: numbers compare runs on the same data, never with "
    "published FID"
)
