"""Data of an experiment (`data`)."""

from functools import partial
from math import prod
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from ditlab.parts import absent_part
from ditlab.spec.uris import refuse_storage
from ditlab.spec.values import Nonempty, SizeText
from ditlab_models.contract import Share, Spec

Seed = Annotated[int, Field(ge=0)]
NumStates = Annotated[int, Field(ge=2, le=16)]
NumSamples = Annotated[int, Field(ge=10, le=1_000_000)]
Size = Annotated[int, Field(ge=1, le=1000)]
"""A dimension of data that are generated."""
HoldOut = Annotated[float, Field(ge=0, le=0.5)]
Packing = Literal["joined", "masked"]
"""Attention among the documents of a row of tokens."""
_MOST_NUMBERS = 2**32
_MOST_AT_ONCE = 2**27
"""Numbers that are drawn at once, 1 GiB in float64."""


class HoldOutClasses(Spec):
    """Whole classes that are kept out of training: all rows of some chromosomes."""

    column: Nonempty
    """Column of class indices."""
    values: Annotated[tuple[str | int, ...], Field(strict=False)]
    """Classes to keep out: their names, or their numbers where the column has no names."""

    @field_validator("values")
    @classmethod
    def _some(cls, values: tuple[str | int, ...]) -> tuple[str | int, ...]:
        if not values:
            raise ValueError("names no class; name one or more, or give data.hold_out a share.")
        return values


HeldOutClasses = Annotated[tuple[HoldOutClasses, ...], Field(strict=False, min_length=1)]
"""Classes of several columns: some chromosomes, and some cell types on all chromosomes."""


class OrderSpec(Spec):
    """Base of the orders in which samples are trained on (`data.order`), each a function of seed,
    epoch and its fields.

    Subclasses add `kind: Literal[NAME] = NAME`.
    """

    kind: str
    holds_out_blocks: ClassVar[bool] = False
    """True for an order of a store's blocks: a share is held out by whole blocks, and rows are
    computed (`ComputedRows` of `ditlab.data.loading.held_out`)."""

    def check_source(self, data: Any) -> None:
        """Raise ValueError where it does not fit the other fields of `data`, an `ArrowData`."""

    def check_batch(self, batch_size: int, workers: int) -> None:
        """Raise ValueError where it does not fit a batch of this size, or so many workers at
        most.
        """

    def open_streamed(self, data: Any, home: Any, notify: Any) -> Any:
        """Return the store that `data.path` names, where its rows are fetched when they are needed;
        None: as a whole.

        `data`: an `ArrowData`; `home`: `ditlab.home.Home`; `notify`: function that shows a message
        to people. Raises UserError for a place without a store, or that does not answer.
        """
        return None

    def sample_order(self, view: Any, batch_size: int, seed: int) -> Any:
        """Return the `ditlab.data.loading.order.Order` of the samples of a `View`. Raises UserError
        where they fill no batch."""
        raise NotImplementedError


class FullOrderSpec(OrderSpec):
    """One permutation of all samples, sorted again for each epoch: time and memory grow with the
    samples.
    """

    kind: Literal["full"] = "full"
    """All samples in one random order."""


def order_of(data: Spec) -> OrderSpec:
    """Return the order of an experiment's data; `full` where they have no such field."""
    order: OrderSpec = getattr(data, "order", FullOrderSpec())
    return order


class GeneratedData(Spec):
    """Base of the data that are generated, of a bounded size."""

    size_fields: ClassVar[tuple[str, ...]]
    """Fields whose product is the number of numbers; null counts as 1."""
    most_numbers: ClassVar[int] = _MOST_AT_ONCE

    @model_validator(mode="after")
    def _fits_a_disk(self) -> Self:
        sizes = {name: getattr(self, name) or 1 for name in self.size_fields}
        numbers = prod(sizes.values())
        if numbers > self.most_numbers:
            written = ", ".join(f"data.{name}={size}" for name, size in sizes.items())
            raise ValueError(
                f"{written} give {numbers:,} numbers, and at most {self.most_numbers:,} are "
                "made; lower one of them."
            )
        return self


class DigitsData(Spec):
    """The 1,797 real 8x8 digits that scikit-learn carries. Needs no download."""

    kind: Literal["digits"] = "digits"
    """Embedded data: scikit-learn's 8x8 digits."""
    hold_out: HoldOut = 0.1
    """Share of the samples kept out of training, for evaluation."""


