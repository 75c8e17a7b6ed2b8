"""Fields that a model and its loss take of stored columns, and checks that a store has them.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ditlab.data.loading.field_checks import check_fields
from ditlab.data.mixture_store import JoinedStore
from ditlab.data.splits import DataSplits, absent_data, open_data
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.progress import ignore
from ditlab.spec.encoders import IMAGE, LATENTS, TEXT, Encoders
from ditlab.spec.experiment import Experiment
from ditlab_models.contract import ANY, BatchField

CAPTION = BatchField(
    "caption", (ANY,), "int64", unit="byte of UTF-8, 0 behind the end", num_classes=256
)
"""Field that an encoder of captions reads."""


def posterior_field(image: BatchField) -> BatchField:
    """Return the field of the posterior that a model's field `image` is drawn of: twice its
    channels.
    """
    channels, height, width = image.shape
    return BatchField(
        LATENTS, (2 * channels, height, width), "float32", unit="means, then log-variances"
    )


def computed_fields(
    encoders: Encoders, fields: Sequence[BatchField], columns: Collection[str]
) -> set[str]:
    """Return the names of the fields that the encoders compute of a store with these columns."""
    names = {field.name for field in fields}
    missing = names - {*columns}
    computed = set[str]()
    if encoders.text and TEXT[0] in names and missing & {*TEXT}:
        computed |= names & {*TEXT}
    if encoders.image and IMAGE in missing:
        computed.add(IMAGE)
    return computed


def with_captions(read: Sequence[BatchField], computed: Collection[str]) -> tuple[BatchField, ...]:
    """Return the fields that are read of a store, with that of captions where features of them are
    computed.
    """
    encodes_captions = any(name in computed for name in TEXT)
    if encodes_captions and CAPTION.name not in [field.name for field in read]:
        return (*read, CAPTION)
    return tuple(read)


def check_store(experiment: Experiment, home: Home) -> str:
    """Check that the data of an experiment, where they are on this machine, have what model and
    loss take; return in a clause why they were not looked at, empty where they were.

    Reads no rows, writes and fetches nothing, and opens no encoder. Raises UserError as a training
    does.
    """
    absent = absent_data(experiment.data, home)
    if not absent:
        check_stored(experiment, open_data(experiment.data, home, verify=False, notify=ignore))
    return absent


def check_stored(
    experiment: Experiment, data: DataSplits, weights_sha256: Callable[[], str] | None = None
) -> None:
    """Raise UserError where the data lack fields that no encoder computes, or hold others than
    model and loss take.

    `weights_sha256` gives the SHA-256 of the autoencoder's weights; None: those of the latents are
    not compared.
    """
    columns = data.train.columns
    origin = data.train.origin
    encoders = experiment.encoders
    fields = experiment.batch_fields()
    latents = None
    if encoders.autoencoder:
        latents = next((field for field in fields if field.name == "image"), None)
    if latents is not None:
        fields = tuple(posterior_field(field) if field is latents else field for field in fields)
    computed = computed_fields(encoders, fields, columns)
    read = with_captions([field for field in fields if field.name not in computed], computed)
    missing = {field.name for field in read} - {*columns}
    if isinstance(data.train.store, JoinedStore):
        data.train.store.check_columns(missing)
    if latents is not None:
        _check_latents(data, latents, str(encoders.autoencoder), weights_sha256)
    _check_encoded(origin, str(encoders.text), missing, computed)
    check_fields(data.train, read, settable=True)
    for part in data.train.store.parts:
        shapes = {field.name: part.columns[field.name].shape for field in read}
        try:
            experiment.objective.check_shapes(experiment.model, shapes)
        except ValueError as error:
            raise UserError(f"{origin} does not fit: {error}") from error


def _check_encoded(origin: str, text: str, missing: set[str], computed: set[str]) -> None:
    """Raise UserError for features that are not stored, and that no encoder computes.

    `missing`: fields that are read and not there; `computed`: those that encoders compute.
    """
    features = [name for name in TEXT if name in missing]
    if features:
        raise UserError(
            f"{origin} holds no features of captions ({', '.join(features)}), and the model "
            "reads them; set encoders.text to a language model's folder or name, import the "
            "data with `ditlab data import images --encode-text`, or set "
            "model.text_encoder=learned."
        )
    if CAPTION.name in missing and computed & {*TEXT}:
        raise UserError(
            f"{origin} holds neither features of captions nor captions for encoders.text={text} to "
            "read; import the data with `ditlab data import images`, or change data."
        )
    if IMAGE in missing:
        raise UserError(
            f"{origin} holds no features of images ({IMAGE}), and the loss reads them; set "
            "encoders.image to a DINOv3 network's folder or name, import the data with `ditlab "
            "data import images --encode-images`, or set objective.weights.alignment=0."
        )


def _check_latents(
    data: DataSplits, image: BatchField, place: str, weights_sha256: Callable[[], str] | None
) -> None:
    """Raise UserError for data without latents, of another autoencoder, or of other sizes than the
    model's.
    """
    name = f"encoders.autoencoder={place}"
    origin = data.train.origin
    column = data.train.columns.get(LATENTS)
    if column is None or column.autoencoder is None:
        raise UserError(
            f"{origin} holds no latents for {name}; run `ditlab data encode STORE --autoencoder "
            f"{place}` and set data.path to the new store, or set encoders.autoencoder to null."
        )
    made = column.autoencoder
    sha256 = made.sha256
    if weights_sha256 is not None:
        sha256 = weights_sha256()
    if made.sha256 != sha256:
        raise UserError(
            f"{origin} holds latents of {made.source} (sha256 {made.sha256[:12]}), and {name} has "
            f"{sha256[:12]}; name that one, or run `ditlab data encode STORE --autoencoder "
            f"{place}` on the store that it was made from."
        )
    expected = posterior_field(image).shape
    if tuple(column.shape) != expected:
        height, width = column.shape[1:]
        channels = column.shape[0] // 2
        size = "several sizes" if ANY in (height, width) else f"{height} x {width}"
        remedy = f"set model.channels to {channels} and model.image_size to {height}"
        if height != width or height == ANY:
            remedy = "import the images with --sizes square"
        raise UserError(
            f"{origin} holds latents of {channels} channels and {size}, but the model takes "
            f"{image.shape[0]} and {image.shape[1]} x {image.shape[2]}; {remedy}."
        )
