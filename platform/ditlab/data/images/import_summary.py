"""Summary of an import of images: what was left out and why, in words and numbers."""

import math
from collections.abc import Iterable, Sequence

from ditlab.data.block_imports.listing import source_name
from ditlab.data.block_imports.receipt import BlockReceipt, LeftOut, count_left_out, shards_of, total_counts
from ditlab.data.images.block_rules import REASON_NAMES, ImageRules, missing_caption
from ditlab.data.images.decoding import EMPTY_CAPTION
from ditlab.data.source_files import visible_name
from ditlab.spec.importing import ImagesOptions


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
            detail = "its caption may stand in a damaged line"
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
