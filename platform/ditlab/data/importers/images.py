"""Importer of images with captions, scaled to a few sizes by aspect ratio."""

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ditlab.data.images.aspect_buckets import AspectBuckets
from ditlab.data.images.decoding import DecodedImage, DecodingRules, Reason, SkippedImage, decode
from ditlab.data.images.feature_columns import FeatureColumns
from ditlab.data.images.sources import ImageSource, open_image_source
from ditlab.data.images.spool import ImageSpool
from ditlab.data.import_request import ImportRequest
from ditlab.data.processes import fitting_processes, in_processes
from ditlab.data.stores.bucket_writer import refuse_plain_store, write_buckets
from ditlab.data.stores.manifest import Source
from ditlab.data.stores.plain_names import folder_name
from ditlab.data.stores.written import WrittenStore
from ditlab.errors import UserError
from ditlab.spec.importing import ImagesOptions

OPTIONS = ImagesOptions

NOTED = 20
"""Skipped images named in the store's notes; its list names all."""
SKIPPED_NAME = "skipped.txt"
REASON_NAMES: dict[Reason, str] = {
    "missing_caption": "missing caption",
    "unreadable": "unreadable",
    "too_small": "too small",
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
    """Write one bucketed store: image uint8 (3, height, width) in [0, 255], caption uint8 (bytes of the longest,), and
    the features of the encoders that the options name (`FeatureColumns`).

    `AspectBuckets` gives each image its size. Images are decoded once, in processes, to pixels of that size, so that
    training decodes nothing; rows of one size keep the source's order, whatever the number of processes. Raises
    UserError for a damaged source, and for images that the options refuse to skip.
    """
    options = request.options
    rules = DecodingRules(_buckets(options), options.caption_length)
    source = open_image_source(options.source, options.image_column, options.caption_column)
    name = options.name or f"images-{folder_name(options.source.resolve().stem)}-{options.resolution}"
    refuse_plain_store(request.out / name)
    # a token has a byte at least, so this length cuts no caption a second time
    features = FeatureColumns.open(options.encode_text, options.encode_images, options.caption_length, options.patch)
    with ImageSpool(request.out / name, options.caption_length) as spool:
        summary = _decode(source, rules, spool, request)
        if not len(spool):
            raise _nothing_usable(options.source, summary)
        features.measure(spool.captions())
        lines = list(summary.lines())
        return [
            write_buckets(
                request.out / name,
                [spool.part(size, features, request.progress) for size in sorted(spool.rows)],
                name=name,
                description=f"{len(spool):,} images with captions in {len(spool.rows)} sizes",
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
    summary = DecodingSummary()
    with closing(_decoded(source, rules, request.options.processes)) as images:
        for done, image in enumerate(images, start=1):
            if isinstance(image, SkippedImage):
                _check_skip(image, source, request.options)
                summary.skipped.append(image)
            else:
                spool.add(image)
                summary.captions_cut += image.caption_was_cut
            request.progress("decoding", done, source.num, "images")
    return summary


def _buckets(options: ImagesOptions) -> AspectBuckets:
    step = options.step or 4 * options.patch
    longest = options.max_side or min(2 * options.resolution, max(1024, options.resolution))
    buckets = AspectBuckets(options.resolution, step, options.min_side or step, longest)
    if not buckets.sizes:
        raise UserError(
            f"--resolution={options.resolution} leaves no size: sides are multiples of --step={step} from "
            f"--min-side={buckets.min_side} to --max-side={longest}, and no area is above {options.resolution}^2; "
            "raise --resolution, or lower --step."
        )
    return buckets


def _decoded(
    source: ImageSource, rules: DecodingRules, processes: int | None
) -> Generator[DecodedImage | SkippedImage, None, None]:
    processes = processes or fitting_processes(sum(file.stat().st_size for file in source.files))
    work = partial(decode, rules)
    yield from map(work, source) if processes == 1 else in_processes(work, source, processes, "decodes")


def _check_skip(image: SkippedImage, source: ImageSource, options: ImagesOptions) -> None:
    """Raise UserError where the options refuse to skip such an image."""
    if image.reason == "missing_caption" and options.missing_caption == "refuse":
        raise UserError(
            f"{image.name} has {image.detail}; write one into {source.caption_place}, or give --missing-caption skip."
        )
    if image.reason == "unreadable" and options.unreadable == "refuse":
        raise UserError(f"{image.name} cannot be decoded ({image.detail}); replace it, or give --unreadable skip.")


def _nothing_usable(source: Path, summary: DecodingSummary) -> UserError:
    if not summary.skipped:
        return UserError(f"--source={source} holds no image; name files that hold some.")
    counts = ", ".join(f"{number:,} {word}" for word, number in summary.facts.items())
    return UserError(
        f"--source={source} holds no image that can be used ({counts}), the first being {next(summary.lines())}; name "
        "other files, or for small images lower --resolution and --step."
    )


def _note(options: ImagesOptions, spool: ImageSpool) -> str:
    return (
        f"read from {options.source.resolve().name}; {spool.pixel_bytes:,} bytes of decoded pixels, areas of at most "
        f"{options.resolution}x{options.resolution}"
    )
