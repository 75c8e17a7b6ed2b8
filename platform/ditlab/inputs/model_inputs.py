"""Inputs of a model and its loss: fields read from a store, and features computed by frozen
encoders.

Captions are padded to the longest of a batch. Tensors that an objective computes on the host are
made there, where reading a value waits for nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ditlab.data.images.captions import decode_captions
from ditlab.data.loading.batches import to_device
from ditlab.data.loading.transfer import send
from ditlab.data.splits import DataSplits
from ditlab.data.stores.manifest import Autoencoder, Columns
from ditlab.encoders.autoencoder import FrozenAutoencoder, check_installed
from ditlab.encoders.features import FeatureExtractor
from ditlab.home import Home
from ditlab.inputs.meta_step import DataShape
from ditlab.inputs.noise import KeyedNoise
from ditlab.inputs.stored_fields import (
    CAPTION,
    check_stored,
    computed_fields,
    posterior_field,
    with_captions,
)
from ditlab.progress import ignore
from ditlab.spec.encoders import IMAGE, LATENTS, TEXT
from ditlab.spec.experiment import Experiment
from ditlab_models.contract import (
    ANY,
    BatchField,
    CountingObjective,
    NoiseSource,
    PreparingObjective,
    Samples,
)

MULTIPLE = 16
"""Padded lengths are multiples of this, or the store's: half-precision attention is fast at
multiples of 8, and every new length costs a compilation or a search for kernels."""
PADDED = {"caption": ("caption",), "text_mask": ("text", "text_mask")}
"""Fields that are padded together, by the field that is 0 or false behind the end."""
CPU = torch.device("cpu")

EncodeTexts = Callable[[Sequence[str]], Mapping[str, Tensor]]


class ModelInputs:
    """Fields that a model and its loss take of a store's rows, on a device.

    Stored columns are read; with an autoencoder the field `image` is drawn of the stored posterior.
    Text and image features that are not stored are computed by the encoders that are named for
    them, from the caption and the image; an encoder is opened at the first use, or by `open`.
    """

    def __init__(
        self,
        fields: Sequence[BatchField],
        columns: Collection[str],
        device: torch.device,
        extractor: FeatureExtractor | None = None,
        autoencoder: FrozenAutoencoder | None = None,
    ) -> None:
        """Decide which fields are read. `fields`: all of model and loss; `columns`: those of the
        store, by name.
        """
        self.device = device
        self._extractor = extractor
        self._autoencoder = autoencoder
        if autoencoder is not None:
            fields = [
                posterior_field(field) if field.name == "image" else field for field in fields
            ]
        self._fields = tuple(fields)
        self._computed = set[str]()
        if extractor is not None:
            self._computed = computed_fields(extractor.spec, fields, columns)
        self._left_out = frozenset[str]()

    @classmethod
    def from_experiment(
        cls,
        experiment: Experiment,
        columns: Collection[str],
        device: torch.device,
        warn: Callable[[str], None] = ignore,
        home: Home | None = None,
    ) -> ModelInputs:
        """Return the inputs of an experiment's model and loss. `warn` gets a message when captions
        are cut. Encoders are downloaded below `home` (None: DITLAB_HOME)."""
        fields = experiment.batch_fields()
        extractor = None
        autoencoder = None
        if experiment.encoders.content():
            downloads = home.caches / "encoders" if home else None
            extractor = FeatureExtractor(experiment.encoders, fields, device, downloads, warn)
        place = experiment.encoders.autoencoder
        if place:
            autoencoder = FrozenAutoencoder(place, device, home=home)
        return cls(fields, columns, device, extractor, autoencoder)

    @property
    def _encoded(self) -> dict[str, BatchField]:
        return {
            each.name: each for each in self._fields if each.name in self._computed - self._left_out
        }

    @property
    def _read(self) -> tuple[BatchField, ...]:
        return tuple(
            each for each in self._fields if each.name not in self._computed | self._left_out
        )

    @property
    def fields(self) -> tuple[BatchField, ...]:
        """Fields that are read from the store: those of model and loss that it has, and those that
        encoders read.
        """
        return with_captions(self._read, self._encoded)

    @property
    def names(self) -> set[str]:
        """Names of the fields of a prepared batch."""
        drawn = {"image"} if self._draws_latents else set()
        return {*self._encoded, *(field.name for field in self._read), *drawn}

    @property
    def _encoders(self) -> FeatureExtractor:
        assert self._extractor is not None, "fields are computed, of named encoders"
        return self._extractor

    @property
    def _draws_latents(self) -> bool:
        return any(field.name == LATENTS for field in self._read)

    @property
    def names_read(self) -> tuple[str, ...]:
        """Names of the columns that a prepared batch takes from the store as they are."""
        return tuple(field.name for field in self._read)

    @property
    def encode(self) -> EncodeTexts | None:
        """Function that computes the text fields of captions; None without an encoder for a model
        that reads them.
        """
        if self._extractor is not None and self._extractor.has_text:
            return self._encode
        return None

    def decoding(self, sampler: Any) -> Any:
        """Return a sampler whose samples are pictures: with an autoencoder, one that decodes what
        it draws.
        """
        if self._autoencoder is None:
            return sampler
        return DecodingSampler(sampler, self._autoencoder)

    def only(self, names: Collection[str]) -> ModelInputs:
        """Return these inputs for a few fields, with the same encoders. `image` is read where its
        features are.
        """
        few = copy(self)
        needed = {*names}
        if IMAGE in needed & self._encoded.keys():
            needed.add("image")
        if "image" in needed and self._draws_latents:
            needed.add(LATENTS)
        few._left_out = self._left_out | {
            field.name for field in self._fields if field.name not in needed
        }
        return few

    def open(self) -> None:
        """Open the encoders that `prepare_batch` will use. Raises UserError where that fails."""
        if self._encoded.keys() & {*TEXT}:
            _ = self._encoders.text
        if IMAGE in self._encoded:
            _ = self._encoders.image

    def check_encoders(self) -> None:
        """Raise UserError for an encoder that `open` could not open, as far as its files without
        weights show.
        """
        if self._extractor is not None:
            self._extractor.check(text=self._extractor.has_text, image=IMAGE in self._encoded)

    def autoencoder_sha256(self) -> Callable[[], str] | None:
        """Return what gives the SHA-256 of the autoencoder's weights; None without one. Raises
        UserError where nothing here could decode its latents."""
        autoencoder = self._autoencoder
        if autoencoder is None:
            return None
        check_installed()
        return lambda: autoencoder.sha256

    def retire(self, names: Collection[str]) -> bool:
        """Prepare batches without exactly these fields from now on. Return True if that is a
        change. An encoder of images without a remaining use is freed. `image` does not retire."""
        if self._left_out == frozenset(names):
            return False
        self._left_out = frozenset(names)
        if IMAGE in self._computed & self._left_out:
            self._encoders.free_image()
            gc.collect()  # networks hold references in circles
            torch.cuda.empty_cache()  # nothing, without a GPU in use
        return True

    def prepare_batch(
        self,
        raw: Mapping[str, Tensor],
        columns: Columns,
        device: torch.device | None = None,
        rows: slice | None = None,
        moved: Mapping[str, Tensor] | None = None,
        noise: NoiseSource | None = None,
    ) -> dict[str, Tensor]:
        """Return rows of `fields`, (num, ...) each in the store's dtype, as model and loss take
        them.

        `columns` are the store's; `device` None: that of the encoders; `rows` None: all. Captions
        are padded to the longest of all rows, whichever are taken. `moved`: columns of the same
        rows that are on the device already. `noise`: the random numbers of the rows that are taken,
        on the device, of which latents are drawn.
        """
        raw = cut_padding(raw, self.fields)
        stored = dict(raw)
        for name, values in (moved or {}).items():
            stored[name] = values
            if values.shape != raw[name].shape:
                # Cut there: a cut column of the host is not contiguous, and the host would wait for
                # its copy.
                stored[name] = values[:, : raw[name].shape[1]]
        if rows is not None:
            raw = {name: values[rows] for name, values in raw.items()}
            stored = {name: values[rows] for name, values in stored.items()}
        device = device or self.device
        batch = to_device(stored, self._read, columns, device)
        if self._draws_latents:
            made_by = columns[LATENTS].autoencoder
            assert noise is not None and made_by is not None, (
                "latents are drawn, of a checked column"
            )
            batch["image"] = draw_latents(batch[LATENTS], made_by, noise)
        for name, values in self._features(raw, batch).items():
            batch[name] = values.to(device, getattr(torch, self._encoded[name].dtype))
        return batch

    def _features(
        self, raw: Mapping[str, Tensor], batch: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the fields that the encoders compute of a batch."""
        features: dict[str, Tensor] = {}
        if self._encoded.keys() & {*TEXT}:
            features.update(self._encode(decode_captions(raw[CAPTION.name].numpy())))
        if IMAGE in self._encoded:
            features[IMAGE] = self._encoders.image.encode(batch["image"], raw["image"])
        return {name: features[name] for name in self._encoded}

    def _encode(self, texts: Sequence[str]) -> dict[str, Tensor]:
        features = self._encoders.encode_texts(texts)
        for name in features.keys() - {"text_mask"}:
            features[name] = features[name].float()
        return features


