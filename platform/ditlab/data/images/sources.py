"""Sources of images with captions, as blocks: image files, WebDataset tars, Parquet, `datasets` folders, MDS."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ditlab.data.block_imports.plan import InputBlock, block_bytes, group_files
from ditlab.data.block_imports.source_files import BadRecord, SourceFile, SourceListing, list_source
from ditlab.data.images.annotations import REMEDIES, Annotations, CaptionLines, check_known, read_captions
from ditlab.data.images.decoding import IMAGE_SUFFIXES
from ditlab.data.images.tar_files import tar_labels
from ditlab.data.sources.records import RecordFile, record_blocks, record_files
from ditlab.data.sources.tables import parquet_rows
from ditlab.errors import UserError
from ditlab.spec.importing import ImagesOptions

LINES = ".jsonl"
"""Ending of files of captions."""
KINDS = {
    "images": "images",
    "tar": ".tar files",
    "parquet": ".parquet files",
    "arrow": ".arrow files",
    "mds": "MDS shards",
}
"""Kinds of blocks, and their names for people."""
TABLES = ("parquet", "arrow", "mds")
"""Kinds whose captions lie in a column."""
AT_ONCE = 16
"""Files behind a URI whose beginnings or ends are read at once."""


@dataclass(frozen=True)
class ImageSource:
    """Source of images, cut into blocks."""

    annotations: Annotations
    """Rules for captions and classes; of image files, without the captions of each, which its block has."""
    blocks: Sequence[InputBlock]
    num: int | None
    """Number of images; None where it is unknown before they are read."""
    classes: Sequence[str]
    """Names of all classes, sorted: a class's number is its place here."""


def open_image_source(options: ImagesOptions) -> ImageSource:
    """Cut the images of a file, folder, pattern or URI into blocks, a function of the source alone.

    Raises UserError where there are none, for a folder of several kinds of files, for rules that such files do not
    have, and for captions of other images.
    """
    source = options.source
    listing = list_source("--source", source, beside=(".txt",))
    files = {"images": listing.of(*IMAGE_SUFFIXES), "tar": listing.of(".tar")}
    tables = [each for each in record_files("--source", listing) if each.kind in TABLES]
    held = [kind for kind, found in files.items() if found]
    held += [kind for kind in TABLES if any(each.kind == kind for each in tables)]
    if not held:
        raise UserError(
            f"--source={source} holds no {', '.join(IMAGE_SUFFIXES)}, .tar or .parquet file, no saved datasets folder "
            "and no MDS index; name one that does."
        )
    if len(held) > 1:
        names = " and ".join(KINDS[kind] for kind in held)
        raise UserError(f"--source={source} holds {names}; name a folder of one kind, or a single file.")
    (kind,) = held
    annotations = _annotations(options, kind)
    if kind == "images":
        return _image_files(listing, files[kind], annotations, options)
    if kind == "tar":
        return _tars(files[kind], annotations)
    blocks = record_blocks(tables, block_bytes(sum(each.file.size for each in tables)))
    return ImageSource(annotations, blocks, _num_records(tables), ())


def _annotations(options: ImagesOptions, kind: str) -> Annotations:
    """Read the rules for a kind of source, whose captions lie in a column or in .txt files."""
    default = "column" if kind in TABLES else "txt"
    chosen = options.caption_from or ("none" if options.label_from else default)
    caption = "lines" if chosen.endswith(LINES) else chosen
    if (caption == "column") != (default == "column") and caption != "none":
        right = "column, or none" if default == "column" else f"txt, folder, stem, FILE{LINES} or none"
        what = KINDS[kind] if default == "column" else "no .parquet files"
        raise UserError(f"--caption-from={chosen}: --source={options.source} holds {what}; give {right}.")
    if options.label_from and default == "column":
        raise UserError(
            f"--label-from={options.label_from}: --source={options.source} holds {KINDS[kind]}; leave it out."
        )
    remedy = REMEDIES.get(caption, "").format(lines=chosen, column=options.caption_column)
    if kind == "tar" and caption == "txt":
        remedy = "write one into a .txt member of the same key beside it"
    lines = read_captions(Path(chosen), options.caption_column) if caption == "lines" else CaptionLines({}, ())
    return Annotations(caption, options.label_from, lines.captions, remedy, lines.damaged)


def _image_files(
    listing: SourceListing, images: Sequence[SourceFile], annotations: Annotations, options: ImagesOptions
) -> ImageSource:
    # refuses images outside all folders before one is decoded
    labels = {annotations.label_of(PurePosixPath(file.shown), file.shown) for file in images}
    if annotations.caption == "lines":
        check_known(Path(str(options.caption_from)), annotations.lines, {file.shown for file in images}, listing.source)
    texts = {file.stem: file for file in listing.of(".txt")} if annotations.caption == "txt" else {}
    blocks: list[InputBlock] = []
    for group in group_files(images):
        stems = dict.fromkeys(file.stem for file in group)
        captions = {file.shown: annotations.lines[file.shown] for file in group if file.shown in annotations.lines}
        beside = tuple(texts[stem] for stem in stems if stem in texts)
        blocks.append(InputBlock(len(blocks), group, "images", beside=beside, detail=captions or None))
    return ImageSource(replace(annotations, lines={}), blocks, len(images), _named(labels))


def _tars(tars: Sequence[SourceFile], annotations: Annotations) -> ImageSource:
    blocks = [InputBlock(number, group, "tar") for number, group in enumerate(group_files(tars))]
    labels: set[str] = set()
    if annotations.label is not None:
        with ThreadPoolExecutor(AT_ONCE if tars[0].is_remote else 1) as pool:
            labels = labels.union(*pool.map(lambda file: tar_labels(file, annotations), tars))
    return ImageSource(annotations, blocks, None, _named(labels))


def _num_records(tables: Sequence[RecordFile]) -> int | None:
    """Return the number of rows, where the source says so; None where it is not worth a request for each file."""
    if tables[0].kind == "mds":
        return sum(int(each.detail["samples"]) for each in tables)
    if tables[0].kind == "arrow" or tables[0].file.is_remote:
        return None
    try:
        return sum(sum(parquet_rows(each.file)) for each in tables)
    except BadRecord:
        return None


def _named(labels: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted(label for label in labels if label))
