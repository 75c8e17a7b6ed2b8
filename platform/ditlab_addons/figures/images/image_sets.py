"""Sets of images outside of runs: their statistics by a published network, and the figures of one
against another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ditlab.data.images.pictures import BROKEN, IMAGE_SUFFIXES, TooManyPixels, open_picture
from ditlab.data.loading.held_out import hold_out_blocks
from ditlab.data.named_stores import open_named_store
from ditlab.data.permutations import keyed_permutation
from ditlab.data.source_files import (
    UNREADABLE,
    ZIP,
    SourceFile,
    list_source,
    read_source,
    with_suffix,
)
from ditlab.data.sources.records import files_level
from ditlab.data.stores.bucketed_store import holds_store
from ditlab.data.stores.receipt import make_receipt
from ditlab.data.stores.view import View
from ditlab.errors import UserError, first_line
from ditlab.home import Home, resolve_user_file
from ditlab.progress import Progress, ignore_progress
from ditlab.quality.images import RANGE, image_batches
from ditlab.selection import Selection
from ditlab.spec.engine import ImageFeatures
from ditlab_addons.figures.images.published import (
    BATCH,
    ORDER,
    PublishedFigures,
    Sizes,
    Statistics,
    noted,
    read_npz,
)
from ditlab_models.contract import BatchField
from ditlab_models.intervals import Estimate, doubtful_intervals
from ditlab_models.pixels import NotFiniteError, to_bytes

NPZ = ".npz"


@dataclass(frozen=True)
class MeasuredImages:
    """Statistics of a set of images, and its figures against another one."""

    num: int
    statistics: Statistics
    figures: dict[str, Estimate]
    """Figures by name; empty without another set."""
    notes: list[str]
    """Lines on what of folders was measured, how their pictures were changed, and what the other
    set does not say of itself or has otherwise.
    """


def measure_images(
    place: str,
    features: ImageFeatures,
    against: str | None,
    home: Home,
    device: torch.device,
    progress: Progress = ignore_progress,
) -> MeasuredImages:
    """Measure a store's images, a folder's pictures or an .npz file's `arr_0`, against those of
    another place.

    `against` may be an .npz file of statistics. Raises UserError for places and weights that cannot
    be used.
    """
    if against is not None and against.endswith(NPZ):
        features = features.model_copy(update={"reference": against})
    figures = PublishedFigures(features, home)
    figures.check()
    notes: list[str] = []

    def gathered(name: str, sizes: Sizes) -> Tensor:
        found: list[Tensor] = []
        num = 0
        for each in figures.features(noted(_images(name, home, notes), sizes), device):
            found.append(each)
            num += len(each)
            progress(f"measuring {name}", num, None, "images")
        if num < 2:
            raise UserError(f"{name} holds {num} images, and statistics need two; name more.")
        # places may be sorted by class
        return torch.cat(found)[torch.from_numpy(keyed_permutation(ORDER, num))]

    own_sizes = Sizes()
    own = gathered(place, own_sizes)
    found = dict[str, Estimate]()
    if against is not None:
        is_file = against.endswith(NPZ)
        if is_file:
            other = figures.reference("", list, device)
        else:
            sizes = Sizes()
            other = Statistics.of([gathered(against, sizes)])
            other = other.made_with(figures.network_digest, sizes)
        notes += figures.doubts(other, own_sizes)
        found = figures.compare(other, own)
        notes += filter(None, (figures.bias(found, *own.shape), doubtful_intervals(found)))
    statistics = Statistics.of([own]).made_with(figures.network_digest, own_sizes)
    return MeasuredImages(len(own), statistics, found, notes)


def _images(place: str, home: Home, notes: list[str]) -> Iterator[Tensor]:
    """Yield images of a place in batches of one size, uint8 (num, channels, H, W); `notes` takes
    lines on those of a folder. Raises UserError.
    """
    path = resolve_user_file(place)
    if path.suffix == NPZ:
        arrays = read_npz(path, place)
        if "arr_0" not in arrays:
            raise UserError(
                f"{place} holds statistics and no images (arr_0); name a file with images."
            )
        yield from torch.from_numpy(arrays["arr_0"]).permute(0, 3, 1, 2).split(BATCH)
    elif listing := _listing(path):
        yield from _pictures(place, listing, notes)
    else:
        yield from _stored_images(place, home, notes)


def _stored_images(place: str, home: Home, notes: list[str]) -> Iterator[Tensor]:
    """Yield a store's images as `_images` does."""
    store = open_named_store("PLACE", place, home)
    whole = View(store, hold_out_blocks(store, 0.0)[0], place)
    views = [whole.in_part(number) for number in range(len(store.parts))]
    for number, view in enumerate(views):
        columns = {
            name: each
            for name, each in view.columns.items()
            if len(each.shape) == 3 and each.value_range
        }
        if not columns:
            raise UserError(
                f"{place} holds no column of images; name a store, folder or .npz file of images."
            )
        name, *others = columns
        column = columns[name]
        if others and not number:
            notes.append(f"{place}: measured {Selection(f'column {name}', tuple(others))}")
        field = BatchField(name, column.shape, "float32", value_range=RANGE)
        try:
            yield from map(to_bytes, image_batches(view, field, torch.device("cpu")))
        except NotFiniteError:
            raise UserError(
                f"{place} holds images with values that are not finite (NaN) in column "
                f"{name}; import them again without these."
            ) from None


def _listing(path: Path) -> list[SourceFile]:
    """List a folder or zip with pictures; empty for another place, also a store's. Raises
    UserError.
    """
    listing: list[SourceFile] = []
    is_zip = path.suffix.lower() == ZIP and path.is_file()
    if is_zip or (path.is_dir() and not holds_store(path)):
        listing = list_source(str(path))
    return listing if _picture_files(listing) else []


def _picture_files(listing: Sequence[SourceFile]) -> list[SourceFile]:
    return with_suffix([file for file in listing if not file.set_aside], *IMAGE_SUFFIXES)


def _pictures(place: str, listing: Sequence[SourceFile], notes: list[str]) -> Iterator[Tensor]:
    """Yield the pictures of a folder, with those of the folders below it, as an import reads them.
    Raises UserError.
    """
    pictures = _picture_files(listing)
    level, left_out = files_level(listing, {"images": pictures})
    changes = Counter[str]()
    for _, same in groupby(
        (_picture(each, changes) for each in pictures), lambda picture: picture.shape
    ):
        while batch := list(islice(same, BATCH)):
            yield torch.cat(batch)
    changed = {what: number for what, number in changes.items() if number}
    notes += [f"{place}: {line}" for line in make_receipt([level], left_out, changed).lines()]


def _picture(file: SourceFile, changes: Counter[str]) -> Tensor:
    """Read a picture as uint8, (1, 3, H, W), and count what was changed. Raises UserError."""
    try:
        with open_picture(file.path if file.has_path else read_source(file)) as picture:
            pixels = torch.from_numpy(np.asarray(picture.read()).copy())
    except (TooManyPixels, *BROKEN, *UNREADABLE) as error:
        raise UserError(f"{file.place} cannot be read ({first_line(error)}); remove it.") from error
    changes.update(picture.changes)
    return pixels.permute(2, 0, 1)[None]
