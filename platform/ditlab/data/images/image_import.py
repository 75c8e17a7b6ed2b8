"""Import of images with captions, by blocks: plan, shards by size, manifest, a summary of what was left out and why."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ditlab.data.images.annotations import Annotations
from ditlab.data.images.captions import LABEL, caption_column, encode_captions
from ditlab.data.images.decoding import (
    TOO_SMALL,
    AspectBuckets,
    CaptionedImage,
    DecodedImage,
    DecodingRules,
    ImageSize,
    decode,
)
from ditlab.data.images.encoding import EncoderChoice, encoded_blocks, open_features
from ditlab.data.images.growing import all_classes, continued_options, kept_options, known_rows, row_digest
from ditlab.data.images.sources import BESIDE, ImageSource, open_image_source, read_images
from ditlab.data.import_blocks import (
    MOST_LISTED,
    BlockReceipt,
    InputBlock,
    ProcessExecutor,
    RefusedSource,
    dropped_of,
    finish_parts,
    imported_blocks,
    shards_of,
    sums_of,
)
from ditlab.data.importing import ImportRequest
from ditlab.data.processes import results_in_order
from ditlab.data.source_files import source_name, visible_name
from ditlab.data.sources.records import share_read
from ditlab.data.stores.block_index import block_rows
from ditlab.data.stores.bucketed_store import BucketedStore
from ditlab.data.stores.manifest import Column, Source, folder_name
from ditlab.data.stores.receipt import (
    DAMAGED,
    NO_RECORD,
    DroppedRecord,
    DroppedRecords,
    ReceiptLevel,
    SourceReceipt,
    class_warnings,
    make_receipt,
    read_list,
)
from ditlab.data.stores.row_changes import CAPTION
from ditlab.data.stores.store import Store
from ditlab.data.stores.writer import ShardSeries
from ditlab.data.stores.writing import WrittenStore, place_buckets, refuse_plain_store
from ditlab.errors import UserError
from ditlab.spec.importing import ImagesOptions

IRRELEVANT = {"source", "processes", "name", "into", "encode_text", "encode_images", "resolution"}
"""Options that do not change the images of a store, or enter otherwise: the source by its listing, and its size."""
CUT, CONVERTED = "captions cut", "images of other colour profiles converted to sRGB"
"""Names of the counts of captions that were longer than their column, and of images whose colours were converted."""
THERE = "there already"
"""Reason of images that the store which they are added to holds."""
AHEAD = 8
"""Images that are decoded ahead of what is written."""


def import_images(request: ImportRequest[ImagesOptions]) -> list[WrittenStore]:
    """Write a bucketed store for each resolution: image uint8 (3, height, width), or (1, height, width) if grey.

    Captions, if any, are uint8 (--caption-length,), labels int64; `AspectBuckets` gives each image its size. Rows of
    one size keep the source's order, whatever the number of processes; what is damaged costs itself alone.
    Raises UserError, with no store left, for a source without a usable image, and for what the options refuse to skip.
    """
    options = request.options
    before = request.grown
    written = list[WrittenStore]()
    if before:
        options = continued_options(options, before)
        request = replace(request, options=options)
    several = len(options.resolution) > 1
    all_buckets = [_buckets(options, side) for side in options.resolution]  # before an image is decoded
    source = open_image_source(options)
    stem = options.name or f"images-{folder_name(PurePosixPath(source_name(options.source)).stem)}"
    for buckets in all_buckets:
        name = stem if options.name and not several else f"{stem}-{buckets.resolution}"
        name = before.name if before and not options.name else name
        try:
            written.append(_import_sizes(request, source, buckets, request.out / name))
        except RefusedSource as error:
            if not several:
                raise
            for each in (one.store.path for one in written if one.outcome == "written"):
                shutil.rmtree(each)
            raise RefusedSource(f"--resolution={buckets.resolution}: {error}") from None
    return written


def _import_sizes(
    request: ImportRequest[ImagesOptions], source: ImageSource, buckets: AspectBuckets, path: Path
) -> WrittenStore:
    """Write the store of one resolution into a folder."""
    options = request.options
    annotations = source.annotations
    before = request.grown
    if options.encode_text and annotations.caption == "none":
        raise UserError(f"--encode-text={options.encode_text} needs captions; give --caption-from, or leave it out.")
    refuse_plain_store(path)
    rules = _image_rules(request, source, buckets)
    for line in annotations.damaged:
        rules.check(line)
    encoders = EncoderChoice(options.encode_text, options.encode_images, options.caption_length, options.patch)
    encodes = bool(encoders) and request.limit is None
    if encodes:
        open_features(encoders)  # refuses those that cannot be used before an image is decoded
    described = _described(rules, before)
    executor = request.executor or ProcessExecutor(options.processes)
    with imported_blocks(
        path, "images", source.blocks, described, rules, executor, request.progress, "decoding", request.limit
    ) as (folder, receipts):
        _refuse_no_image(options.source, annotations, receipts)
        old = before.by_size if before else {}
        parts = {*old, *chain.from_iterable(block.parts for block in receipts)}
        sizes = {part: ImageSize(*map(int, part.split("x"))) for part in parts}
        origin = Source(
            kind="images",
            license="not stated",
            note=_note(options, buckets, receipts, sizes, before),
            options=kept_options(options, buckets.resolution),
        )
        columns = {part: rules.columns(size) for part, size in sizes.items()}
        stores = finish_parts(folder, receipts, columns, origin, old)
        receipt, left_out = _receipt(request, source, rules, receipts, [*stores.values()])
        with ExitStack() as encoding:
            if encodes:
                encoded = encoding.enter_context(encoded_blocks(path, stores, encoders, None, request))
                stores = finish_parts(*encoded, origin)
            written = place_buckets(
                path,
                {sizes[part]: store for part, store in stores.items()},
                name=path.name,
                description=_description(rules, sum(map(len, stores.values())), len(sizes)),
                source=origin,
                receipt=receipt,
                left_out=left_out,
            )
    if request.limit is None:
        return written
    records = [each.records for each in receipts]
    return replace(written, share=share_read(source.blocks, records, request.limit, sum(records)))


def _image_rules(request: ImportRequest[ImagesOptions], source: ImageSource, buckets: AspectBuckets) -> ImageRules:
    """Return the rules of one resolution. Raises UserError as `all_classes` does."""
    options = request.options
    annotations = source.annotations
    before = request.grown
    has_captions = annotations.caption != "none"
    decoding = DecodingRules(
        buckets, options.caption_length, has_captions, bool(annotations.label), options.max_pixels, options.grey
    )
    classes = source.classes
    if before:
        classes = all_classes(before, classes, has_captions, options.into or "")
    return ImageRules(options, annotations, decoding, classes, before.path if before else None, request.limit)


def _described(rules: ImageRules, before: BucketedStore | None) -> dict[str, Any]:
    """Return all that changes the images of a store beside its blocks, as values of JSON."""
    import PIL

    texts = sorted(rules.annotations.lines.items())
    return {
        **rules.options.model_dump(mode="json", exclude=IRRELEVANT),
        "resolution": rules.decoding.buckets.resolution,
        "lines": hashlib.sha256(json.dumps(texts).encode()).hexdigest() if texts else "",
        "classes": list(rules.classes),
        "pillow": PIL.__version__,
        "into": before.fingerprint if before else "",
    }


def _receipt(
    request: ImportRequest[ImagesOptions],
    source: ImageSource,
    rules: ImageRules,
    receipts: Sequence[BlockReceipt],
    stores: Sequence[Store],
) -> tuple[SourceReceipt, bytes]:
    """Return an import's receipt, and the file that lists what was left out."""
    before = request.grown
    is_whole = request.limit is None
    damaged = DroppedRecords()
    damaged.add(*source.annotations.damaged)
    dropped = dropped_of(receipts)
    counts = sums_of(receipts)
    levels = _levels(source, receipts, dropped, is_whole)
    if damaged.first or source.num_lines:
        levels.append(ReceiptLevel(unit="lines", used={"read": source.num_lines}, left_out=damaged.counts))
    warnings = [*source.warnings]
    if is_whole and rules.classes:
        rows = np.sum([store.columns[LABEL].statistics.class_counts or () for store in stores], axis=0)
        warnings += class_warnings(dict(zip(rules.classes, rows.tolist(), strict=True)))
    if not is_whole and (request.options.encode_text or request.options.encode_images):
        warnings.append("Features of --encode-text and --encode-images are not in the estimate.")
    return make_receipt(
        levels,
        [*source.files_left_out, *damaged.first, *dropped.first],
        {what: counts[what] for what in (CUT, CONVERTED)},
        warnings,
        read_list(before.path, before.manifest.receipt) if before else b"",
    )


