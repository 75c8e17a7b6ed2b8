"""Sample quality: distances to the run's own real images, copying, and whether samples show what captions say.

`quality` measures generated images, `quality_applies` says whether an experiment has what that takes, `check_quality`
refuses one that asks for it in vain, `quality_names` says which figures there will be. Not Inception FID: numbers
compare runs on the same data alone.
"""

from ditlab.training.quality.applies import check_quality, quality_applies, quality_names
from ditlab.training.quality.measure import quality
from ditlab.training.quality.names import QUALITY_METRICS, QUALITY_NOTE

__all__ = ["QUALITY_METRICS", "QUALITY_NOTE", "check_quality", "quality", "quality_applies", "quality_names"]
