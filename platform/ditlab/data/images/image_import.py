"""Import of images with captions, by blocks: plan, shards by size, manifest, a summary of what was left out and why."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from ditlab.data.block_imports.plan import (
    MOST_LISTED,
    BlockReceipt,
    ImportPlan,
    InputBlock,
    LeftOut,
    shards_of,
    total_counts,
)
from ditlab.data.block_imports.runner import (
    ProcessExecutor,
    RefusedSource,
    finish_parts,
    run_blocks,
    unfinished_import,
)
from ditlab.data.block_imports.source_files import source_name, visible_name
from ditlab.data.images.captions import CAPTION, caption_column, encode_captions
from ditlab.data.images.decoding import AspectBuckets, DecodedImage, DecodingRules, ImageSize, SkippedImage, decode
from ditlab.data.images.encoding import EncoderChoice, encoded_blocks, open_features
from ditlab.data.images.reading import ImageReader
from ditlab.data.images.sources import ImageSource, open_image_source
from ditlab.data.importing import ImportRequest
from ditlab.data.stores.block_index import block_rows
from ditlab.data.stores.manifest import Column, Source, folder_name, size_name
from ditlab.data.stores.writer import ShardSeries
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
    source = open_image_source(options)
    annotations = source.annotations
    has_captions = annotations.caption != "none"
    if options.encode_text and not has_captions:
        raise UserError(f"--encode-text={options.encode_text} needs captions; give --caption-from, or leave it out.")
    name = options.name or f"images-{folder_name(PurePosixPath(source_name(options.source)).stem)}-{options.resolution}"
    path = request.out / name
    refuse_plain_store(path)
    rules = ImageRules(
        ImageReader(
            annotations, options.image_column, options.caption_column if has_captions else None, options.max_pixels
        ),
        DecodingRules(buckets, options.caption_length, has_captions, options.max_pixels),
        source.classes,
        options.missing_caption == "refuse",
        options.unreadable == "refuse",
    )
    damaged = [SkippedImage(line.place, "damaged line", line.reason) for line in annotations.damaged]
    for line in damaged:
        rules.check(line)
    encoders = EncoderChoice(options.encode_text, options.encode_images, options.caption_length, options.patch)
    if encoders:
        open_features(encoders)  # refuses those that cannot be used before an image is decoded
    plan = ImportPlan.of("images", source.blocks, _described(options, source), source.num)
    folder = plan.folder(path)
    executor = request.executor or ProcessExecutor(options.processes)
    with unfinished_import(folder):
        receipts = run_blocks(plan, rules, folder, executor, request.progress, "decoding", "images")
        listed = [describe(line) for line in damaged] + [each for receipt in receipts for each in receipt.listed]
        left_out = total_counts(receipt.left_out for receipt in receipts)
        left_out |= {"damaged line": len(damaged)} if damaged else {}
        if not any(receipt.rows for receipt in receipts):
            raise _nothing_usable(options, receipts, left_out, listed)
        parts = sorted({part for receipt in receipts for part in receipt.parts})
        origin = Source(kind="images", license="not stated", note=describe_source(options, receipts, parts))
        columns = {part: image_columns(_size(part), rules.caption_length, rules.classes) for part in parts}
        stores = finish_parts(folder, receipts, columns, origin)

        def place(stores: Mapping[str, Store]) -> WrittenStore:
            lines = [_line(each) for each in listed[:LISTED]]
            more = sum(left_out.values()) - len(lines)
            text = "".join(f"{line}\n" for line in lines) + (f"and {more:,} more\n" if more else "")
            return place_buckets(
                path,
                {_size(part): store for part, store in stores.items()},
                name=path.name,
                description=describe_store(receipts, parts, rules),
                source=origin,
                facts=left_out | total_counts(receipt.counts for receipt in receipts),
                notes=lines[:NOTED],
                files={SKIPPED_NAME: text.encode()} if lines else {},
            )

        if not encoders:
            return place(stores)
        with encoded_blocks(path, stores, encoders, None, request) as encoded:
            return place(finish_parts(*encoded, origin))


def _described(options: ImagesOptions, source: ImageSource) -> dict[str, Any]:
    """Describe all that changes the images of a store, but for its files."""
    import PIL

    lines = source.annotations.lines
    digest = hashlib.sha256(json.dumps(sorted(lines.items())).encode()).hexdigest() if lines else ""
    chosen = options.model_dump(mode="json", exclude=IRRELEVANT)
    return {**chosen, "lines": digest, "classes": list(source.classes), "pillow": PIL.__version__}


def _size(part: str) -> ImageSize:
    return ImageSize(*map(int, part.split("x")))


def _line(left_out: LeftOut) -> str:
    return f"{left_out.place}: {left_out.reason} ({left_out.detail})"


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


def _nothing_usable(
    options: ImagesOptions, receipts: Sequence[BlockReceipt], left_out: Mapping[str, int], listed: Sequence[LeftOut]
) -> UserError:
    source = options.source
    if not listed:
        return RefusedSource(f"--source={source} holds no image; name files that hold some.")
    counts = ", ".join(f"{number:,} {word}" for word, number in left_out.items())
    remedy = "name other files"
    side = max((receipt.detail[SIDE] for receipt in receipts), default=0)
    if side >= SMALLEST_RESOLUTION:
        remedy += f", or give --resolution {side} --patch {_fitting_patch(side)}"
    return RefusedSource(
        f"--source={source} holds no image that can be used ({counts}), the first being {_line(listed[0])}; {remedy}."
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
        captions_cut = rows = 0
        series: dict[ImageSize, ShardSeries] = {}  # a few megabytes of each size are in memory
        try:
            for item in self.reader.read(block):
                image = decode(self.decoding, item)
                if isinstance(image, SkippedImage):
                    self.check(image)
                    skipped.append(image)
                    continue
                if image.size not in series:
                    series[image.size] = self._open_series(folder, block.prefix, image.size)
                series[image.size].append(self._row(image))
                captions_cut += image.caption_was_cut
                rows += 1
            parts = {size_name(*size): tuple(series[size].finish()) for size in sorted(series)}
        finally:
            for each in series.values():
                each.close()
        return BlockReceipt(
            block=block.number,
            rows=rows,
            parts=parts,
            left_out=dict(sorted(Counter[str](image.reason for image in skipped).items())),
            listed=tuple(describe(image) for image in skipped[:MOST_LISTED]),
            counts={CUT: captions_cut} if captions_cut else {},
            detail={SIDE: max((image.side for image in skipped), default=0)},
        )

    def _open_series(self, folder: Path, prefix: str, size: ImageSize) -> ShardSeries:
        columns = image_columns(size, self.caption_length, self.classes)
        part = folder / size_name(*size)
        part.mkdir(parents=True, exist_ok=True)
        return ShardSeries(part, prefix, columns, block_rows(sum(column.row_bytes for column in columns.values())))

    def _row(self, image: DecodedImage) -> dict[str, np.ndarray]:
        row: dict[str, np.ndarray] = {"image": image.pixels[None]}
        if self.caption_length:
            row[CAPTION] = encode_captions([image.caption], self.caption_length)
        if self.classes:
            assert image.label is not None, "a source with classes gives one to each image"
            row[LABEL] = np.array([self.classes.index(image.label)])
        return row

    @property
    def caption_length(self) -> int:
        """Bytes of a caption in its column; 0 without captions."""
        return self.decoding.caption_length if self.decoding.captions else 0

    def check(self, image: SkippedImage) -> None:
        """Raise RefusedSource where the options refuse to skip such an image."""
        if image.reason == "missing caption" and self.refuse_missing_caption:
            remedy = self.reader.annotations.remedy
            raise RefusedSource(f"{image.name} has {image.detail}; {remedy}, or give --missing-caption skip.")
        if image.reason == "unreadable" and self.refuse_unreadable:
            raise RefusedSource(
                f"{image.name} cannot be decoded ({image.detail}); replace it, or give --unreadable skip."
            )
        if image.reason in ("damaged file", "damaged line") and self.refuse_unreadable:
            raise RefusedSource(f"{image.name}: {image.detail}; correct it, or give --unreadable skip.")


def describe(image: SkippedImage) -> LeftOut:
    """Describe an image that is left out."""
    return LeftOut(place=image.name, reason=image.reason, detail=image.detail)


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


def describe_store(receipts: Sequence[BlockReceipt], parts: Sequence[str], rules: ImageRules) -> str:
    """Describe a store for people: `6 images with captions in 3 sizes`."""
    rows, classes = sum(receipt.rows for receipt in receipts), len(rules.classes)
    words = [f"{rows:,} images", "with captions" if rules.caption_length else ""]
    if classes:
        words.append(f"of {classes:,} class{'es' if classes > 1 else ''}")
    words.append(f"in {len(parts)} size{'s' if len(parts) > 1 else ''}")
    return " ".join(filter(None, words))


def describe_source(options: ImagesOptions, receipts: Sequence[BlockReceipt], parts: Sequence[str]) -> str:
    """Describe the origin of a store's images for people."""
    pixels = sum(3 * math.prod(_size(part)) * each.shard.rows for part in parts for each in shards_of(receipts, part))
    return (
        f"read from {visible_name(source_name(options.source))}; {pixels:,} bytes of decoded pixels, areas of at most "
        f"{options.resolution}x{options.resolution}"
    )