def _levels(
    source: ImageSource, receipts: Sequence[BlockReceipt], dropped: DroppedRecords, is_whole: bool
) -> list[ReceiptLevel]:
    """Return the levels of files and of what they hold, in one where whole files are the images."""
    used = {"images": sum(receipt.rows for receipt in receipts)}
    kind = source.blocks[0].kind
    files = source.files
    if kind == "images" and is_whole:
        left_out = Counter(files.left_out) + dropped.counts
        return [ReceiptLevel(unit=files.unit, used=files.used | used, left_out=left_out)]
    beside = sums_of(receipts)[BESIDE]
    if beside:
        used[BESIDE] = beside
    unit = {"images": "images", "tar": "members"}.get(kind, "rows")
    return [files, ReceiptLevel(unit=unit, used=used, left_out=dropped.counts)]


def _refuse_no_image(source: str, annotations: Annotations, receipts: Sequence[BlockReceipt]) -> None:
    """Raise RefusedSource for a source without a usable image."""
    if any(receipt.rows for receipt in receipts):
        return
    dropped = [*annotations.damaged, *dropped_of(receipts).first]
    if not dropped:
        raise RefusedSource(f"--source={source} holds no image; name files that hold some.")
    counts = Counter(each.reason for each in dropped)
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in sorted(counts.items()))
    smaller = ", or give a smaller --resolution" if TOO_SMALL in counts else ""
    raise RefusedSource(
        f"--source={source} holds no image that can be used ({reasons}), the first being {dropped[0]}; "
        f"name other files{smaller}."
    )


