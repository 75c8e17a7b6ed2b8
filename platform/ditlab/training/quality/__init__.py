"""Sample quality without downloads: distances on features of a classifier trained on the run's own real images.

`quality` measures generated images, `quality_applies` says whether a data set has what that takes, `check_quality`
refuses an experiment that asks for it in vain. Not Inception FID: numbers compare runs on the same data alone.
"""

from ditlab.training.quality.applies import check_quality, quality_applies
from ditlab.training.quality.measure import quality
from ditlab.training.quality.names import QUALITY_METRICS, QUALITY_NOTE

__all__ = ["QUALITY_METRICS", "QUALITY_NOTE", "check_quality", "quality", "quality_applies"]
