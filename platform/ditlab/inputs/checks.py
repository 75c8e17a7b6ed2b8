"""Checks that data and encoders fit the model and loss of an experiment, and the shapes of its batch fields."""

from __future__ import annotations

import torch

from denoisers.contract import ANY
from ditlab.data.loading.batches import check_fields
from ditlab.data.mixture_store import JoinedStore
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.inputs.model_inputs import CAPTION, ModelInputs
from ditlab.planning.data_shape import DataShape
from ditlab.spec.encoders import IMAGE, TEXT
from ditlab.spec.experiment import Experiment


def check_inputs(experiment: Experiment, data: DataSplits, home: Home | None = None) -> None:
    """Raise UserError where the data lack fields that no encoder computes, or an encoder does not fit.

    Encoders are downloaded where they are missing, but not opened.
    """
    columns, origin = data.train.columns, data.train.origin
    inputs = ModelInputs.from_experiment(experiment, columns, torch.device("cpu"), home=home)
    missing = {field.name for field in inputs.fields} - {*columns}
    if isinstance(data.train.store, JoinedStore):
        data.train.store.check_columns(missing)
    if missing & {*TEXT}:
        raise UserError(
            f"{origin} holds no features of captions ({', '.join(name for name in TEXT if name in missing)}), and the "
            "model reads them; set encoders.text to a language model's folder or name, import the data with "
            "`ditlab data import images --encode-text`, or set model.text_encoder=learned."
        )
    if CAPTION.name in missing and inputs.encode is not None:
        raise UserError(
            f"{origin} holds neither features of captions nor captions for encoders.text={experiment.encoders.text} to "
            "read; import the data with `ditlab data import images`, or change data."
        )
    if IMAGE in missing:
        raise UserError(
            f"{origin} holds no features of images ({IMAGE}), and the loss reads them; set encoders.image to a DINOv3 "
            "network's folder or name, import the data with `ditlab data import images --encode-images`, or set "
            "objective.weights.alignment=0."
        )
    check_fields(data.train, inputs.fields, settable=True)
    for part in data.train.store.parts:
        shapes = {field.name: part.columns[field.name].shape for field in inputs.fields}
        try:
            experiment.objective.check_shapes(experiment.model, shapes)
        except ValueError as error:
            raise UserError(f"{origin} does not fit: {error}") from error
    inputs.check_encoders()


def data_shape(experiment: Experiment, data: DataSplits) -> DataShape:
    """Return the shapes of the fields whose sizes the data decide, from the store's columns; no row is read.

    Of several image sizes it is the one of most training samples. Captions count as long as the store pads them,
    though a batch is padded to its own longest. Fields that encoders compute are left out.
    """
    part = data.train.store.parts[int(data.train.bucket_counts.argmax())]
    free = [field.name for field in experiment.batch_fields() if ANY in field.shape]
    shapes = {name: tuple(part.columns[name].shape) for name in free if name in part.columns}
    return DataShape(shapes, frozenset(data.train.columns), data.text)