def _note(
    options: ImagesOptions,
    buckets: AspectBuckets,
    receipts: Sequence[BlockReceipt],
    sizes: Mapping[str, ImageSize],
    before: BucketedStore | None,
) -> str:
    """Return a sentence on where the rows of a store are from."""
    pixels = sum(
        math.prod(size) * written.shard.rows for part, size in sizes.items() for written in shards_of(receipts, part)
    )
    note = (
        f"read from {visible_name(source_name(options.source))}; {pixels * (1 if options.grey else 3):,} bytes of "
        f"decoded pixels, areas of at most {buckets.resolution}x{buckets.resolution}"
    )
    if not before:
        return note
    rows = sum(receipt.rows for receipt in receipts)
    return f"{len(before):,} rows of {before.name}@{before.fingerprint[:12]}, and {rows:,} {note}"


def _description(rules: ImageRules, rows: int, num_sizes: int) -> str:
    words = [f"{rows:,} images"]
    if rules.decoding.captions:
        words.append("with captions")
    if num := len(rules.classes):
        words.append(f"of {num:,} class{'es' if num > 1 else ''}")
    words.append(f"in {num_sizes} size{'s' if num_sizes > 1 else ''}")
    return " ".join(words)


def _buckets(options: ImagesOptions, side: int) -> AspectBuckets:
    if options.sizes == "square":
        return AspectBuckets(side, side, side, side, options.fit)
    step = options.step or 4 * options.patch
    longest = options.max_side or min(2 * side, max(1024, side))
    buckets = AspectBuckets(side, step, options.min_side or step, longest, options.fit)
    if not buckets.sizes:
        raise UserError(
            f"--resolution={side} leaves no size: sides are multiples of --step={step} from "
            f"--min-side={buckets.min_side} to --max-side={longest}, and no area is above {side}^2; "
            f"raise --resolution, lower --step (a multiple of --patch={options.patch}), or give --patch "
            f"{_fitting_patch(side)} (--step is 4 patches by itself) or --sizes square."
        )
    return buckets


