"""Import of images with captions, by blocks: plan, shards by size, manifest, a summary of what was left out and why."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from ditlab.data.block_imports.plan import (
    MOST_LISTED,
    BlockReceipt,
    ImportPlan,
    InputBlock,
    LeftOut,
    count_left_out,
    partial_folder,
    shards_of,
    total_counts,
)
from ditlab.data.block_imports.runner import ProcessExecutor, RefusedSource, run_blocks, unfinished_import
from ditlab.data.block_imports.source_files import source_name, visible_name
from ditlab.data.images.captions import CAPTION, caption_column, encode_captions
from ditlab.data.images.decoding import (
    EMPTY_CAPTION,
    AspectBuckets,
    DecodedImage,
    DecodingRules,
    ImageSize,
    Reason,
    SkippedImage,
    decode,
)
from ditlab.data.images.encoding import EncodedParts, EncoderChoice, encoded_parts, finish_parts, open_features
from ditlab.data.images.reading import ImageReader, TableColumns
from ditlab.data.images.sources import ImageSource, SourceRules, open_image_source
from ditlab.data.import_request import ImportRequest
from ditlab.data.stores.block_index import block_rows
from ditlab.data.stores.manifest import Column, Source, folder_name, size_name
from ditlab.data.stores.shards import ShardSeries, WrittenShard
from ditlab.data.stores.writing import WrittenStore, place_buckets, refuse_plain_store
from ditlab.errors import UserError
from ditlab.spec.importing import SMALLEST_RESOLUTION, ImagesOptions

if TYPE_CHECKING:
    from ditlab.data.stores.store import Store


NOTED = 20
"""Skipped images named in the store's notes; its list names more."""
LISTED = 100_000
"""Skipped images in a store's list."""
SKIPPED_NAME = "skipped.txt"
IRRELEVANT = {"source", "processes", "name", "encode_text", "encode_images"}
"""Options that do not change the images of a store; the source enters by its listing."""
REASON_NAMES: dict[Reason, str] = {
    "missing_caption": "missing caption",
    "unreadable": "unreadable",
    "too_small": "too small",
    "too_large": "too large",
    "damaged_file": "damaged file",
    "damaged_line": "damaged line",
}
"""Names of the counts in a store's facts."""
CUT = "captions cut"
"""Name of the count of captions that were longer than their column."""
SIDE = "largest side of an image that is too small"
"""Key of a receipt's detail."""
LABEL = "label"
"""Name of the column of classes."""


def import_images(request: ImportRequest[ImagesOptions]) -> WrittenStore:
    """Write one bucketed store: image uint8 (3, height, width) in [0, 255], caption uint8 (--caption-length,) where
    they have captions, and label int64 where they have classes.

    `AspectBuckets` gives each image its size. Images are decoded once, block by block, to pixels of that size, so that
    training decodes nothing; rows of one size keep the source's order, whatever the number of processes. What is
    damaged costs itself alone. A killed import goes on from its whole blocks. Raises UserError for a source without a
    usable image, and for what the options refuse to skip.
    """
    options = request.options
    buckets = _buckets(options)
    source = open_image_source(
        options.source,
        SourceRules(options.image_column, options.caption_column, options.caption_from, options.label_from),
    )
    annotations = source.annotations
    has_captions = annotations.caption != "none"
    if options.encode_text and not has_captions:
        raise UserError(f"--encode-text={options.encode_text} needs captions; give --caption-from, or leave it out.")
    name = options.name or f"images-{folder_name(PurePosixPath(source_name(options.source)).stem)}-{options.resolution}"
    path = request.out / name
    refuse_plain_store(path)
    rules = ImageRules(
        ImageReader(
            annotations,
            TableColumns(options.image_column, options.caption_column if has_captions else None),
            options.max_pixels,
        ),
        DecodingRules(buckets, options.caption_length, has_captions, options.max_pixels),
        source.classes,
        options.missing_caption == "refuse",
        options.unreadable == "refuse",
    )
    damaged = [SkippedImage(line.place, "damaged_line", line.reason) for line in annotations.damaged]
    for line in damaged:
        rules.check(line)
    encoders = EncoderChoice(options.encode_text, options.encode_images, options.caption_length, options.patch)
    if encoders:
        open_features(encoders)  # refuses those that cannot be used before an image is decoded
    plan = ImportPlan.of("images", source.blocks, _described(options, source), source.num)
    folder = partial_folder(path, plan)
    executor = request.executor or ProcessExecutor(options.processes)
    with unfinished_import(folder):
        receipts = run_blocks(plan, rules, folder, executor, request.progress, "decoding", "images")
        summary = ImportSummary([describe(line) for line in damaged], receipts, rules)
        if not summary.rows:
            raise _nothing_usable(options, summary)
        origin = Source(kind="images", license="not stated", note=describe_source(options, summary))
        parts = {part: image_columns(_size(part), rules.caption_length, rules.classes) for part in summary.parts}
        stores = finish_parts(EncodedParts(folder, receipts, parts), origin)
        if not encoders:
            return _place(path, stores, summary, rules, origin)
        with encoded_parts(path, stores, encoders, None, request) as encoded:
            return _place(path, finish_parts(encoded, origin), summary, rules, origin)


