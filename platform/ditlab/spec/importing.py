"""Options of each importer of `ditlab data import`: the flags of its command, in the order that
they have.
"""

import re
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ditlab.spec.uris import refuse_storage
from ditlab.spec.values import Nonempty
from ditlab_models.checks import check_multiple
from ditlab_models.contract import PositiveInt, Spec

SMALLEST_RESOLUTION = 8


def _plain(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise ValueError(
            "is no plain folder name; use letters, digits, '.', '_' and '-', and --out for the "
            "place."
        )
    return name


FolderName = Annotated[str, AfterValidator(_plain)]


SourcePlace = Annotated[
    str,
    BeforeValidator(lambda source: str(source) if isinstance(source, Path) else source),
    AfterValidator(partial(refuse_storage, "--source")),
]
"""File, zip, folder, pattern such as `shards/*.tar`, or URI of one of them."""


class DigitsOptions(Spec):
    """The 1,797 real 8x8 digits that scikit-learn carries. Needs no download."""


class MnistOptions(Spec):
    """MNIST, from its four idx files or by download.

    With --source: the files gzipped or not, either split alone too. Data sets that share MNIST's
    format, such as Fashion-MNIST, need --no-checksum.
    """

    source: Path | None = None
    """Folder that holds the idx files; without it they are downloaded."""
    checksum: bool = True
    """Refuse files whose MD5 is not the published one."""
    keep_duplicates: bool = False
    """Let digits of equal pixels lie on both sides of a split; else all of them train, or all are
    held out. They are counted and stored in both cases.
    """


class ImagesOptions(Spec):
    """Images with captions or classes, in sizes by aspect ratio.

    From .png, .jpg, .webp, .tif and .bmp files, also in a zip, WebDataset tars, or Parquet with
    image bytes. Captions come from .txt files of the same stem (in tars, of the same key),
    metadata.jsonl or .csv beside the images, or a column, unless --caption-from says otherwise; a
    folder of class folders is imported with --label-from folder. Each image is scaled down to the
    size that suits it best, as --fit says; none is enlarged. Transparency turns white, EXIF's
    orientation is applied, and colours are converted to sRGB. A receipt says of every file, member
    and row whether it was used, and why not. An import that was killed goes on from its whole
    blocks when the same command is given.
    """

    source: SourcePlace
    """A file, a folder of files of one kind, a quoted pattern such as 'shards/*.tar', or a URI of
    one of these (s3://bucket/photos, hf://datasets/OWNER/NAME@REVISION/data/train-*.parquet of the
    Hugging Face hub). Folders are searched to their depth and read in the order of the paths; a zip
    of this machine is read as a folder."""
    caption_from: Literal["txt", "metadata", "column", "none"] | None = None
    """Origin of captions. `txt`: the file of the same stem. `metadata`: metadata.jsonl, .csv or
    .parquet beside the images, whose lines are {"file_name": "a/b.png", "caption": "..."}.
    `column`: Parquet's. `none` [default: metadata where there is one, else txt; column of Parquet;
    none with --label-from]. Several captions of a list are kept a line each."""
    label_from: Literal["folder", "cls"] | None = None
    """Origin of classes (column label). `folder`: each folder directly below --source is a class;
    `cls`: the .cls file of the same stem. Classes are numbered in the order of their names, and by
    value where all are whole numbers."""
    label_column: Nonempty | None = None
    """Column of Parquet or metadata that holds classes: whole numbers or text. Names that Hugging
    Face's `datasets` has written (ClassLabel) are kept."""
    classes: Nonempty | None = None
    """Text file of all classes, a name on each line in the order of their numbers from 0, such as
    those of a model that goes on with these images. A class that it lacks is refused [default: the
    source's, in the order of --label-from]."""
    sizes: Literal["aspect", "square"] = "aspect"
    """`aspect`: several sizes, as the images' shapes need. `square`: all images in one,
    --resolution by itself.
    """
    resolution: Annotated[int, Field(ge=SMALLEST_RESOLUTION)] = 256
    """No size has a larger area than a square of this side, in pixels."""
    fit: Literal["crop", "pad"] = "crop"
    """`crop`: an image covers its size and is cropped around its centre. `pad`: all of it lies in
    the middle, and white fills what is left on two sides. None enlarges: crop drops an image with
    a side shorter than the size's; pad keeps one that is as long on one side, and drops the
    smaller."""
    grey: bool = False
    """Store one channel (model.channels=1), the luma of ITU-R 601-2, in place of red, green and
    blue.
    """
    patch: PositiveInt = 16
    """Side of the model's patches (model.patch_size)."""
    step: PositiveInt | None = None
    """Sides of sizes are multiples of this, itself a multiple of --patch [default: 4 patches]."""
    min_side: PositiveInt | None = None
    """Shortest side of a size [default: --step]."""
    max_side: PositiveInt | None = None
    """Longest side of a size (model.max_resolution) [default: twice --resolution, not above
    1024].
    """
    image_column: Nonempty = "image"
    """Column of Parquet files that holds images: bytes, or Hugging Face's {bytes, path}."""
    caption_column: Nonempty = "caption"
    """Column of Parquet or metadata that holds captions."""
    caption_length: Annotated[int, Field(ge=4)] = 512
    """Bytes of a caption's column; longer captions are cut between two characters, and counted."""
    missing_caption: Literal["refuse", "skip"] = "refuse"
    """Treatment of an image without a caption."""
    unreadable: Literal["skip", "refuse"] = "skip"
    """Treatment of a file that is damaged or no image."""
    max_pixels: PositiveInt = 64_000_000
    """Most pixels of an image; larger ones are skipped and listed. Decoding takes up to 16 bytes a
    pixel.
    """
    keep_duplicates: bool = False
    """Let images of equal stored pixels lie on both sides of a split; else all of them train, or
    all are held out. They are counted and stored in both cases, with their captions and classes.
    """
    processes: PositiveInt | None = None
    """Processes that decode; the store is the same for any number [default: the cores, fewer for
    few images].
    """
    name: FolderName | None = None
    """Name of the store and its folder [default: images-SOURCE-RESOLUTION]."""

    @model_validator(mode="after")
    def _labels_have_one_origin(self) -> "ImagesOptions":
        if self.label_from and self.label_column:
            raise ValueError(
                f"--label-from={self.label_from} and --label-column={self.label_column}: give "
                "one of them."
            )
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> "ImagesOptions":
        if self.sizes == "square":
            for name in ("step", "min_side", "max_side"):
                value = getattr(self, name)
                if value is not None:
                    flag = name.replace("_", "-")
                    raise ValueError(f"--{flag}={value} is of --sizes aspect; leave it out.")
            check_multiple("--resolution", self.resolution, self.patch, f"--patch={self.patch}")
        elif self.step is not None:
            check_multiple("--step", self.step, self.patch, f"--patch={self.patch}")
        return self


class TextOptions(Spec):
    """Text as rows of tokens: .txt files, JSON lines, CSV, Parquet.

    Text, lines and CSV may be compressed (.gz, .zst). A .txt file is a document, and so is a line
    of a .jsonl file and a row of a table. An end token follows each document; all are joined and
    cut into rows of one length, and the last incomplete row is dropped. The store carries its
    tokeniser. A receipt says of every file and document whether it was used. A killed import goes
    on from its whole blocks.
    """

    source: SourcePlace
    """A file, a folder, a quoted pattern such as 'web/*.parquet', or a URI of one of these
    (s3://bucket/web, hf://datasets/OWNER/NAME@REVISION/data/train-*.parquet of the Hugging Face
    hub). Folders are searched to their depth and read in the order of the paths; a zip of this
    machine is read as a folder."""
    tokenizer: Nonempty = "bytes"
    """`bytes` (a vocabulary of 256, needs nothing), `bpe` (learned from this text), a Hugging Face
    tokenizer.json or a folder that holds one, or a tokeniser's name on the Hugging Face hub."""
    vocabulary: Annotated[int, Field(ge=257)] | None = None
    """Tokens of --tokenizer=bpe: the 256 bytes, the end token and what is learned [default:
    4096].
    """
    length: Annotated[int, Field(ge=2)] = 1024
    """Tokens of a row (model.length)."""
    column: Nonempty = "text"
    """Key of JSON lines, or column of tables and shards, that holds the text."""
    unreadable: Literal["skip", "refuse"] = "skip"
    """Treatment of a document that cannot be read: a file that is not UTF-8, a line that is no
    JSON, a damaged row.
    """
    keep_duplicates: bool = False
    """Keep documents whose text repeats an earlier one's; else they are dropped and counted, for
    which the source is read twice.
    """
    processes: PositiveInt | None = None
    """Processes that tokenise; the store is the same for any number [default: the cores, fewer for
    a small text].
    """
    name: FolderName | None = None
    """Name of the store and its folder [default: text-SOURCE-TOKENIZER-LENGTH]."""

    @model_validator(mode="after")
    def _vocabulary_is_learned(self) -> "TextOptions":
        if self.vocabulary is not None and self.tokenizer != "bpe":
            raise ValueError(
                f"--vocabulary={self.vocabulary} is of a BPE that is learned, and "
                f"--tokenizer={self.tokenizer} has a vocabulary of its own; leave --vocabulary "
                "out, or give --tokenizer bpe."
            )
        return self
