"""Figures of the field on features of published networks (`evaluation.features`), and their
reference statistics.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from ditlab.data.permutations import keyed_permutation
from ditlab.data.splits import DataSplits
from ditlab.encoders.checkpoint import encoder_digest
from ditlab.errors import UserError, first_line
from ditlab.home import Home, resolve_user_file
from ditlab.intervals import Interval
from ditlab.progress import ignore
from ditlab.quality.features import moments
from ditlab.quality.figures import ComparedSamples, QualityFigures
from ditlab.quality.images import to_bytes
from ditlab.quality.text import draws_text
from ditlab.spec.engine import ImageFeatures
from ditlab.spec.experiment import Experiment
from ditlab.storage.files import write_durably
from ditlab.storage.plain_files import open_regular_file, read_plain
from ditlab.weights.files import WeightFiles
from ditlab_addons.figures.images import estimates
from ditlab_addons.figures.networks.embeddings import ImageEmbedder

VERSION = 1
"""Version of everything that decides the figures beside weights and images: numbers of two versions
do not compare.
"""
FIGURES = {
    "inception": ("fid", "kid", "precision", "recall", "density", "coverage"),
    "dinov2": ("fd_dinov2", "mmd_dinov2"),
    "clip": ("cmmd",),
}
"""Figures by kind of features, the Frechet distance first."""
CLIP_SCORE = "clip_score"
ARRAYS = ("mu", "sigma", "features", "arr_0")
"""Arrays of an .npz file of statistics, and that of images."""
LARGEST_ROWS = 5_000
"""Reference images whose features are kept one by one; mean and covariance are of all."""
UNBIASED_FROM = 5
"""Images a feature below which a Frechet distance is warned of: its bias is then more than about a
twentieth of the features' variance (docs/addons/figures.md)."""
BATCH = 64  # images at once
ORDER = "ditlab.quality"
"""Name of the order that images of a place are taken in."""
LARGEST_FILE = 1 << 30
"""Most bytes of kept statistics: those of 2,048 features take 75 MB."""


@dataclass(frozen=True)
class Statistics:
    """Statistics of the features of some images."""

    mu: Tensor
    """Mean, (width,), float64."""
    sigma: Tensor
    """Unbiased covariance, (width, width), float64."""
    features: Tensor
    """Features of the first images, (at most LARGEST_ROWS, width), float32; (0, width) where only
    moments are known.
    """

    @classmethod
    def of(cls, batches: Iterable[Tensor]) -> Statistics:
        """Gather the statistics of features given in batches, at least two rows."""
        total = products = None
        num = 0
        rows = list[Tensor]()
        kept = 0
        for batch in batches:
            if kept < LARGEST_ROWS:
                rows.append(batch[: LARGEST_ROWS - kept].float().cpu())
                kept += len(rows[-1])
            batch = batch.double()
            num += len(batch)
            if total is None or products is None:
                total = batch.sum(0)
                products = batch.T @ batch
            else:
                total = total + batch.sum(0)
                products = products + batch.T @ batch
        assert total is not None and products is not None, "no images"
        mu = total / num
        if num == kept:  # without the cancellation of sums
            features = torch.cat(rows)
            return cls(*moments(features.double()), features)
        return cls(mu.cpu(), ((products - num * mu.outer(mu)) / (num - 1)).cpu(), torch.cat(rows))

    def to_npz(self) -> bytes:
        """Content of a file in the layout of ADM's reference statistics: `mu`, `sigma`; beside them
        `features`.
        """
        content = BytesIO()
        np.savez(
            content, mu=self.mu.numpy(), sigma=self.sigma.numpy(), features=self.features.numpy()
        )
        return content.getvalue()


def features_named(fields: Mapping[str, str]) -> ImageFeatures:
    """Return the spec of a network by its fields. Raises UserError for values that it refuses."""
    try:
        return ImageFeatures.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors()[0]
        name = first["loc"][0]
        value = first["input"]
        raise UserError(
            f"--{name} {value}: {first['msg'].removeprefix('Value error, ')}; correct it."
        ) from None


