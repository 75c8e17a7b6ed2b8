"""Sets of images outside of runs: their statistics by a published network, and the figures of one
against another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ditlab.data.images.decoding import BROKEN, TooManyPixels, in_rgb, open_picture
from ditlab.data.loading.held_out import hold_out_blocks
from ditlab.data.named_stores import open_named_store
from ditlab.data.permutations import keyed_permutation
from ditlab.data.stores.view import View
from ditlab.errors import UserError, first_line
from ditlab.home import Home, resolve_user_file
from ditlab.intervals import Interval
from ditlab.progress import Progress, ignore_progress
from ditlab.quality.images import RANGE, image_batches
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
from ditlab_models.pixels import NotFiniteError, to_bytes

NPZ = ".npz"
PICTURES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class MeasuredImages:
    """Statistics of a set of images, and its figures against another one."""

    num: int
    statistics: Statistics
    figures: dict[str, Interval]
    """Figures by name; empty without another set."""
    notes: tuple[str, ...] = ()
    """Sentences on what is not known of the other set, or differs."""


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

    def gathered(name: str, sizes: Sizes) -> Tensor:
        found: list[Tensor] = []
        num = 0
        for each in figures.features(noted(_images(name, home), sizes), device):
            found.append(each)
            num += len(each)
            progress(f"measuring {name}", num, None, "images")
        if num < 2:
            raise UserError(f"{name} holds {num} images, and statistics need two; name more.")
        # places may be sorted by class
        return torch.cat(found)[torch.from_numpy(keyed_permutation(ORDER, num))]

    own_sizes = Sizes()
    own = gathered(place, own_sizes)
    found = dict[str, Interval]()
    notes: list[str] = []
    if against is not None:
        is_file = against.endswith(NPZ)
        if is_file:
            other = figures.reference("", list, device)
        else:
            sizes = Sizes()
            other = Statistics.of([gathered(against, sizes)])
            other = other.made_with(figures.network_digest, sizes)
        notes = figures.doubts(other, own_sizes)
        found = figures.compare(other, own)
    statistics = Statistics.of([own]).made_with(figures.network_digest, own_sizes)
    return MeasuredImages(len(own), statistics, found, tuple(notes))


def _images(place: str, home: Home) -> Iterator[Tensor]:
    """Yield images of a place in batches of one size, uint8 (num, channels, H, W). Raises
    UserError.
    """
    path = resolve_user_file(place)
    if path.suffix == NPZ:
        arrays = read_npz(path, place)
        if "arr_0" not in arrays:
            raise UserError(
                f"{place} holds statistics and no images (arr_0); name a file with images."
            )
        yield from torch.from_numpy(arrays["arr_0"]).permute(0, 3, 1, 2).split(BATCH)
    elif path.is_dir() and (
        pictures := sorted(each for each in path.iterdir() if each.suffix.lower() in PICTURES)
    ):
        for _, same in groupby(map(_picture, pictures), attrgetter("shape")):
            while batch := list(islice(same, BATCH)):
                yield torch.cat(batch)
    else:
        yield from _stored_images(place, home)


def _stored_images(place: str, home: Home) -> Iterator[Tensor]:
    """Yield a store's images as `_images` does."""
    store = open_named_store("PLACE", place, home)
    whole = View(store, hold_out_blocks(store, 0.0)[0], place)
    for view in (whole.in_part(number) for number in range(len(store.parts))):
        columns = {
            name: each
            for name, each in view.columns.items()
            if len(each.shape) == 3 and each.value_range
        }
        if not columns:
            raise UserError(
                f"{place} holds no column of images; name a store, folder or .npz file of images."
            )
        name, column = next(iter(columns.items()))
        field = BatchField(name, column.shape, "float32", value_range=RANGE)
        try:
            yield from map(to_bytes, image_batches(view, field, torch.device("cpu")))
        except NotFiniteError:
            raise UserError(
                f"{place} holds images with values that are not finite (NaN) in column "
                f"{name}; import them again without these."
            ) from None


def _picture(path: Path) -> Tensor:
    """Read a picture as uint8, (1, 3, H, W)."""
    try:
        with open_picture(path) as image:
            return torch.from_numpy(np.asarray(in_rgb(image)).copy()).permute(2, 0, 1)[None]
    except (TooManyPixels, *BROKEN) as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}); remove it.") from error