def _described(options: ImagesOptions, source: ImageSource) -> dict[str, Any]:
    """Describe all that changes the images of a store, but for its files."""
    import PIL

    lines = source.annotations.lines
    digest = hashlib.sha256(json.dumps(sorted(lines.items())).encode()).hexdigest() if lines else ""
    chosen = options.model_dump(mode="json", exclude=IRRELEVANT)
    return {**chosen, "lines": digest, "classes": list(source.classes), "pillow": PIL.__version__}


def _size(part: str) -> ImageSize:
    return ImageSize(*map(int, part.split("x")))


def _place(
    path: Path, stores: Mapping[str, Store], summary: ImportSummary, rules: ImageRules, source: Source
) -> WrittenStore:
    lines = list(islice(summary.lines, LISTED))
    more = sum(summary.left_out.values()) - len(lines)
    text = "".join(f"{line}\n" for line in lines) + (f"and {more:,} more\n" if more else "")
    return place_buckets(
        path,
        {_size(part): store for part, store in stores.items()},
        name=path.name,
        description=describe_store(summary, rules),
        source=source,
        facts=summary.facts,
        notes=lines[:NOTED],
        files={SKIPPED_NAME: text.encode()} if lines else {},
    )


def _buckets(options: ImagesOptions) -> AspectBuckets:
    side = options.resolution
    if options.sizes == "square":
        return AspectBuckets(side, side, side, side)
    step = options.step or 4 * options.patch
    longest = options.max_side or min(2 * side, max(1024, side))
    buckets = AspectBuckets(side, step, options.min_side or step, longest)
    if not buckets.sizes:
        lower = f"lower --step (a multiple of --patch={options.patch})"
        if options.step is None:
            lower = f"give --patch {_fitting_patch(side)} (--step is 4 patches)"
        raise UserError(
            f"--resolution={side} leaves no size: sides are multiples of --step={step} from "
            f"--min-side={buckets.min_side} to --max-side={longest}, and no area is above {side}^2; "
            f"raise --resolution, or {lower}, or give --sizes square."
        )
    return buckets


def _fitting_patch(side: int) -> int:
    """Return a side of patches of which images of `side` pixels have at least eight: 4 for 32 pixels."""
    return max(patch for patch in (1, 2, 4, 8, 16) if patch == 1 or 8 * patch <= side)


def _nothing_usable(options: ImagesOptions, summary: ImportSummary) -> UserError:
    source = options.source
    if not summary.listed:
        return RefusedSource(f"--source={source} holds no image; name files that hold some.")
    counts = ", ".join(f"{number:,} {word}" for word, number in summary.facts.items())
    remedy = "name other files"
    side = max((receipt.detail[SIDE] for receipt in summary.receipts), default=0)
    if side >= SMALLEST_RESOLUTION:
        remedy += f", or give --resolution {side} --patch {_fitting_patch(side)}"
    return RefusedSource(
        f"--source={source} holds no image that can be used ({counts}), the first being {next(iter(summary.lines))}; "
        f"{remedy}."
    )


