"""Rules by which a block of images becomes shards: decoding, scaling, what is left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.block_imports.receipt import MOST_LISTED, BlockReceipt, LeftOut, count_left_out
from ditlab.data.block_imports.runner import RefusedSource
from ditlab.data.images.bucket_shards import BucketShards
from ditlab.data.images.decoding import DecodingRules, Reason, SkippedImage, decode
from ditlab.data.images.reading import ImageReader

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
            raise RefusedSource(f"{image.name}: {image.detail}; mend it, or give --unreadable skip.")


def missing_caption(name: str, detail: str, remedy: str) -> RefusedSource:
    """Return the error for an image without a caption."""
    return RefusedSource(f"{name} has {detail}; {remedy}, or give --missing-caption skip.")


def describe(image: SkippedImage) -> LeftOut:
    """Describe an image that is left out."""
    return LeftOut(place=image.name, reason=REASON_NAMES[image.reason], detail=image.detail)