def npz_arrays(path: Path, name: str) -> list[str]:
    """Return which of `ARRAYS` an .npz file holds; none is read. Raises UserError, naming the file
    as `name`.
    """
    with _opened(path, name) as content:
        found = [key for key in ARRAYS if key in content.files]
    if "arr_0" not in found and not {"mu", "sigma"} <= set(found):
        raise UserError(
            f"{name} holds neither images (arr_0) nor statistics (mu, sigma); name a file that "
            "does."
        )
    return found


def read_npz(path: Path, name: str) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file that `npz_arrays` names, and raise as it does. Nothing is
    unpickled.
    """
    names = npz_arrays(path, name)
    with _opened(path, name) as content:
        found = {key: content[key] for key in names}
    images = found.get("arr_0")
    if images is not None and (
        images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3)
    ):
        raise UserError(
            f"{name} holds arr_0 of {images.dtype} {images.shape}, and images are uint8 (num, "
            "height, width, 3); write them so."
        )
    mu = found.get("mu")
    if mu is not None and (mu.ndim != 1 or found["sigma"].shape != 2 * mu.shape):
        raise UserError(
            f"{name} holds mu of {mu.shape} and sigma of {found['sigma'].shape}, which do not "
            "fit; name a whole file."
        )
    return found


@contextmanager
def _opened(path: Path, name: str) -> Iterator[Any]:
    try:
        with (
            open_regular_file(path, follow=True) as file,
            np.load(file, allow_pickle=False) as content,
        ):
            yield content
    except (
        OSError,
        ValueError,
        EOFError,
        zipfile.BadZipFile,
        KeyError,
        AttributeError,
        TypeError,
    ) as error:
        raise UserError(
            f"{name} cannot be read ({first_line(error)}); name an .npz file of plain arrays."
        ) from None


@dataclass
class PublishedFigures(QualityFigures):
    """Figures by one network of `evaluation.features`. Nothing is read before it is used."""

    spec: ImageFeatures
    home: Home
    _statistics: Statistics | None = field(default=None, init=False)
    """Reference statistics of the first measurement."""

    @classmethod
    def of(
        cls, experiment: Experiment, data: DataSplits, home: Home | None
    ) -> list[PublishedFigures]:
        """Return the figures on images by each network that is named."""
        if draws_text(experiment):
            return []
        return [
            cls(each, home or Home.from_environment()) for each in experiment.evaluation.features
        ]

    def shape_problem(self, shape: tuple[int, ...]) -> str:
        """Return a clause on images that are neither grey nor RGB."""
        channels = shape[0] if shape else 0
        if channels in (1, 3):
            return ""
        return (
            f"images of {channels} channels are neither grey nor RGB, which "
            "evaluation.features needs"
        )

    @cached_property
    def files(self) -> WeightFiles:
        """Files of its weights. Raises UserError where they are not there, or have another hash."""
        place = resolve_user_file(self.spec.weights)
        if not place.exists():
            place = self.home.caches / "features" / self.spec.weights
        files = WeightFiles.find(str(place), "evaluation.features: weights", self.home)
        if files.sha256 != self.spec.sha256:
            raise UserError(
                f"evaluation.features: weights={self.spec.weights} has the SHA-256 "
                f"{files.sha256}, and sha256={self.spec.sha256} was asked for; fetch the "
                "weights again, or set sha256 to that of the weights that you mean."
            )
        return files

    @cached_property
    def given(self) -> WeightFiles | None:
        """File that takes the place of the run's real images; None where none is named."""
        if self.spec.reference is None:
            return None
        path = resolve_user_file(self.spec.reference)
        return WeightFiles(f"evaluation.features: reference={self.spec.reference}", (path,))

    @cached_property
    def arrays(self) -> Collection[str]:
        """Names of the arrays of `given`, by its headers alone. Raises UserError for a file that
        cannot be used.
        """
        if self.given:
            return npz_arrays(self.given.paths[0], self.given.option)
        return ()

    def check(self) -> None:
        """Raise UserError for weights or a reference that cannot be used; the network itself is not
        opened.
        """
        if self.spec.kind != "inception":
            encoder_digest(str(self.files.folder), "fp32")
        if self.files and self.arrays and not self.names():
            raise UserError(
                f"evaluation.features: reference={self.spec.reference} holds no images "
                f"(arr_0), which figures of kind={self.spec.kind} need; name a file with "
                "images."
            )

    def names(self, has_captions: bool = False) -> tuple[str, ...]:
        """Names of the metrics, each followed by the ends of its interval; CLIP score for images
        with captions.
        """
        figures = FIGURES[self.spec.kind]
        if self.arrays and "arr_0" not in self.arrays:
            figures = figures[:1] if self.spec.kind != "clip" else ()
        if self.spec.kind == "clip" and has_captions:
            figures = (*figures, CLIP_SCORE)
        names: list[str] = []
        for figure in figures:
            names += [f"quality/{figure}{end}" for end in ("", "_low", "_high")]
        return tuple(names)

    @cached_property
    def network_digest(self) -> str:
        """Digest of the network that gives the features."""
        folder = ""
        if self.spec.kind != "inception":
            folder = encoder_digest(str(self.files.folder), "fp32")
        return hashlib.sha256(
            json.dumps([self.spec.kind, self.files.sha256, folder, VERSION]).encode()
        ).hexdigest()

    def digest(self) -> str:
        """Digest of everything that decides the figures beside images: network, reference,
        neighbours, limits.
        """
        given = self.given.sha256 if self.given else ""
        limits = (
            LARGEST_ROWS,
            estimates.LARGEST_NEIGHBOURS,
            estimates.K_PRECISION,
            estimates.K_DENSITY,
        )
        return hashlib.sha256(json.dumps([self.network_digest, given, limits]).encode()).hexdigest()

    def features(
        self,
        batches: Iterable[Tensor],
        device: torch.device,
        tick: Callable[[], None] = ignore,
        embedder: ImageEmbedder | None = None,
    ) -> Iterator[Tensor]:
        """Yield the features of uint8 images (num, channels, H, W), given in batches; `embedder`
        None: opened here.
        """
        embedder = embedder or ImageEmbedder(self.spec.kind, self.files, device)
        for batch in batches:
            for part in batch.split(BATCH):
                yield embedder.images(part)
                tick()

    def reference(
        self,
        key: str,
        real: Callable[[], Iterable[Tensor]],
        device: torch.device,
        tick: Callable[[], None] = ignore,
    ) -> Statistics:
        """Return the reference statistics: of the named file, else of `real`, uint8 images in
        batches, which `key` names. They are computed once and kept below DITLAB_HOME's caches; a
        damaged file is made again."""
        if self.given:
            key = self.given.sha256
        place = hashlib.sha256(
            f"{key}/{self.network_digest}/{LARGEST_ROWS}/{device.type}".encode()
        ).hexdigest()[:32]
        path = self.home.caches / "features" / f"{place}.npz"
        found = _kept(path)
        if found is not None:
            return found
        if self.given:
            made = self._statistics_of(self.given, device, tick)
        else:
            made = Statistics.of(self.features(real(), device, tick))
        content = made.to_npz()
        with suppress(OSError):  # a full disk costs a second pass, no run
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, content)
            write_durably(path.with_suffix(".sha256"), hashlib.sha256(content).hexdigest().encode())
        return made

    def _statistics_of(
        self, given: WeightFiles, device: torch.device, tick: Callable[[], None]
    ) -> Statistics:
        arrays = read_npz(given.paths[0], given.option)
        images = arrays.get("arr_0")
        if images is not None:
            order = keyed_permutation(ORDER, len(images))  # images may be sorted by class
            parts = np.split(order, range(BATCH, len(order), BATCH))
            batches = (torch.from_numpy(images[part]).permute(0, 3, 1, 2) for part in parts)
            found = Statistics.of(self.features(batches, device, tick))
            if len(arrays.get("mu", ())) != len(found.mu):  # none, or those of another network
                return found
        mu, sigma = (torch.from_numpy(arrays[name]).double() for name in ("mu", "sigma"))
        features = torch.zeros(0, len(mu))
        if images is not None:
            features = found.features
        return Statistics(mu, sigma, features)

    def measure(self, samples: ComparedSamples) -> dict[str, float]:
        """Return the metrics of `names`. Warns of few images once.

        Raises UserError for too few images, and a reference of other features.
        """
        device = samples.device
        is_first = self._statistics is None
        if self._statistics is None:
            self._statistics = self.reference(
                samples.real_key, lambda: map(to_bytes, samples.real()), device, samples.tick
            )
        embedder = ImageEmbedder(self.spec.kind, self.files, device)
        generated = torch.cat(
            list(self.features(map(to_bytes, samples.values), device, samples.tick, embedder))
        )
        found = self.compare(self._statistics, generated)
        frechet = FIGURES[self.spec.kind][0]
        if (
            is_first
            and self.spec.kind != "clip"
            and len(generated) < UNBIASED_FROM * generated.shape[1]
        ):
            other = FIGURES[self.spec.kind][1]
            beside = ""
            if other in found:
                beside = f"; quality/{other}={found[other].mean:.4g} is unbiased"
            samples.warn(
                f"quality/{frechet}={found[frechet].mean:.4g} of {len(generated):,} images is "
                f"biased upwards (fewer than {UNBIASED_FROM} for each of "
                f"{generated.shape[1]:,} features): compare it at equal numbers alone{beside}."
            )
        captions = samples.captions
        if self.spec.kind == "clip" and captions:
            texts = [
                embedder.captions(captions[start : start + BATCH])
                for start in range(0, len(captions), BATCH)
            ]
            found[CLIP_SCORE] = estimates.clip_score(generated, torch.cat(texts))
        metrics = {}
        for name, each in found.items():
            metrics[f"quality/{name}"] = each.mean
            metrics[f"quality/{name}_low"] = each.low
            metrics[f"quality/{name}_high"] = each.high
        return metrics

    def compare(self, reference: Statistics, generated: Tensor) -> dict[str, Interval]:
        """Return the figures that compare features (num, width) with a reference. Raises as
        `measure` does.
        """
        kind = self.spec.kind
        real = reference.features.to(generated.device)
        if reference.mu.shape[0] != generated.shape[1]:
            raise UserError(
                f"evaluation.features: reference={self.spec.reference} is of "
                f"{reference.mu.shape[0]} features, and kind={kind} gives "
                f"{generated.shape[1]}; name a reference of the same network."
            )
        names = [name.removeprefix("quality/") for name in self.names()[::3]]
        estimates.check_number(len(generated), f"quality/{names[0]}", "generated")
        if len(names) > 1 or kind == "clip":
            estimates.check_number(len(real), f"quality/{names[-1]}", "reference")
        if kind == "clip":
            return {
                "cmmd": estimates.mmd(real, generated, estimates.gaussian, estimates.CMMD_SCALE)
            }
        found = {names[0]: estimates.frechet((reference.mu, reference.sigma), generated)}
        if len(names) > 1:
            found[names[1]] = estimates.mmd(real, generated)
        if len(names) > 2:
            found |= estimates.neighbour_figures(real, generated)
        return found


def _kept(path: Path) -> Statistics | None:
    """Read kept statistics; None where they are missing or damaged."""
    try:
        content = read_plain(path, LARGEST_FILE)
        if (
            read_plain(path.with_suffix(".sha256"), 64).decode()
            != hashlib.sha256(content).hexdigest()
        ):
            return None
        with np.load(BytesIO(content), allow_pickle=False) as arrays:
            return Statistics(
                *(torch.from_numpy(arrays[name]) for name in ("mu", "sigma", "features"))
            )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