@dataclass(frozen=True)
class ImageRules:
    """Rules of an import of images, without state: a block's shards depend on these and on the block alone."""

    reader: ImageReader
    decoding: DecodingRules
    classes: Sequence[str]
    """Names of all classes; none without classes."""
    refuse_missing_caption: bool
    refuse_unreadable: bool

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Decode a block's images, in their order, and write their shards by size.

        Raises RefusedSource for an image that is not to be skipped, UserError as the reader does, and OSError as the
        disk does.
        """
        skipped: list[SkippedImage] = []
        captions_cut = 0
        with BucketShards(folder, block.prefix, self.caption_length, self.classes) as shards:
            for item in self.reader.read(block):
                image = decode(self.decoding, item)
                if isinstance(image, SkippedImage):
                    self.check(image)
                    skipped.append(image)
                else:
                    shards.add(image)
                    captions_cut += image.caption_was_cut
            parts = dict(shards.finish())
        left_out = [describe(image) for image in skipped]
        return BlockReceipt(
            block=block.number,
            rows=shards.rows,
            parts=parts,
            left_out=count_left_out(left_out),
            listed=tuple(left_out[:MOST_LISTED]),
            counts={CUT: captions_cut} if captions_cut else {},
            detail={SIDE: max((image.side for image in skipped), default=0)},
        )

    @property
    def caption_length(self) -> int:
        """Bytes of a caption in its column; 0 without captions."""
        return self.decoding.caption_length if self.decoding.captions else 0

    def check(self, image: SkippedImage) -> None:
        """Raise RefusedSource where the options refuse to skip such an image.

        A caption that may stand in a damaged line is looked at once all blocks are there.
        """
        annotations = self.reader.annotations
        may_be_damaged = bool(annotations.damaged) and not image.is_empty
        if image.reason == "missing_caption" and self.refuse_missing_caption and not may_be_damaged:
            raise missing_caption(image.name, image.detail, annotations.remedy)
        if image.reason == "unreadable" and self.refuse_unreadable:
            raise RefusedSource(
                f"{image.name} cannot be decoded ({image.detail}); replace it, or give --unreadable skip."
            )
        if image.reason in ("damaged_file", "damaged_line") and self.refuse_unreadable:
            raise RefusedSource(f"{image.name}: {image.detail}; correct it, or give --unreadable skip.")


def missing_caption(name: str, detail: str, remedy: str) -> RefusedSource:
    """Return the error for an image without a caption."""
    return RefusedSource(f"{name} has {detail}; {remedy}, or give --missing-caption skip.")


def describe(image: SkippedImage) -> LeftOut:
    """Describe an image that is left out."""
    return LeftOut(place=image.name, reason=REASON_NAMES[image.reason], detail=image.detail)


def image_columns(size: ImageSize, caption_length: int, classes: Sequence[str]) -> dict[str, Column]:
    """Return the columns of images of one size.

    `caption_length`: bytes of a caption, 0 without captions; `classes`: their names, none without classes.
    """
    columns = {
        "image": Column(
            dtype="uint8",
            shape=(3, *size),
            value_range=(0, 255),
            unit="pixel intensity",
            description="channel (red, green, blue), row, column",
        )
    }
    if caption_length:
        columns[CAPTION] = caption_column(caption_length)
    if classes:
        columns[LABEL] = Column(
            dtype="int64",
            num_classes=len(classes),
            unit="class index",
            description="the image's class",
            names=tuple(classes),
        )
    return columns


class BucketShards:
    """Shards of images in folders by size, written as the images come: a few megabytes of each size are in memory.

    Without a call of `finish`, nothing is left.
    """

    def __init__(self, folder: Path, prefix: str, caption_length: int, classes: Sequence[str]):
        self.rows = 0
        """Images so far."""
        self._folder, self._prefix = folder, prefix
        self._caption_length, self._classes = caption_length, tuple(classes)
        self._numbers = {name: number for number, name in enumerate(classes)}
        self._series: dict[ImageSize, ShardSeries] = {}

    def __enter__(self) -> BucketShards:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for series in self._series.values():
            series.close()

    def add(self, image: DecodedImage) -> None:
        """Append an image to those of its size. Raises OSError as the disk does."""
        batch: dict[str, np.ndarray] = {"image": image.pixels[None]}
        if self._caption_length:
            batch[CAPTION] = encode_captions([image.caption], self._caption_length)
        if self._classes:
            assert image.label is not None, "a source with classes gives one to each image"
            batch[LABEL] = np.array([self._numbers[image.label]])
        self._of(image.size).append(batch)
        self.rows += 1

    def finish(self) -> Mapping[str, tuple[WrittenShard, ...]]:
        """Close all shards; returns them by size name. Raises OSError as the disk does."""
        return {size_name(*size): tuple(series.finish()) for size, series in sorted(self._series.items())}

    def _of(self, size: ImageSize) -> ShardSeries:
        if size not in self._series:
            columns = image_columns(size, self._caption_length, self._classes)
            folder = self._folder / size_name(*size)
            folder.mkdir(parents=True, exist_ok=True)
            rows = block_rows(sum(column.row_bytes for column in columns.values()))
            self._series[size] = ShardSeries(folder, self._prefix, columns, rows)
        return self._series[size]


class ImportSummary:
    """Receipts of an import, added up."""

    def __init__(self, damaged: Sequence[LeftOut], receipts: Sequence[BlockReceipt], rules: ImageRules):
        """Add up receipts. Raises RefusedSource for a missing caption that no damaged line explains, where refused."""
        self.receipts = receipts
        self.left_out = total_counts([count_left_out(damaged), *(receipt.left_out for receipt in receipts)])
        """Number of records that were left out, by reason."""
        self.listed = [*damaged, *(each for receipt in receipts for each in receipt.listed)]
        """The first of them in each block."""
        if damaged:
            self._explain(len(damaged), rules)

    @property
    def rows(self) -> int:
        """Images of the store."""
        return sum(receipt.rows for receipt in self.receipts)

    @property
    def facts(self) -> dict[str, int]:
        """Counts above 0, by name."""
        return self.left_out | total_counts(receipt.counts for receipt in self.receipts)

    @property
    def lines(self) -> Iterable[str]:
        """Lines for people, one for each image that is left out, as far as they are listed."""
        return (f"{each.place}: {each.reason} ({each.detail})" for each in self.listed)

    @property
    def parts(self) -> list[str]:
        """Return the sizes of all images, as `48x80`."""
        return sorted({part for receipt in self.receipts for part in receipt.parts})

    def _explain(self, unexplained: int, rules: ImageRules) -> None:
        """Take images without a caption for those of damaged lines, as far as there are any."""
        missing, unreadable = REASON_NAMES["missing_caption"], REASON_NAMES["unreadable"]
        for number, each in enumerate(self.listed):
            if each.reason != missing or each.detail == EMPTY_CAPTION:
                continue
            if not unexplained:
                if rules.refuse_missing_caption:
                    raise missing_caption(each.place, each.detail, rules.reader.annotations.remedy)
                break
            unexplained -= 1
            detail = "its caption may be in a damaged line"
            self.listed[number] = LeftOut(place=each.place, reason=unreadable, detail=detail)
            self.left_out = total_counts([self.left_out, {unreadable: 1, missing: -1}])
        self.left_out = {reason: num for reason, num in self.left_out.items() if num}


def describe_store(summary: ImportSummary, rules: ImageRules) -> str:
    """Describe a store for people: `6 images with captions in 3 sizes`."""
    sizes, classes = len(summary.parts), len(rules.classes)
    parts = [f"{summary.rows:,} images", "with captions" if rules.caption_length else ""]
    if classes:
        parts.append(f"of {classes:,} class{'es' if classes > 1 else ''}")
    parts.append(f"in {sizes} size{'s' if sizes > 1 else ''}")
    return " ".join(filter(None, parts))


def describe_source(options: ImagesOptions, summary: ImportSummary) -> str:
    """Describe the origin of a store's images for people."""
    sizes = {part: math.prod(map(int, part.split("x"))) for part in summary.parts}
    pixels = sum(
        3 * area * each.shard.rows for part, area in sizes.items() for each in shards_of(summary.receipts, part)
    )
    return (
        f"read from {visible_name(source_name(options.source))}; {pixels:,} bytes of decoded pixels, areas of at most "
        f"{options.resolution}x{options.resolution}"
    )
