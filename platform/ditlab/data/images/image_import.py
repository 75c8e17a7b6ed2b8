"""Importer of images with captions, scaled to a few sizes by aspect ratio."""

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ditlab.data.images.aspect_buckets import AspectBuckets
from ditlab.data.images.decoding import DecodedImage, DecodingRules, Reason, SkippedImage, decode
from ditlab.data.images.feature_columns import FeatureColumns
from ditlab.data.images.sources import ImageSource, SourceRules, open_image_source
from ditlab.data.images.spool import ImageSpool
from ditlab.data.import_request import ImportRequest
from ditlab.data.processes import fitting_processes, in_processes
from ditlab.data.source_files import real_path, visible_name
from ditlab.data.stores.bucket_writer import refuse_plain_store, write_buckets
from ditlab.data.stores.manifest import Source
from ditlab.data.stores.plain_names import folder_name
from ditlab.data.stores.written import WrittenStore
from ditlab.errors import UserError
from ditlab.spec.importing import SMALLEST_RESOLUTION, ImagesOptions

OPTIONS = ImagesOptions

NOTED = 20
"""Skipped images named in the store's notes; its list names all."""
SKIPPED_NAME = "skipped.txt"
REASON_NAMES: dict[Reason, str] = {
    "missing_caption": "missing caption",
    "unreadable": "unreadable",
    "too_small": "too small",
    "too_large": "too large",
    "damaged_file": "damaged file",
    "damaged_line": "damaged line",
}
"""Names of the counts in a store's facts."""


@dataclass
class DecodingSummary:
    """Images left out and captions cut."""

    skipped: list[SkippedImage] = field(default_factory=list)
    captions_cut: int = 0

    @property
    def facts(self) -> dict[str, int]:
        """Counts above 0, by name."""
        reasons = Counter(REASON_NAMES[each.reason] for each in self.skipped)
        return dict(sorted(reasons.items())) | ({"captions cut": self.captions_cut} if self.captions_cut else {})

    def lines(self) -> Iterator[str]:
        """Iterate over lines for people, one for each skipped image."""
        return (f"{each.name}: {REASON_NAMES[each.reason]} ({each.detail})" for each in self.skipped)


def run(request: ImportRequest[ImagesOptions]) -> list[WrittenStore]:
    """Write one bucketed store: image uint8 (3, height, width) in [0, 255], caption uint8 (bytes of the longest,) where
    they have captions, label int64 where they have classes, and the features of encoders (`FeatureColumns`).

    `AspectBuckets` gives each image its size. Images are decoded once, in processes, to pixels of that size, so that
    training decodes nothing; rows of one size keep the source's order, whatever the number of processes. What is
    damaged costs itself alone. Raises UserError for a source without a usable image, and for what the options refuse
    to skip.
    """
    options = request.options
    buckets = _buckets(options)
    source = open_image_source(
        options.source,
        SourceRules(options.image_column, options.caption_column, options.caption_from, options.label_from),
    )
    has_captions = source.annotations.caption != "none"
    if options.encode_text and not has_captions:
        raise UserError(f"--encode-text={options.encode_text} needs captions; give --caption-from, or leave it out.")
    rules = DecodingRules(buckets, options.caption_length, has_captions, options.max_pixels)
    name = options.name or f"images-{folder_name(real_path(options.source).stem)}-{options.resolution}"
    refuse_plain_store(request.out / name)
    # a token has a byte at least, so this length cuts no caption a second time
    features = FeatureColumns.open(options.encode_text, options.encode_images, options.caption_length, options.patch)
    with ImageSpool(request.out / name, options.caption_length if has_captions else 0) as spool:
        summary = _decode(source, rules, spool, request)
        if not len(spool):
            raise _nothing_usable(options, summary)
        if has_captions:
            features.measure(spool.captions())
        lines = list(summary.lines())
        return [
            write_buckets(
                request.out / name,
                [spool.part(size, features, request.progress) for size in sorted(spool.rows)],
                name=name,
                description=_description(spool, has_captions),
                source=Source(kind="images", license="not stated", note=_note(options, spool)),
                facts=summary.facts,
                notes=lines[:NOTED],
                files={SKIPPED_NAME: "".join(f"{line}\n" for line in lines).encode()} if lines else {},
            )
        ]


