"""From the rows of a store to what a model takes: stored fields read, missing features made by frozen encoders."""

import gc
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from denoisers.contract import ANY, BatchField
from ditlab.data.images.captions import decode_captions
from ditlab.data.loading.field_checks import check_fields, to_device
from ditlab.data.splits import DataSplits
from ditlab.data.stores.manifest import Column
from ditlab.encoders.extractor import FeatureMaker, ImageWish, TextWish
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.spec.encoders import IMAGE, TEXT
from ditlab.spec.experiment import Experiment

CAPTION = BatchField("caption", (ANY,), "int64", unit="byte of UTF-8, 0 behind the end", num_classes=256)
"""What an encoder of captions reads."""

Encode = Callable[[Sequence[str]], Mapping[str, Tensor]]


def ignore(message: str) -> None:
    """Hears nothing."""


class ModelInputs:
    """What a model and its loss take of a store's rows, on a device.

    A field whose column is stored is read. Where text or image features are not, and an encoder is named for them, they
    are made of the caption and the image; the encoder is opened at the first use, or by `open`.
    """

    def __init__(
        self,
        wanted: Sequence[BatchField],
        columns: Collection[str],
        device: torch.device,
        maker: FeatureMaker | None = None,
    ) -> None:
        """`wanted`: all fields of model and loss; `columns`: those of the store, by name."""
        self.device, self._maker = device, maker
        names = {field.name for field in wanted}
        makes_text = maker is not None and maker.makes_text and names & {*TEXT} - {*columns}
        makes_image = maker is not None and maker.makes_image and names & {IMAGE} - {*columns}
        makes = ({*TEXT} if makes_text else set()) | ({IMAGE} if makes_image else set())
        self._all_made = {field.name: field for field in wanted if field.name in makes}
        self._all_read = tuple(field for field in wanted if field.name not in makes)
        self._made, self._read, self._retired = self._all_made, self._all_read, frozenset[str]()

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        columns: Collection[str],
        device: torch.device,
        warn: Callable[[str], None] = ignore,
        home: Home | None = None,
    ) -> "ModelInputs":
        """What an experiment's model and loss take. `warn` hears of captions that are cut; encoders that are fetched
        come below `home` (None: DITLAB_HOME)."""
        return cls(experiment.batch_fields(), columns, device, _maker(experiment, device, warn, home))

    @property
    def fields(self) -> tuple[BatchField, ...]:
        """What is read from the store: the fields that it holds, and what encoders read."""
        known = {field.name for field in self._read}
        return (*self._read, *([CAPTION] if self._made.keys() & {*TEXT} and CAPTION.name not in known else []))

    @property
    def names(self) -> set[str]:
        """The fields of what `ready` gives."""
        return {*self._made, *(field.name for field in self._read)}

    @property
    def encode(self) -> Encode | None:
        """Makes the text fields of captions, where an encoder is named and the model wants its features."""
        return self._encode if self._maker is not None and self._maker.makes_text else None

    def only(self, names: Collection[str]) -> "ModelInputs":
        """The same for a few of its fields, with the same encoders. `image` is read where its features are made."""
        few = ModelInputs((), (), self.device, self._maker)
        few._made = {name: field for name, field in self._made.items() if name in names}
        needed = {*names, "image"} if IMAGE in few._made else names
        few._read = tuple(field for field in self._read if field.name in needed)
        return few

    def open(self) -> None:
        """Opens the encoders that `ready` will use. Raises UserError where that cannot be done."""
        if self._maker is not None and self._made.keys() & {*TEXT}:
            self._maker.text()
        if self._maker is not None and IMAGE in self._made:
            self._maker.image()

    def check(self) -> None:
        """Raises UserError for an encoder that `open` could not open, as far as that shows without its weights."""
        if self._maker is not None:
            self._maker.check(text=self._maker.makes_text, image=IMAGE in self._made)

    def retire(self, names: Collection[str]) -> bool:
        """Leaves just these fields out from now on, and frees an encoder of images that nobody needs then; whether
        there was a change. A run that went back to an earlier step gets its fields again. `image` does not retire."""
        if self._retired == (retired := frozenset(names)):
            return False
        self._retired = retired
        self._made = {name: field for name, field in self._all_made.items() if name not in retired}
        self._read = tuple(field for field in self._all_read if field.name not in retired)
        if IMAGE in self._all_made and IMAGE in retired and self._maker is not None:
            self._maker.free_image()
            gc.collect()  # networks hold references in circles
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return True

    def ready(
        self, raw: Mapping[str, Tensor], columns: Mapping[str, Column], device: torch.device | None = None
    ) -> dict[str, Tensor]:
        """Rows of `fields`, (num, ...) each in the store's dtype, as model and loss take them; `columns` are the
        store's. On `device`, None: where its encoders are."""
        device = device or self.device
        batch = to_device(raw, self._read, columns, device)
        if not self._made:
            return batch
        made: dict[str, Tensor] = {}
        if self._made.keys() & {*TEXT}:
            made.update(self._encode(decode_captions(raw[CAPTION.name].numpy())))
        if IMAGE in self._made:
            assert self._maker is not None
            made[IMAGE] = self._maker.encode_images(batch["image"], raw["image"])
        for name, field in self._made.items():
            batch[name] = made[name].to(device, getattr(torch, field.dtype))
        return batch

    def _encode(self, texts: Sequence[str]) -> dict[str, Tensor]:
        assert self._maker is not None
        found = self._maker.encode_texts(texts)
        return {name: values if name == "text_mask" else values.float() for name, values in found.items()}


def check_inputs(experiment: Experiment, data: DataSplits, home: Home | None = None) -> None:
    """Raises UserError where the data do not hold what model and loss take and no encoder makes it, or where an encoder
    does not fit. Encoders are fetched where need be, but not opened."""
    columns, origin = data.train.columns, data.train.origin
    inputs = ModelInputs.of(experiment, columns, torch.device("cpu"), home=home)
    missing = {field.name for field in inputs.fields} - {*columns}
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
    check_fields(data.train, inputs.fields, experiment.model)
    for part in data.train.store.parts:
        shapes = {field.name: part.columns[field.name].shape for field in inputs.fields}
        try:
            experiment.objective.check_shapes(experiment.model, shapes)
        except ValueError as error:
            raise UserError(f"{origin} does not fit: {error}") from error
    inputs.check()


def _maker(
    experiment: Experiment, device: torch.device, warn: Callable[[str], None], home: Home | None
) -> FeatureMaker | None:
    """The encoders that an experiment names, None where it names none."""
    if not experiment.encoders.content():
        return None
    fields = {field.name: field for field in experiment.batch_fields()}
    text, image, features = (fields.get(name) for name in (TEXT[0], "image", IMAGE))
    text_wish = image_wish = None
    if text is not None:
        assert text.at_most is not None, "a model has a longest caption"
        text_wish = TextWish(text.shape[-1], text.at_most)
    if features is not None:
        assert image is not None, "features are those of an image"
        image_wish = ImageWish(features.shape[-1], image.multiple_of)
    downloads = home.caches / "encoders" if home else None
    return FeatureMaker(experiment.encoders, text_wish, image_wish, device, downloads, warn)
