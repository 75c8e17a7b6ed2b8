"""Sources of images with captions, cut into blocks and read as streams: image files, WebDataset tars, and tables.

Tables are Parquet, folders that the Hugging Face library `datasets` has saved, and MosaicML's MDS shards.
"""

import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Literal

from ditlab.data.images.annotations import REMEDIES, Annotations, read_captions
from ditlab.data.images.decoding import CAPTION_BYTES, IMAGE_SUFFIXES, CaptionedImage, most_image_bytes
from ditlab.data.import_blocks import InputBlock, block_bytes, group_files
from ditlab.data.processes import results_in_order
from ditlab.data.source_files import (
    BadRecord,
    SourceFile,
    list_source,
    open_source,
    read_source,
    visible_name,
    with_suffix,
)
from ditlab.data.sources.records import read_records, record_blocks, record_files
from ditlab.data.sources.tables import parquet_rows
from ditlab.errors import UserError, first_line
from ditlab.spec.importing import ImagesOptions
from ditlab.storage.plain_files import MIB

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
ROWS = 16
"""Rows of a table that are read at a time: an image each."""
AHEAD = 16
"""Files behind a URI that are read at once: each takes a request's latency."""
MEMBER_BYTES = 512 * MIB
"""Most bytes of a tar's member."""
PADDING_BYTES = 4 * MIB
"""Bytes behind an end mark that are looked at: writers pad to 10 KiB, or to the record of a tape."""
BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError)
"""Errors of Python's reader for what is no tar, or a damaged one."""


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

    Raises UserError for none, for several kinds of files, for rules they do not have, and for captions of other images.
    """
    source = options.source
    files = list_source(source, beside=(".txt",))
    images, tars = with_suffix(files, *IMAGE_SUFFIXES), with_suffix(files, ".tar")
    tables = [each for each in record_files(source, files) if each.kind in TABLES]
    found = {"images": images, "tar": tars} | {kind: [each for each in tables if each.kind == kind] for kind in TABLES}
    held = [kind for kind, files in found.items() if files]
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
        return _image_files(files, annotations, options)
    if kind == "tar":

        def labels_of(file: SourceFile) -> set[str]:
            insides = (PurePosixPath(visible_name(name)) for name, _ in _contents(file, [], headers=True))
            found = (annotations.label_of(each, f"{file.shown}: {each}") for each in insides if each.suffix != ".txt")
            return set(filter(None, found))

        labels: set[str] = set()
        if annotations.label is not None:
            with ThreadPoolExecutor(AT_ONCE if tars[0].is_remote else 1) as pool:
                labels = labels.union(*pool.map(labels_of, tars))
        blocks = [InputBlock(number, group, "tar") for number, group in enumerate(group_files(tars))]
        return ImageSource(annotations, blocks, None, tuple(sorted(labels)))
    num = None  # where it would take a request for each file
    if kind == "mds":
        num = sum(int(each.detail["samples"]) for each in tables)
    elif kind == "parquet" and not tables[0].file.is_remote:
        with suppress(BadRecord):
            num = sum(sum(parquet_rows(each.file)) for each in tables)
    blocks = record_blocks(tables, block_bytes(sum(each.file.size for each in tables)))
    return ImageSource(annotations, blocks, num, ())


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
    captions, damaged = read_captions(Path(chosen), options.caption_column) if caption == "lines" else ({}, [])
    return Annotations(caption, options.label_from, captions, remedy, damaged)


def _image_files(files: Sequence[SourceFile], annotations: Annotations, options: ImagesOptions) -> ImageSource:
    images = with_suffix(files, *IMAGE_SUFFIXES)
    # refuses images outside all folders before one is decoded
    labels = {annotations.label_of(PurePosixPath(file.shown), file.shown) for file in images}
    lines, names = annotations.lines, {file.shown for file in images}
    if unknown := [visible_name(name) for name in lines if name not in names]:
        more = f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
        raise UserError(
            f"--caption-from={options.caption_from} names {unknown[0]}{more}, which --source={options.source} does not "
            "hold; correct the paths, which begin below --source, or remove the lines."
        )
    texts = {file.stem: file for file in with_suffix(files, ".txt")} if annotations.caption == "txt" else {}
    blocks: list[InputBlock] = []
    for group in group_files(images):
        stems = dict.fromkeys(file.stem for file in group)
        captions = {file.shown: lines[file.shown] for file in group if file.shown in lines}
        beside = tuple(texts[stem] for stem in stems if stem in texts)
        blocks.append(InputBlock(len(blocks), group, "images", beside=beside, detail=captions or None))
    return ImageSource(replace(annotations, lines={}), blocks, len(images), tuple(sorted(filter(None, labels))))


def read_images(block: InputBlock, annotations: Annotations, options: ImagesOptions) -> Iterator[CaptionedImage]:
    """Iterate over a block's images, in the order of the source, with one item for all behind the damage of a file.

    Raises UserError for a column that is missing or holds something else, and for an image outside all class folders.
    """
    if block.kind == "tar":
        for file in block.files:
            yield from tar_images(file, annotations)
        return
    if block.kind == "images":
        yield from _read_image_files(block, annotations, most_image_bytes(options.max_pixels))
        return
    columns = {"--image-column": options.image_column}
    if annotations.caption != "none":
        columns["--caption-column"] = options.caption_column
    for record in read_records(block, columns, ROWS):
        name = ", ".join(filter(None, [record.file.shown, record.where]))
        if record.problem:
            yield CaptionedImage(name, None, None, problem=record.problem.reason, is_rest=record.is_rest)
            continue
        image, caption = (*record.values, None)[:2]
        if isinstance(image, dict) and "bytes" in image:
            image = image["bytes"]
        if isinstance(caption, str):
            caption = caption.encode(errors="surrogatepass")
        for flag, value, what, form in (
            ("--image-column", image, "image bytes", "bytes or of {bytes, path}"),
            ("--caption-column", caption, "text", "text"),
        ):
            if value is not None and not isinstance(value, bytes):
                raise UserError(
                    f"{record.file.place}: '{columns[flag]}' holds {type(value).__name__}, no {what}; give {flag} "
                    f"with a column of {form}."
                )
        yield CaptionedImage(name, image, caption)


def _read_image_files(block: InputBlock, annotations: Annotations, most_bytes: int) -> Iterator[CaptionedImage]:
    """Iterate over image files; the .txt file of a stem is that of all images of this stem."""
    beside = {file.stem: file for file in block.beside} if annotations.caption == "txt" else {}
    annotations = replace(annotations, lines=block.detail or {})

    def read(file: SourceFile) -> CaptionedImage:
        path, text, problem = PurePosixPath(file.shown), beside.get(file.stem), ""
        caption: bytes | Path | None = None
        image: bytes | Path | None = None
        try:
            # of a file of this machine the path: decoding reads what it needs of it
            if text:
                caption = read_source(text, CAPTION_BYTES) if text.is_remote else text.path
            image = read_source(file, most_bytes) if file.is_remote else file.path
        except OSError as error:
            problem = first_line(error)
        return annotations.annotate(path, str(path), image, caption, problem)

    if not block.files[0].is_remote:
        yield from map(read, block.files)
        return
    with ThreadPoolExecutor(AHEAD) as pool:
        yield from results_in_order(pool, read, block.files, AHEAD)


def tar_images(file: SourceFile, annotations: Annotations) -> Iterator[CaptionedImage]:
    """Iterate over the images of a tar, neighbours of one name up to its first dot; all behind a damage is one item."""
    damage: list[str] = []

    def key(member: tuple[str, object]) -> PurePosixPath:
        path = PurePosixPath(member[0])
        return path.parent / path.name.partition(".")[0]

    for _, group in groupby(_contents(file, damage), key):
        members = dict(group)
        texts = [members.pop(name) for name in list(members) if name.endswith(".txt")]
        beside = texts[0] if texts else None
        if damage and beside is None and annotations.caption == "txt":
            continue  # its caption lies behind the damage
        text = beside if isinstance(beside, bytes) else None
        for name, content in members.items():
            inside = PurePosixPath(visible_name(name))
            problem = f"its caption: {beside}" if isinstance(beside, str) else ""
            image = None if isinstance(content, str) else content
            problem = content if isinstance(content, str) else problem
            yield annotations.annotate(inside, f"{file.shown}: {inside}", image, text, problem)
    if damage:
        yield CaptionedImage(file.shown, None, None, problem=damage[0], is_rest=True)


def _contents(file: SourceFile, damage: list[str], headers: bool = False) -> Iterator[tuple[str, bytes | str]]:
    """Iterate over names and contents (or why they are not read; `headers`: empty) up to a damage, told in `damage`."""
    start: int | None = None
    mode: Literal["r:", "r|"] = "r:" if headers and not file.is_remote else "r|"
    try:
        with open_source(file) as source, tarfile.open(fileobj=source, mode=mode, tarinfo=StrictHeader) as tar:
            start = 0
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # all so far, which a stream has no use for
                name = PurePosixPath(member.name).name
                # all behind the first dot: `a.seg.png` is no image of its own but something about `a`
                extension = "" if name.startswith(".") else f".{name.partition('.')[2].lower()}"
                if member.isfile() and extension in (*IMAGE_SUFFIXES, ".txt"):
                    if headers:
                        yield member.name, b""
                    elif member.size > MEMBER_BYTES:
                        yield member.name, f"{member.size:,} bytes"
                    else:
                        content = tar.extractfile(member)
                        assert content is not None, member.name  # it is a regular file
                        yield member.name, content.read()
                start = tar.offset
            # a header of zeros leaves data behind the end mark, and so does a second tar behind the first
            if tar.fileobj is not None and tar.fileobj.read(PADDING_BYTES).strip(b"\0"):
                damage.append(f"the rest, from byte {tar.offset:,} on: it lies behind an end mark")
    except BROKEN as error:
        where = "no tar that can be read" if start is None else f"the rest, from byte {start:,} on"
        damage.append(f"{where}: {first_line(error)}")


class StrictHeader(tarfile.TarInfo):
    """Header of a member, for which a damaged one is an error: Python's own takes it for the end of the tar."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "StrictHeader":
        """Read the next header. Raises ReadError for one that is damaged, cut short, or missing before the end mark."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.EmptyHeaderError:  # type: ignore[attr-defined]
            raise tarfile.ReadError("it ends without its end mark") from None
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(first_line(error)) from error
