"""Import of images with captions, by blocks: plan, shards, manifest."""

import hashlib
import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ditlab.data.block_imports.execution import ProcessExecutor
from ditlab.data.block_imports.listing import source_name
from ditlab.data.block_imports.plan import ImportPlan, partial_folder
from ditlab.data.block_imports.runner import RefusedSource, run_blocks, unfinished_import
from ditlab.data.images.aspect_buckets import AspectBuckets, ImageSize
from ditlab.data.images.block_rules import SIDE, ImageRules, describe
from ditlab.data.images.bucket_shards import image_columns
from ditlab.data.images.decoding import DecodingRules, SkippedImage
from ditlab.data.images.encoding import EncoderChoice, open_features
from ditlab.data.images.finishing import EncodedParts, encoded_parts, finish_parts
from ditlab.data.images.import_summary import ImportSummary, describe_source, describe_store
from ditlab.data.images.reading import ImageReader
from ditlab.data.images.sources import ImageSource, SourceRules, open_image_source
from ditlab.data.images.table_files import TableColumns
from ditlab.data.import_request import ImportRequest
from ditlab.data.stores.bucket_writer import place_buckets, refuse_plain_store
from ditlab.data.stores.manifest import Source
from ditlab.data.stores.plain_names import folder_name
from ditlab.data.stores.written import WrittenStore
from ditlab.errors import UserError
from ditlab.spec.importing import SMALLEST_RESOLUTION, ImagesOptions

if TYPE_CHECKING:  # torch, which an importer's --help can do without
    from ditlab.data.stores.store import Store

NOTED = 20
"""Skipped images named in the store's notes; its list names more."""
LISTED = 100_000
"""Skipped images in a store's list."""
SKIPPED_NAME = "skipped.txt"
IRRELEVANT = {"source", "processes", "name", "encode_text", "encode_images"}
"""Options that do not change the images of a store; the source enters by its listing."""


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
    path: Path, stores: "Mapping[str, Store]", summary: ImportSummary, rules: ImageRules, source: Source
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