def _decode(
    source: ImageSource, rules: DecodingRules, spool: ImageSpool, request: ImportRequest[ImagesOptions]
) -> DecodingSummary:
    """Decode all images of a source into the spool."""
    damaged = source.annotations.damaged
    summary = DecodingSummary([SkippedImage(line.place, "damaged_line", line.reason) for line in damaged])
    for line in summary.skipped:
        _check_skip(line, source, request.options)
    unexplained = len(damaged)
    with closing(_decoded(source, rules, request.options.processes)) as images:
        for done, image in enumerate(images, start=1):
            if isinstance(image, SkippedImage):
                if image.reason == "missing_caption" and not image.is_empty and unexplained:
                    unexplained -= 1
                    image = replace(image, reason="unreadable", detail="its caption may stand in a damaged line")
                _check_skip(image, source, request.options)
                spool.see(image.label)
                summary.skipped.append(image)
            else:
                spool.add(image)
                summary.captions_cut += image.caption_was_cut
            request.progress("decoding", done, source.num, "images")
    return summary


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


def _decoded(
    source: ImageSource, rules: DecodingRules, processes: int | None
) -> Generator[DecodedImage | SkippedImage, None, None]:
    processes = processes or fitting_processes(sum(map(_size, source.files)))
    work = partial(decode, rules)
    yield from map(work, source) if processes == 1 else in_processes(work, source, processes, "decodes")


def _check_skip(image: SkippedImage, source: ImageSource, options: ImagesOptions) -> None:
    """Raise UserError where the options refuse to skip such an image."""
    if image.reason == "missing_caption" and options.missing_caption == "refuse":
        raise UserError(
            f"{image.name} has {image.detail}; {source.annotations.remedy}, or give --missing-caption skip."
        )
    if image.reason == "unreadable" and options.unreadable == "refuse":
        raise UserError(f"{image.name} cannot be decoded ({image.detail}); replace it, or give --unreadable skip.")
    if image.reason in ("damaged_file", "damaged_line") and options.unreadable == "refuse":
        raise UserError(f"{image.name}: {image.detail}; mend it, or give --unreadable skip.")


def _size(file: Path) -> int:
    """Return a file's size in bytes; 0 where it leads nowhere."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _nothing_usable(options: ImagesOptions, summary: DecodingSummary) -> UserError:
    source = options.source
    if not summary.skipped:
        return UserError(f"--source={source} holds no image; name files that hold some.")
    counts = ", ".join(f"{number:,} {word}" for word, number in summary.facts.items())
    remedy = "name other files"
    side = max((image.side for image in summary.skipped), default=0)
    if side >= SMALLEST_RESOLUTION:
        remedy += f", or give --resolution {side} --patch {_fitting_patch(side)}"
    return UserError(
        f"--source={source} holds no image that can be used ({counts}), the first being {next(summary.lines())}; "
        f"{remedy}."
    )


def _description(spool: ImageSpool, has_captions: bool) -> str:
    parts = [f"{len(spool):,} images", "with captions" if has_captions else ""]
    if spool.classes:
        parts.append(f"of {len(spool.classes):,} class{'es' if len(spool.classes) > 1 else ''}")
    parts.append(f"in {len(spool.rows)} size{'s' if len(spool.rows) > 1 else ''}")
    return " ".join(filter(None, parts))


def _note(options: ImagesOptions, spool: ImageSpool) -> str:
    return (
        f"read from {visible_name(real_path(options.source).name)}; {spool.pixel_bytes:,} bytes of decoded pixels, "
        f"areas of at most {options.resolution}x{options.resolution}"
    )
