"""Sample quality: distances to the run's own real images, copying, and agreement with captions.

`quality` measures generated images, `quality_ineligibility` returns the reason why an experiment's
samples cannot be measured, `check_quality` raises an error for one that requests it in vain,
`quality_names` lists the metrics. FID and others of the field need the networks that
`evaluation.features` names.
"""

from ditlab.quality.eligibility import QUALITY_METRICS, QUALITY_NOTE, quality_ineligibility
from ditlab.quality.sample_quality import quality
from ditlab.quality.text import check_quality, quality_names

__all__ = [
    "QUALITY_METRICS",
    "QUALITY_NOTE",
    "check_quality",
    "quality",
    "quality_ineligibility",
    "quality_names",
]