class CaptionedDigitsData(Spec):
    """Scikit-learn's digits in several colours with captions such as "a red seven". Needs no
    download.
    """

    kind: Literal["captioned_digits"] = "captioned_digits"
    """Embedded data: coloured digits and what they show, in words."""
    size: Annotated[int, Field(ge=8, le=256, multiple_of=8)] = 16
    """Height and width in pixels, a multiple of 8: the 8x8 digits are enlarged smoothly."""
    colours: Annotated[int, Field(ge=1, le=7)] = 7
    """Number of colours of each digit, the first of red, green, blue, yellow, cyan, magenta and
    white.
    """
    hold_out: HoldOut = 0.1
    """Share of the digits kept out of training, for evaluation: each with all of its colours."""


class MnistData(Spec):
    """MNIST, imported beforehand with `ditlab data import mnist` (from idx files in a folder, or by
    download).
    """

    kind: Literal["mnist"] = "mnist"
    """MNIST's 28x28 digits."""
    split: Literal["train", "test"] = "train"
    """The idx files to train on: 60,000 (train) or 10,000 (test) digits."""
    hold_out: HoldOut | None = None
    """Share kept out of training. Null: none of `train`, whose evaluation uses `test`; a tenth of
    `test`.
    """
    order: FullOrderSpec = FullOrderSpec()
    """Order of the training samples; under `interleaved`, a share is held out by whole blocks."""


class ArrowData(Spec):
    """Any Arrow store that `ditlab data import` wrote."""

    kind: Literal["arrow"] = "arrow"
    """An Arrow store by path, name or URI."""
    path: Annotated[str, Field(min_length=1), AfterValidator(partial(refuse_storage, "data.path"))]
    """Name of a store under DITLAB_HOME/stores, such as `pets`; or the path of a store's folder, in
    a file from that file's folder on, such as `./pets`, and with --set from the working directory
    on. Or a URI, as checkpoint.storage takes them (s3://bucket/prefix, gs://, abfs://, hdfs://,
    file://), where `ditlab data upload` put the store: each node copies it once to
    DITLAB_CACHE/stores, checks every file's SHA-256, and reads the copy, unless data.access says
    otherwise. A URI that holds a key or password is refused."""
    access: Literal["auto", "copy", "stream"] = "auto"
    """Reading of a store behind a URI. `copy`: from a copy on each node's disk. `stream`: parts of
    it are fetched ahead of need, verified, and kept in a cache on the node; needs
    data.order.kind=interleaved. `auto`: a copy where the order is `full` or the store fits the
    node's disk. Under one order all give the same run."""
    cache: SizeText = "200GiB"
    """Most room that streamed stores take on a node, below DITLAB_CACHE/blocks; all runs of the
    node share it.
    """
    hold_out: HoldOut | HoldOutClasses | HeldOutClasses = 0.1
    """Samples held out of training, for evaluation: a share of the samples (of text: runs of
    neighbouring ones), or all samples of some classes, `{column: chromosome, values: [chr10,
    chr11]}`; of a list of such, the samples of any of them. Under data.order.kind=interleaved, a
    share is one of whole blocks of neighbouring samples, spread evenly over the store, and classes
    are refused."""
    order: FullOrderSpec = FullOrderSpec()
    """Order of the training samples: `full`, or `{kind: interleaved, streams: 64, window: 16}` for
    stores that do not fit a node's disk or whose samples do not fit its memory as numbers."""
    packing: Packing = "joined"
    """Attention among documents that share a row of text. `joined`: a token attends to the whole
    row, whatever document it is of. `masked`: to its own document alone. The rows are the same, and
    no token is wasted."""
    flip: Share = 0.0
    """Probability that a training image is mirrored from left to right, drawn by seed, step
    and sample. Held-out images stay as they are."""
    captions: Literal["whole", "one"] = "whole"
    """Several captions of an image, a line each. `whole`: the text with its lines. `one`: in
    training one line, drawn by seed, step and sample; in evaluation the first."""

    @model_validator(mode="after")
    def _order_fits(self) -> "ArrowData":
        if self.access == "stream" and isinstance(self.order, FullOrderSpec):
            absent = absent_part("order", "interleaved")
            if absent:
                raise ValueError(
                    f"data.access=stream needs data.order.kind=interleaved, and {absent}"
                )
            raise ValueError(
                "data.access=stream needs data.order.kind=interleaved, as the full order takes "
                "each batch from everywhere; set data.order to {kind: interleaved, streams: "
                "64}, or data.access to copy."
            )
        self.order.check_source(self)
        return self


