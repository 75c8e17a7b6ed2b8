"""Import of images with captions, by blocks: plan, shards by size, manifest, a summary of what was
dropped and why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ditlab.data.images.annotations import REMEDIES, SHARED, Annotations
from ditlab.data.images.captions import LABEL, caption_column, encode_captions
from ditlab.data.images.decoding import (
    TOO_SMALL,
    AspectBuckets,
    CaptionedImage,
    DecodedImage,
    DecodingRules,
    decode,
)
from ditlab.data.images.pictures import (
    CONVERTED,
    DEEP,
    FIRST_FRAME,
    NEARLY_BLACK,
    NO_PROFILE,
    ImageSize,
)
from ditlab.data.images.sources import BESIDE, ImageSource, open_image_source, read_images
from ditlab.data.images.tar_samples import REPEATED
from ditlab.data.import_blocks import (
    BlockEnd,
    BlockReceipt,
    InputBlock,
    ProcessExecutor,
    RefusedSource,
    dropped_of,
    finish_parts,
    imported_blocks,
    packed,
    shards_of,
    sums_of,
    unpacked,
)
from ditlab.data.importing import ImportRequest
from ditlab.data.processes import results_in_order
from ditlab.data.source_files import ESCAPED, source_name
from ditlab.data.stores.duplicates import REPEATS, content_digests, duplicate_rows
from ditlab.data.stores.manifest import RGB, Column, Source, class_column, folder_name, image_column
from ditlab.data.stores.receipt import (
    DAMAGED,
    NO_RECORD,
    DroppedRecord,
    DroppedRecords,
    ReceiptLevel,
    SourceReceipt,
    class_warnings,
    make_receipt,
)
from ditlab.data.stores.row_changes import CAPTION
from ditlab.data.stores.store import Store
from ditlab.data.stores.writer import ShardSeries
from ditlab.data.stores.writing import WrittenStore, place_buckets, refuse_plain_store
from ditlab.errors import UserError
from ditlab.spec.importing import ImagesOptions

IRRELEVANT = {"source", "processes", "name", "keep_duplicates"}
"""Options that do not change the images of a store; the source enters by its listing, and --classes
by its lines.
"""
CUT = "captions cut"
"""Name of the count of captions that were longer than their column."""
CHANGES = (
    CUT,
    CONVERTED,
    NO_PROFILE,
    FIRST_FRAME,
    DEEP,
    NEARLY_BLACK,
    SHARED,
    REPEATED,
    ESCAPED,
    REPEATS,
)
"""Names of the counts of what was changed or chosen on the way into a store."""
DIGESTS = "digests"
"""Key of a receipt's detail: the digests of its images' pixels, by size."""
AHEAD = 8
"""Images that are decoded ahead of what is written."""


def import_images(request: ImportRequest[ImagesOptions]) -> WrittenStore:
    """Write a bucketed store: image uint8 (3, height, width), or (1, height, width) if grey.

    Captions, if any, are uint8 (--caption-length,), labels int64; `AspectBuckets` gives each image
    its size. Rows of one size keep the source's order, whatever the number of processes; what is
    damaged costs itself alone. Raises UserError, with no store left, for a source without a usable
    image, and for what the options refuse to skip.
    """
    options = request.options
    buckets = _buckets(options)  # before an image is decoded
    source = open_image_source(options)
    stem = f"images-{folder_name(PurePosixPath(source_name(options.source)).stem)}"
    path = request.out / (options.name or f"{stem}-{options.resolution}")
    refuse_plain_store(path)
    annotations = source.annotations
    decoding = DecodingRules(
        buckets,
        options.caption_length,
        annotations.caption != "none",
        bool(annotations.label),
        options.max_pixels,
        options.grey,
    )
    rules = ImageRules(options, annotations, decoding, source.classes, request.limit)
    executor = request.executor or ProcessExecutor(options.processes)
    with imported_blocks(
        path,
        "images",
        source.blocks,
        _described(rules),
        rules,
        executor,
        request.progress,
        "decoding",
    ) as (folder, receipts):
        _refuse_no_image(options.source, receipts)
        parts = dict.fromkeys(chain.from_iterable(block.parts for block in receipts))
        sizes = {part: ImageSize(*map(int, part.split("x"))) for part in parts}
        origin = Source(kind="images", license="not stated", note=_note(options, receipts, sizes))
        columns = {part: rules.columns(size) for part, size in sizes.items()}
        duplicates = {part: duplicate_rows(_digests(receipts, part)) for part in sizes}
        attachments = {
            part: found.attachments(options.keep_duplicates) for part, found in duplicates.items()
        }
        stores = finish_parts(folder, receipts, columns, origin, attachments)
        return place_buckets(
            path,
            {sizes[part]: store for part, store in stores.items()},
            name=path.name,
            description=_description(rules, sum(map(len, stores.values())), len(sizes)),
            source=origin,
            receipt=_receipt(
                source, rules, receipts, [*stores.values()], sum(map(len, duplicates.values()))
            ),
        )


def _digests(receipts: Sequence[BlockReceipt], part: str) -> np.ndarray:
    """Return the digests of the images of one size, uint64 (rows,)."""
    digests = [
        unpacked(receipt.detail[DIGESTS][part], np.uint64)
        for receipt in receipts
        if part in receipt.detail[DIGESTS]
    ]
    return np.concatenate(digests)


def _described(rules: ImageRules) -> dict[str, Any]:
    """Return all that changes the images of a store beside its blocks, as values of JSON."""
    import PIL

    return {
        **rules.options.model_dump(mode="json", exclude=IRRELEVANT),
        "classes": list(rules.classes),
        "pillow": PIL.__version__,
    }


def _receipt(
    source: ImageSource,
    rules: ImageRules,
    receipts: Sequence[BlockReceipt],
    stores: Sequence[Store],
    num_repeats: int,
) -> SourceReceipt:
    """Return an import's receipt: levels of files and of what they hold, in one where all files are
    images.
    """
    dropped = dropped_of(receipts)
    counts = sums_of(receipts) + Counter(source.counts) + Counter({REPEATS: num_repeats})
    used = {"images": sum(receipt.rows for receipt in receipts)}
    kind = source.blocks[0].kind
    files = source.files
    if kind == "images" and rules.limit is None:
        left_out = Counter(files.left_out) + dropped.counts
        levels = [ReceiptLevel(unit=files.unit, used=files.used | used, left_out=left_out)]
    else:
        if counts[BESIDE]:
            used[BESIDE] = counts[BESIDE]
        unit = {"images": "images", "tar": "members", "parquet": "rows"}[kind]
        levels = [files, ReceiptLevel(unit=unit, used=used, left_out=dropped.counts)]
    warnings = [*source.warnings]
    if rules.classes and rules.limit is None:
        rows = np.sum(
            [store.columns[LABEL].statistics.class_counts or () for store in stores], axis=0
        )
        warnings += class_warnings(dict(zip(rules.classes, rows.tolist(), strict=True)))
    changed = {what: counts[what] for what in CHANGES}
    if counts[NEARLY_BLACK]:
        warnings.append(
            f"{counts[NEARLY_BLACK]:,} {NEARLY_BLACK}: if white is a lower value in them, scale it "
            "to 65,535 first."
        )
    return make_receipt(levels, [*source.files_left_out, *dropped.first], changed, warnings)


def _refuse_no_image(source: str, receipts: Sequence[BlockReceipt]) -> None:
    """Raise RefusedSource for a source without a usable image."""
    if any(receipt.rows for receipt in receipts):
        return
    dropped = dropped_of(receipts)
    if not dropped.first:
        raise RefusedSource(f"--source={source} holds no image; name files that hold some.")
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in sorted(dropped.counts.items()))
    smaller = ", or give a smaller --resolution" if TOO_SMALL in dropped.counts else ""
    raise RefusedSource(
        f"--source={source} holds no image that can be used ({reasons}), the first being "
        f"{dropped.first[0]}; name other files{smaller}."
    )


def _note(
    options: ImagesOptions, receipts: Sequence[BlockReceipt], sizes: Mapping[str, ImageSize]
) -> str:
    """Return a sentence on where the rows of a store are from."""
    pixels = 0
    for part, size in sizes.items():
        rows = sum(written.shard.rows for written in shards_of(receipts, part))
        pixels += math.prod(size) * rows
    channels = 1 if options.grey else 3
    note = (
        f"read from {source_name(options.source)}; {pixels * channels:,} "
        f"bytes of decoded pixels, areas of at most {options.resolution}x{options.resolution}"
    )
    if options.classes:
        note += f"; classes in the order of {source_name(options.classes)}"
    return note


def _description(rules: ImageRules, rows: int, num_sizes: int) -> str:
    words = [f"{rows:,} images"]
    if rules.decoding.captions:
        words.append("with captions")
    num = len(rules.classes)
    if num:
        words.append(f"of {num:,} class{'es' if num > 1 else ''}")
    words.append(f"in {num_sizes} size{'s' if num_sizes > 1 else ''}")
    return " ".join(words)


def _buckets(options: ImagesOptions) -> AspectBuckets:
    side = options.resolution
    if options.sizes == "square":
        return AspectBuckets(side, side, side, side, options.fit)
    step = options.step or 4 * options.patch
    longest = options.max_side or min(2 * side, max(1024, side))
    buckets = AspectBuckets(side, step, options.min_side or step, longest, options.fit)
    if not buckets.sizes:
        raise UserError(
            f"--resolution={side} leaves no size: sides are multiples of --step={step} (4 "
            f"times --patch by itself) from --min-side={buckets.min_side} to "
            f"--max-side={longest}, and no area is above {side}^2; raise --resolution, lower "
            "--patch or --step, or give --sizes square."
        )
    return buckets


@dataclass(frozen=True)
class ImageRules:
    """Rules of an import of images, without state: a block's shards depend on these and on the
    block alone.
    """

    options: ImagesOptions
    annotations: Annotations
    decoding: DecodingRules
    classes: Sequence[str]
    """Names of all classes; none without classes."""
    limit: int | None = None
    """Images of a block that are tried; None: all."""

    def convert(self, block: InputBlock, folder: Path) -> BlockEnd:
        """Decode a block's images, in their order; write their shards by size, the last rows in
        its end. Raises RefusedSource as `check` does.
        """
        images = ImageBlock(self, block, folder)
        items = islice(read_images(block, self.annotations, self.options.image_column), self.limit)
        try:
            # Pillow and hashes work without the GIL, so that this thread hashes and writes while
            # another one decodes
            for item, image in results_in_order(ThreadPoolExecutor(1), self._decoded, items, AHEAD):
                images.add(item, image)
        except BaseException:
            images.close()
            raise
        return images.end

    def _decoded(
        self, item: CaptionedImage | DroppedRecord
    ) -> tuple[CaptionedImage | DroppedRecord, DecodedImage | DroppedRecord]:
        if isinstance(item, DroppedRecord):
            return item, item
        return item, decode(self.decoding, item)

    def row(self, image: DecodedImage) -> dict[str, np.ndarray]:
        """Return an image as a row of its store, (1, *shape) by column."""
        row: dict[str, np.ndarray] = {"image": image.pixels[None]}
        if self.decoding.captions:
            row[CAPTION] = encode_captions([image.caption], self.decoding.caption_length)
        if self.classes:
            assert image.label is not None, "a source with classes gives one to each image"
            row[LABEL] = np.array([self.numbers[image.label]])
        return row

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of each class."""
        return {name: number for number, name in enumerate(self.classes)}

    def columns(self, size: ImageSize) -> dict[str, Column]:
        """Return the columns of images of one size."""
        if self.decoding.grey:
            image = image_column((1, *size), "channel (grey), row, column")
        else:
            image = image_column((3, *size), RGB)
        columns = {"image": image}
        if self.decoding.captions:
            columns[CAPTION] = caption_column(self.decoding.caption_length)
        if self.classes:
            columns[LABEL] = class_column("the image's class", len(self.classes), self.classes)
        return columns

    def check(self, image: DroppedRecord) -> None:
        """Raise RefusedSource where the options refuse to skip such an image."""
        if image.reason == "missing caption" and self.options.missing_caption == "refuse":
            remedy = REMEDIES[self.annotations.caption]
            raise RefusedSource(
                f"{image.place} has {image.detail}; {remedy}, or give --missing-caption skip."
            )
        if self.options.unreadable == "refuse" and image.reason in (NO_RECORD, DAMAGED):
            raise RefusedSource(
                f"{image.place}: {image.detail}; correct it, or give --unreadable skip."
            )


