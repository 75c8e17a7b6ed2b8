"""Shapes of batch fields as an experiment's data have them."""

from denoisers.contract import ANY
from ditlab.data.splits import DataSplits
from ditlab.planning.data_shape import DataShape
from ditlab.spec.experiment import Experiment


def data_shape(experiment: Experiment, data: DataSplits) -> DataShape:
    """Return the shapes of the fields whose sizes the data decide, from the store's columns; no row is read.

    Of several image sizes it is the one of most training samples. Captions count as long as the store pads them,
    though a batch is padded to its own longest. Fields that encoders compute are left out.
    """
    part = data.train.store.parts[int(data.train.bucket_counts.argmax())]
    free = [field.name for field in experiment.batch_fields() if ANY in field.shape]
    shapes = {name: tuple(part.columns[name].shape) for name in free if name in part.columns}
    return DataShape(shapes, frozenset(data.train.columns), data.text)