def _fitting_patch(side: int) -> int:
    """Return a side of patches, a power of two, of which images of `side` pixels have at least eight."""
    return min(16, 1 << ((side // 8).bit_length() - 1))


@dataclass(frozen=True)
class ImageRules:
    """Rules of an import of images, without state: a block's shards depend on these and on the block alone."""

    options: ImagesOptions
    annotations: Annotations
    decoding: DecodingRules
    classes: Sequence[str]
    """Names of all classes; none without classes."""
    grown: Path | None = None
    """Bucketed store to which the images are added; those that it holds are left out."""
    limit: int | None = None
    """Most records of a block; None: all."""

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Decode a block's images, in their order; write their shards by size. Raises RefusedSource as `check` does."""
        counts = Counter[str]()
        dropped = DroppedRecords()
        rows = 0
        series: dict[ImageSize, ShardSeries] = {}  # a few megabytes of each size are in memory
        try:
            items = islice(read_images(block, self.annotations, self.options.image_column), self.limit)
            # Pillow and hashes work without the GIL, so that this thread hashes and writes while another one decodes
            for item, image in results_in_order(ThreadPoolExecutor(1), self._decoded, items, AHEAD):
                if isinstance(item, CaptionedImage):
                    counts[BESIDE] += item.beside
                if isinstance(image, DroppedRecord):
                    self.check(image)
                    dropped.add(image)
                    continue
                row = self.row(image)
                if self.grown and row_digest(row) in known_rows(self.grown):
                    dropped.add(DroppedRecord(place=image.name, reason=THERE))
                    continue
                if image.size not in series:
                    columns = self.columns(image.size)
                    part = folder / "{}x{}".format(*image.size)
                    part.mkdir(parents=True, exist_ok=True)
                    rows_per_block = block_rows(sum(column.row_bytes for column in columns.values()))
                    series[image.size] = ShardSeries(part, block.prefix, columns, rows_per_block)
                series[image.size].append(row)
                counts[CUT] += image.caption_was_cut
                counts[CONVERTED] += image.was_converted
                rows += 1
            parts = {"{}x{}".format(*size): tuple(series[size].finish()) for size in sorted(series)}
        finally:
            for each in series.values():
                each.close()
        return BlockReceipt(
            block=block.number,
            rows=rows,
            parts=parts,
            left_out=dropped.counts,
            listed=tuple(dropped.first[:MOST_LISTED]),
            counts=dict(+counts),
        )

    def _decoded(
        self, item: CaptionedImage | DroppedRecord
    ) -> tuple[CaptionedImage | DroppedRecord, DecodedImage | DroppedRecord]:
        return item, item if isinstance(item, DroppedRecord) else decode(self.decoding, item)

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
        columns = {
            "image": Column(
                dtype="uint8",
                shape=(1 if self.decoding.grey else 3, *size),
                value_range=(0, 255),
                unit="pixel intensity",
                description=f"channel ({'grey' if self.decoding.grey else 'red, green, blue'}), row, column",
            )
        }
        if self.decoding.captions:
            columns[CAPTION] = caption_column(self.decoding.caption_length)
        if self.classes:
            columns[LABEL] = Column(
                dtype="int64",
                num_classes=len(self.classes),
                unit="class index",
                description="the image's class",
                names=tuple(self.classes),
            )
        return columns

    def check(self, image: DroppedRecord) -> None:
        """Raise RefusedSource where the options refuse to skip such an image."""
        if image.reason == "missing caption" and self.options.missing_caption == "refuse":
            remedy = self.annotations.remedy
            raise RefusedSource(f"{image.place} has {image.detail}; {remedy}, or give --missing-caption skip.")
        if self.options.unreadable == "refuse" and image.reason in (NO_RECORD, DAMAGED, "damaged line"):
            raise RefusedSource(f"{image.place}: {image.detail}; correct it, or give --unreadable skip.")