def cut_padding(raw: Mapping[str, Tensor], fields: Sequence[BatchField]) -> dict[str, Tensor]:
    """Return rows as they are stored, (num, length, ...), captions and their features without
    padding common to all.
    """
    free = {field.name for field in fields if field.shape[:1] == (ANY,)} & raw.keys()
    cut = dict(raw)
    for mark, group in PADDED.items():
        if free.issuperset(group):
            places = torch.nonzero((raw[mark] != 0).any(dim=0))
            longest = int(places[-1]) + 1 if len(places) else 1
            length = -(-longest // MULTIPLE) * MULTIPLE
            cut |= {name: raw[name][:, :length] for name in group}
    return cut


def prepare_on_host(
    objective: Any,
    raw: Mapping[str, Tensor],
    columns: Columns,
    inputs: ModelInputs,
    noise: KeyedNoise,
    rows: slice | None = None,
) -> dict[str, Tensor]:
    """Return what an objective prepares of rows in the store's dtype, on the noise's device; {} if
    it prepares nothing. `rows` None: all of `raw`. The numbers that it draws are those of a CPU,
    whatever the device."""
    if not isinstance(objective, PreparingObjective):
        return {}
    prepared = _prepared(objective, raw, columns, inputs, noise, rows)
    return {name: send(values, noise.device) for name, values in prepared.items()}


def _prepared(
    objective: PreparingObjective,
    raw: Mapping[str, Tensor],
    columns: Columns,
    inputs: ModelInputs,
    noise: KeyedNoise,
    rows: slice | None,
) -> dict[str, Tensor]:
    """Return what an objective prepares, on the host."""
    batch = inputs.only(objective.prepared_from).prepare_batch(raw, columns, CPU, rows)
    return objective.prepare(batch, replace(noise, device=CPU))


def counts_on_host(
    objective: Any,
    raw: Mapping[str, Tensor],
    columns: Columns,
    inputs: ModelInputs,
    noise: KeyedNoise,
    rows: slice | None = None,
) -> dict[str, Tensor]:
    """Return the counts of rows by which an objective divides its loss, () in float64 each, on the
    host; {} if it counts nothing. See `CountingObjective`.
    """
    if not isinstance(objective, CountingObjective) or not objective.counted:
        return {}
    prepared = _prepared(objective, raw, columns, inputs, noise, rows)
    return {name: prepared[name] for name in objective.counted}


def check_inputs(experiment: Experiment, data: DataSplits, home: Home | None = None) -> None:
    """Raise UserError where the data lack fields that no encoder computes, or an encoder does not
    fit. Encoders are downloaded where they are missing, but not opened."""
    inputs = ModelInputs.from_experiment(experiment, data.train.columns, CPU, home=home)
    check_stored(experiment, data, inputs.autoencoder_sha256())
    inputs.check_encoders()


def data_shape(experiment: Experiment, data: DataSplits) -> DataShape:
    """Return the shapes of the fields whose sizes the data decide, from the store's columns; no row
    is read. Of several image sizes it is the one of most training samples; captions count as long
    as the store pads them."""
    part = data.train.store.parts[int(data.train.bucket_counts.argmax())]
    free = [field.name for field in experiment.batch_fields() if ANY in field.shape]
    shapes = {name: tuple(part.columns[name].shape) for name in free if name in part.columns}
    return DataShape(shapes, frozenset(data.train.columns), data.text)


DRAW = "latents"
"""Name of the random numbers of the posterior."""


def draw_latents(posterior: Tensor, autoencoder: Autoencoder, noise: NoiseSource) -> Tensor:
    """Draw z = (mean + std eps - shift) scale of posteriors (num, 2 channels, h, w): (num,
    channels, h, w).
    """
    mean, log_variance = posterior.chunk(2, dim=1)
    z = mean + (0.5 * log_variance).exp() * noise.normal(DRAW, mean.shape)
    return (z - autoencoder.shift_factor) * autoencoder.scaling_factor


@dataclass
class DecodingSampler:
    """Sampler of latents (`ditlab_models.contract.Sampler`) whose samples, and frames, are decoded
    to pictures.
    """

    _sampler: Any
    _autoencoder: FrozenAutoencoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def sample(
        self,
        network: nn.Module,
        conditions: Mapping[str, Tensor],
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
        noise: Tensor | None = None,
    ) -> Samples:
        """Draw as the sampler does, `noise` in the shape of latents, and decode: values (num, 3,
        height, width).
        """
        drawn: Samples = self._sampler.sample(
            network, conditions, num, generator, trajectory, noise
        )
        frames = drawn.trajectory
        if frames is not None:
            frames = self._decoded(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        return replace(drawn, values=self._decoded(drawn.values), trajectory=frames)

    def _decoded(self, latents: Tensor) -> Tensor:
        return self._autoencoder.decode(latents).to(latents.device)