class ImageBlock:
    """Images of a block, which are written as they are decoded."""

    def __init__(self, rules: ImageRules, block: InputBlock, folder: Path) -> None:
        self._rules = rules
        self._block = block
        self._folder = folder
        self._counts = Counter[str]()
        self._dropped = DroppedRecords()
        self._rows = 0
        self._series: dict[ImageSize, ShardSeries] = {}
        """Shards by size, of each of which a few megabytes are in memory."""
        self._digests: dict[str, list[np.ndarray]] = {}

    def add(
        self, item: CaptionedImage | DroppedRecord, image: DecodedImage | DroppedRecord
    ) -> None:
        """Write an image, or count it as dropped. Raises RefusedSource as `ImageRules.check`
        does.
        """
        if isinstance(item, CaptionedImage):
            self._counts[BESIDE] += item.beside
            self._counts.update(item.remarks)
        if isinstance(image, DroppedRecord):
            self._rules.check(image)
            self._dropped.add(image)
            return
        part = "{}x{}".format(*image.size)
        if image.size not in self._series:
            place = self._folder / part
            place.mkdir(parents=True, exist_ok=True)
            columns = self._rules.columns(image.size)
            self._series[image.size] = ShardSeries(place, self._block.prefix, columns)
            self._digests[part] = []
        self._series[image.size].append(self._rules.row(image))
        self._digests[part].append(content_digests(image.pixels[None]))
        self._counts[CUT] += image.caption_was_cut
        self._counts.update(image.changes)
        self._rows += 1

    def end(self) -> BlockReceipt:
        """Close the shards; return the block's receipt."""
        parts = {}
        try:
            for size in sorted(self._series):
                parts["{}x{}".format(*size)] = tuple(self._series[size].finish())
        finally:
            self.close()
        digests = {part: packed(np.concatenate(each)) for part, each in self._digests.items()}
        return BlockReceipt(
            block=self._block.number,
            rows=self._rows,
            parts=parts,
            left_out=self._dropped.counts,
            listed=tuple(self._dropped.first),
            counts=dict(+self._counts),
            detail={DIGESTS: digests},
        )

    def close(self) -> None:
        """Remove shards that have not ended."""
        for each in self._series.values():
            each.close()
