"""Figures of the field on features of published networks (`evaluation.features`), and their
reference statistics.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
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
from ditlab.errors import UserError, first_line, shortened
from ditlab.home import Home, resolve_user_file
from ditlab.progress import ignore
from ditlab.quality.features import moments
from ditlab.quality.figures import ComparedSamples, QualityFigures
from ditlab.quality.text import draws_text
from ditlab.spec.engine import ImageFeatures
from ditlab.spec.experiment import Experiment
from ditlab.storage.files import write_durably
from ditlab.storage.plain_files import open_regular_file, read_plain
from ditlab.weights.files import WeightFiles
from ditlab_addons.figures.images import estimates
from ditlab_addons.figures.networks.embeddings import ImageEmbedder
from ditlab_models.intervals import DF, Estimate
from ditlab_models.pixels import num_not_finite, to_bytes

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
ARRAYS = ("mu", "sigma", "features", "network", "sizes", "num", "arr_0")
"""Arrays of an .npz file of statistics, and that of images."""
ASYMMETRY = 1e-4
"""Largest difference of two mirrored values of a covariance, and its lowest eigenvalue below 0, in
parts of its largest value and eigenvalue: a file in single precision has about 1e-6.
"""
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


Sizes = set[tuple[int, int]]
"""Heights and widths of pictures."""


def noted(batches: Iterable[Tensor], sizes: Sizes) -> Iterator[Tensor]:
    """Pass batches of images (num, channels, H, W) on, and add their sizes to `sizes`."""
    for batch in batches:
        sizes.add((batch.shape[2], batch.shape[3]))
        yield batch


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
    network: str = ""
    """Digest of the network (`PublishedFigures.network_digest`); empty where it is not known."""
    sizes: tuple[tuple[int, int], ...] = ()
    """Heights and widths of the pictures; empty where they are not known."""
    num: int = 0
    """Number of pictures; 0 where it is not known."""

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
            mu, sigma = moments(features.double())
        else:
            features = torch.cat(rows)
            sigma = (products - num * mu.outer(mu)) / (num - 1)
        return cls(mu.cpu(), sigma.cpu(), features, num=num)

    def made_with(self, network: str, sizes: Sizes) -> Statistics:
        """These statistics, with the network and the sizes of the pictures that they are of."""
        return replace(self, network=network, sizes=tuple(sorted(sizes)))

    def to_npz(self) -> bytes:
        """Content of a file in the layout of ADM's reference statistics: `mu`, `sigma`; beside them
        `features`, and what the statistics are of.
        """
        content = BytesIO()
        np.savez(
            content,
            mu=self.mu.numpy(),
            sigma=self.sigma.numpy(),
            features=self.features.numpy(),
            network=np.array(self.network),
            sizes=np.array(self.sizes, np.int64).reshape(-1, 2),
            num=np.array(self.num),
        )
        return content.getvalue()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], features: Tensor) -> Statistics:
        """Statistics of the arrays of `to_npz`; those of other tools have `mu` and `sigma` alone.
        Raises ValueError and TypeError for arrays of another kind.
        """
        mu, sigma = (torch.from_numpy(arrays[name].astype(np.float64)) for name in ("mu", "sigma"))
        sizes = np.asarray(arrays.get("sizes", ()), np.int64).reshape(-1, 2)
        return cls(
            mu,
            sigma,
            features,
            str(arrays.get("network", "")),
            tuple((int(height), int(width)) for height, width in sizes),
            int(arrays.get("num", 0)),
        )


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
    is_whole = {"mu", "sigma"} <= set(found)
    if not is_whole and ("arr_0" not in found or {"mu", "sigma"} & set(found)):
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
    if "mu" in found:
        problem = _fault_of(found["mu"], found["sigma"])
        if problem:
            raise UserError(f"{name} holds {problem}; name a whole file of mu and sigma.")
    return found


def _fault_of(mu: np.ndarray, sigma: np.ndarray) -> str:
    """Clause on a mean and a covariance that are none; empty for those that are."""
    for key, values in (("mu", mu), ("sigma", sigma)):
        if values.dtype.kind not in "fiu":
            return f"{key} of {values.dtype}, no real numbers"
    if mu.ndim != 1 or sigma.shape != 2 * mu.shape:
        return f"mu of {mu.shape} and sigma of {sigma.shape}, which do not fit"
    for key, values in (("mu", mu), ("sigma", sigma)):
        bad = int((~np.isfinite(values)).sum())
        if bad:
            return f"{bad:,} values of {key} that are not finite (NaN)"
    sigma = sigma.astype(np.float64)
    asymmetry = float(np.abs(sigma - sigma.T).max(initial=0.0))
    if asymmetry > ASYMMETRY * float(np.abs(sigma).max(initial=0.0)):
        return f"a sigma that is not symmetric (by {asymmetry:.3g}), so no covariance"
    eigenvalues = np.linalg.eigvalsh(sigma)
    if len(eigenvalues) and eigenvalues[0] < -ASYMMETRY * max(eigenvalues[-1], -eigenvalues[0]):
        return f"a sigma with the eigenvalue {eigenvalues[0]:.3g}, so no covariance"
    return ""


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
        """Names of the metrics, each followed by the ends and degrees of freedom of its interval;
        CLIP score for images with captions.
        """
        figures = FIGURES[self.spec.kind]
        if self.arrays and "arr_0" not in self.arrays:
            figures = figures[:1] if self.spec.kind != "clip" else ()
        if self.spec.kind == "clip" and has_captions:
            figures = (*figures, CLIP_SCORE)
        names: list[str] = []
        for figure in figures:
            names += [f"quality/{figure}{end}" for end in ("", "_low", "_high", DF)]
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
            sizes = Sizes()
            features = self.features(noted(real(), sizes), device, tick)
            made = Statistics.of(features).made_with(self.network_digest, sizes)
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
            sizes = Sizes()
            gathered = self.features(noted(batches, sizes), device, tick)
            found = Statistics.of(gathered).made_with(self.network_digest, sizes)
            if len(arrays.get("mu", ())) != len(found.mu):  # none, or those of another network
                return found
        features = torch.zeros(0, len(arrays["mu"]))
        if images is not None:
            features = found.features
        try:
            return Statistics.from_arrays(arrays, features)
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{given.option} holds facts that cannot be read ({first_line(error)}); make it "
                "again with `ditlab data statistics --out`."
            ) from None

    def doubts(self, reference: Statistics, sizes: Sizes) -> list[str]:
        """Sentences on what a reference does not say of itself, and on pictures of another size
        than those of `sizes`. Raises UserError for the reference of another network.
        """
        name = self.given.option if self.given else "the reference"
        if reference.network not in ("", self.network_digest):
            raise UserError(
                f"{name} is of the network {reference.network[:12]}, and kind={self.spec.kind} "
                f"with these weights is {self.network_digest[:12]}; make the reference again "
                "with `ditlab data statistics --out`, or name the network that it was made with."
            )
        if not (reference.network and reference.num and reference.sizes):
            return [
                f"{name} does not say its network, its pictures' size and their number, as files "
                "of other tools do not: it is taken to be of the same network and size"
            ]
        if sizes and set(reference.sizes) != sizes:
            return [
                f"{name} is of pictures of {_listed_sizes(reference.sizes)}, and those that are "
                f"measured are of {_listed_sizes(sorted(sizes))}: the figures hold that "
                "difference, too"
            ]
        return []

    def measure(self, samples: ComparedSamples) -> dict[str, float]:
        """Return the metrics of `names`. Warns of few images once.

        Raises UserError for too few images, and a reference of other features.
        """
        device = samples.device
        bad = sum(map(num_not_finite, samples.values))
        if bad:
            total = sum(map(len, samples.values))
            samples.warn(
                f"{bad:,} of {total:,} samples hold values that are not finite (NaN), so they have "
                f"no figures of kind={self.spec.kind}."
            )
            return dict.fromkeys(self.names(bool(samples.captions)), math.nan)
        is_first = self._statistics is None
        if self._statistics is None:
            self._statistics = self.reference(
                samples.real_key, lambda: map(to_bytes, samples.real()), device, samples.tick
            )
        if is_first:
            sizes = {(each.shape[2], each.shape[3]) for each in samples.values}
            for doubt in self.doubts(self._statistics, sizes):
                samples.warn(f"{doubt}.")
        embedder = ImageEmbedder(self.spec.kind, self.files, device)
        generated = torch.cat(
            list(self.features(map(to_bytes, samples.values), device, samples.tick, embedder))
        )
        found = self.compare(self._statistics, generated)
        bias = self.bias(found, *generated.shape)
        if is_first and bias:
            samples.warn(bias)
        captions = samples.captions
        if self.spec.kind == "clip" and captions:
            texts = [
                embedder.captions(captions[start : start + BATCH])
                for start in range(0, len(captions), BATCH)
            ]
            found[CLIP_SCORE] = estimates.clip_score(generated, torch.cat(texts))
        metrics: dict[str, float] = {}
        for name, each in found.items():
            metrics |= each.named(f"quality/{name}")
        return metrics

    def bias(self, found: Mapping[str, Estimate], num: int, width: int) -> str:
        """Return a sentence on the bias of the Frechet distance of `num` images with `width`
        features; empty where it is small, or there is no such distance.
        """
        if self.spec.kind == "clip" or num >= UNBIASED_FROM * width:
            return ""
        frechet, other = FIGURES[self.spec.kind][:2]
        beside = ""
        if other in found:
            beside = f"; quality/{other}={found[other].value:.4g} is unbiased"
        return (
            f"quality/{frechet}={found[frechet].value:.4g} of {num:,} images is biased upwards "
            f"(fewer than {UNBIASED_FROM} for each of {width:,} features): compare it at equal "
            f"numbers alone{beside}."
        )

    def compare(self, reference: Statistics, generated: Tensor) -> dict[str, Estimate]:
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
        names = [name.removeprefix("quality/") for name in self.names()[::4]]
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


def _listed_sizes(sizes: Iterable[tuple[int, int]]) -> str:
    return shortened([f"{height} x {width}" for height, width in sizes], 3)


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
            if "num" not in arrays.files:  # of an earlier version
                return None
            return Statistics.from_arrays(arrays, torch.from_numpy(arrays["features"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