class MotifsData(GeneratedData):
    """Generated regions of a genome, with planted motif modules and so with a known optimum. Needs
    no download.
    """

    size_fields = ("chromosomes", "peaks", "motifs")
    most_numbers = _MOST_NUMBERS
    kind: Literal["motifs"] = "motifs"
    """Generated data: sparse motif scores whose modules run along the genome."""
    seed: Seed = 0
    """Seed of the modules and of every draw; it does not follow the experiment's seed."""
    motifs: Size = 31
    """Motif scores of a region; accessibility comes on top (model.num_features = motifs + 1)."""
    chromosomes: Annotated[int, Field(ge=3, le=100)] = 20
    """Chromosomes, chr1 and so on; each is drawn on its own."""
    peaks: Annotated[int, Field(ge=1, le=100_000)] = 4000
    """Regions along each chromosome."""
    regions: Size = 64
    """Consecutive regions that make a sample (model.num_regions)."""
    domains: NumStates = 5
    """States of the hidden chain with the shorter runs (12 regions on average)."""
    programs: NumStates = 5
    """States of the hidden chain with the longer runs (30 regions). Each pair of states has motifs
    of its own.
    """
    hold_out: HoldOut | HoldOutClasses | None = None
    """Samples held out of training, for evaluation: a share of the samples, or some chromosomes,
    `{column: chromosome, values: [chr1]}`. Null: the last two chromosomes."""


class GaussianMixtureData(GeneratedData):
    """Generated points of a mixture of Gaussians, whose optimal denoiser is known. Needs no
    download.
    """

    size_fields = ("num", "regions", "dimensions")
    kind: Literal["gaussian_mixture"] = "gaussian_mixture"
    """Generated data: points around a few centres."""
    seed: Seed = 0
    """Seed of the centres and of every draw; it does not follow the experiment's seed."""
    components: Size = 8
    """Gaussians, equally likely. Their means are uniform in [-0.5, 0.5] along each dimension."""
    dimensions: Size = 2
    """Numbers of a point."""
    std: Annotated[float, Field(gt=0, le=0.0625)] = 0.05
    """Standard deviation of each Gaussian, at most 1/16, so that all points lie in [-1, 1]."""
    num: NumSamples = 20_000
    """Samples."""
    regions: Size | None = None
    """Points of a sample. Null: a sample is one point, an image of one pixel with a channel for
    each dimension (`dit`: model.image_size=1, model.patch_size=1, model.channels = dimensions). A
    number: so many points that do not depend on each other, regions with a feature for each
    dimension (`region`)."""
    hold_out: HoldOut = 0.1
    """Share of the samples kept out of training, for evaluation."""


class MarkovChainData(GeneratedData):
    """Generated tokens of a Markov chain, whose true scores are known. Needs no download."""

    size_fields = ("num", "length")
    kind: Literal["markov_chain"] = "markov_chain"
    """Generated data: sequences in which each token depends on the one before."""
    seed: Seed = 0
    """Seed of the transitions and of every draw; it does not follow the experiment's seed."""
    states: Annotated[int, Field(ge=2, le=64)] = 8
    """Tokens of the chain (model.vocabulary)."""
    concentration: Annotated[float, Field(gt=0, le=1000)] = 0.3
    """Parameter of the Dirichlet distribution of each token's transitions: below 1 a few successors
    are likely, far above 1 all of them are alike. A hundredth of each transition is uniform."""
    length: Annotated[int, Field(ge=2, le=100_000)] = 16
    """Tokens of a sample (model.length)."""
    num: NumSamples = 20_000
    """Samples."""
    hold_out: HoldOut = 0.1
    """Share of the samples kept out of training, for evaluation."""


class TextData(Spec):
    """Text that is there already: the documentation that this Python carries. Needs no download.

    Any other text: `ditlab data import text`, then data.kind=arrow.
    """

    kind: Literal["text"] = "text"
    """Embedded data: English prose with code."""
    corpus: Literal["python-docs"] = "python-docs"
    """The language reference and the docstrings of the standard library, about 2 MB; another Python
    version has other text."""
    tokenizer: Literal["bytes", "bpe"] = "bytes"
    """`bytes`: a vocabulary of 256. `bpe`: byte-level BPE learned from the corpus."""
    vocabulary: Annotated[int, Field(ge=257)] = 4096
    """Tokens of the BPE (model.vocabulary); with bytes it is always 256."""
    length: Annotated[int, Field(ge=2)] = 1024
    """Tokens of a sample (model.length)."""
    hold_out: HoldOut = 0.1
    """Share of the samples kept out of training, for evaluation: runs of neighbouring ones, so that
    few of them share a document with what trains."""
    packing: Packing = "joined"
    """Attention among documents that share a row. `joined`: a token attends to the whole row,
    whatever document it is of. `masked`: to its own document alone. The rows are the same, and no
    token is wasted."""


SourceSpec = Annotated[
    DigitsData
    | CaptionedDigitsData
    | MnistData
    | ArrowData
    | MotifsData
    | GaussianMixtureData
    | MarkovChainData
    | TextData,
    Field(discriminator="kind"),
]
"""One source of samples: the data of an experiment, or a part of a mixture (`mixture.DataSpec` is
either).
"""
