"""Sample quality: distances to the run's own real images, copying, and whether samples show what captions say.

`quality` measures generated images, `quality_applies` says whether an experiment has what that takes, `check_quality`
refuses one that asks for it in vain, `quality_names` says which figures there will be. Not Inception FID: numbers
compare runs on the same data alone.
"""

from ditlab.quality.eligibility import check_quality, quality_applies, quality_names
from ditlab.quality.measure import quality
from ditlab.quality.names import QUALITY_METRICS, QUALITY_NOTE

__all__ = ["QUALITY_METRICS", "QUALITY_NOTE", "check_quality", "quality", "quality_applies", "quality_names"]
