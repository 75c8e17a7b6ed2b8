"""Feature spaces of images, and distances of sets of points in them, in float64: Frechet, kernel,
nearest neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ditlab.encoders.autoencoder import float32_convolutions
from ditlab.encoders.features import DTYPES
from ditlab.encoders.image import FrozenImageEncoder
from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment

Extractor = Callable[[Iterable[Tensor]], Tensor]
"""Maps batches of images in [-1, 1] to their features, (num, width)."""


def frechet_distance(real: Tensor, generated: Tensor) -> float:
    """Squared Frechet distance of two Gaussians with the sets' means and covariances.

    |m1 - m2|^2 + tr(S1 + S2 - 2 (S1^1/2 S2 S1^1/2)^1/2), as in FID (Heusel et al. 2017,
    arXiv:1706.08500, eq. 6).

    Features are (num, dim), at least two each; the unit is theirs squared. The estimate is biased
    upwards, by about dim (dim + 5) / (2 num) for `num` features of unit variance on both sides:
    compare equal numbers. With fewer samples than dimensions, directions that a set does not reach
    count as if nothing moved in them: finite, symmetric, 0 for equal sets, and far too large for
    equal distributions. NaN where any feature is NaN or infinite.
    """
    real = real.double()
    generated = generated.double()
    if not (real.isfinite().all() and generated.isfinite().all()):
        return float("nan")
    return frechet_of_moments(*moments(real), *moments(generated))


def moments(points: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (dim,) and unbiased covariance (dim, dim) of points (num, dim)."""
    return points.mean(0), torch.atleast_2d(torch.cov(points.T))


def frechet_of_moments(m1: Tensor, s1: Tensor, m2: Tensor, s2: Tensor) -> float:
    """Squared Frechet distance of two Gaussians by means (dim,) and covariances (dim, dim),
    float64.
    """
    # The singular values of S1^1/2 S2^1/2 are the roots of the eigenvalues of S1^1/2 S2 S1^1/2: no
    # root of round-off.
    cross = torch.linalg.svdvals(root(s1) @ root(s2)).sum()
    shift = (m1 - m2).square().sum()
    return max(0.0, float(shift + s1.trace() + s2.trace() - 2 * cross))


def root(covariance: Tensor) -> Tensor:
    """Square root of a positive semi-definite matrix; eigenvalues that round-off made negative
    count as 0.
    """
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


@dataclass(frozen=True)
class KernelDistance:
    """Estimate of the kernel distance with its standard error."""

    value: float
    """About 0, and as often below it as above, where the two distributions are equal."""
    standard_error: float


def kernel_distance(real: Tensor, generated: Tensor, num_subsets: int = 10) -> KernelDistance:
    """Squared maximum mean discrepancy under (x.y / dim + 1)^3, unbiased (Binkowski et al. 2018,
    arXiv:1801.01401).

    Features are (num, dim). The value is that of all points (MMD_u^2, Gretton et al. 2012, eq. 3);
    the standard error is the delete-a-group jackknife's over `num_subsets` parts. NaN where any
    feature is NaN or infinite. Raises ValueError for a set of fewer than two points a subset.
    """
    if min(len(real), len(generated)) < 2 * num_subsets or num_subsets < 2:
        raise ValueError(
            f"{len(real)} and {len(generated)} points cannot be cut into {num_subsets} subsets "
            f"of two or more; give at least {2 * max(2, num_subsets)} points on both sides."
        )
    x, y = (
        points[
            torch.randperm(len(points), generator=torch.Generator().manual_seed(seed)).to(
                points.device
            )
        ]
        .double()
        .tensor_split(num_subsets)
        # shuffled: samples come class by class in turn
        for seed, points in enumerate((real, generated))
    )

    def pair_sums(x: Sequence[Tensor], y: Sequence[Tensor]) -> Tensor:
        """Sum the kernel over each pair of subsets, (subsets of x, subsets of y), no point paired
        with itself.
        """

        def kernel(products: Tensor) -> Tensor:
            return ((products / x[0].shape[1] + 1) ** 3).sum()

        sums = [
            [kernel(a @ b.T) - (kernel(a.square().sum(1)) if a is b else 0) for b in y] for a in x
        ]
        return torch.tensor(sums, dtype=torch.float64)

    within_x = pair_sums(x, x)
    within_y = pair_sums(y, y)
    between = pair_sums(x, y)
    sizes_x, sizes_y = (
        torch.tensor([len(part) for part in parts], dtype=torch.float64) for parts in (x, y)
    )

    def estimate(kept: Tensor) -> Tensor:
        """Estimate MMD_u^2 from the kept subsets."""
        m = sizes_x[kept].sum()
        n = sizes_y[kept].sum()
        xx, yy, xy = (sums[kept][:, kept].sum() for sums in (within_x, within_y, between))
        return xx / (m * (m - 1)) + yy / (n * (n - 1)) - 2 * xy / (m * n)

    every = torch.arange(num_subsets)
    left_out = torch.stack([estimate(every[every != subset]) for subset in every])
    variance = (num_subsets - 1) * (left_out - left_out.mean()).square().mean()
    return KernelDistance(float(estimate(every)), float(variance.sqrt()))


def nearest_distances(samples: Tensor, reference: Tensor, chunk: int = 1024) -> Tensor:
    """Euclidean distance of each sample to the nearest point of `reference`, float64, (num,).

    Points are (num, dim), float32. `chunk` x `chunk` pairs at once are compared in float32, a tenth
    of the time, by |y|^2 - 2 x.y; the distance to the one found is taken in float64, so that a
    copy's is 0 and no round-off.
    """
    parts = []
    for block in samples.split(chunk):
        nearest = torch.full((len(block),), float("inf"), dtype=torch.float64, device=block.device)
        for others in reference.split(chunk):
            found = others[(others.square().sum(1) - 2 * block @ others.T).argmin(1)]
            nearest = torch.minimum(
                nearest, torch.linalg.vector_norm(block.double() - found.double(), dim=1)
            )
        parts.append(nearest)
    return torch.cat(parts)


@dataclass(frozen=True)
class FeatureSpace:
    """Feature extractor with the features of the reference images."""

    names: tuple[str, str, str]
    """Names of the metrics: Frechet distance, kernel distance, its standard error."""
    extract: Extractor
    real: Tensor
    """Features of the reference images, (num, width), scaled."""
    scale: float = 1.0
    """Factor on features that makes their mean square over reference images 1."""

    def distances(self, images: Iterable[Tensor]) -> dict[str, float]:
        """Return the distances of generated images, given in batches; at least 20 images."""
        generated = self.scale * self.extract(images)
        kernel = kernel_distance(self.real, generated)
        values = frechet_distance(self.real, generated), kernel.value, kernel.standard_error
        return dict(zip(self.names, values, strict=True))


@torch.no_grad()
def apply_batched(
    layer: Callable[[Tensor], Tensor], images: Iterable[Tensor], tick: Callable[[], None]
) -> Tensor:
    """Apply a classifier's layer to batches of images; return one tensor."""
    parts = []
    for batch in images:
        with float32_convolutions():
            parts.append(layer(batch))
        tick()
    return torch.cat(parts)


@dataclass(frozen=True)
class ImageEncoder:
    """Location of an image encoder, opened only while images are encoded, to leave the memory to
    training.
    """

    place: str
    """A folder, or a name on the Hugging Face hub."""
    dtype: torch.dtype

    @classmethod
    def of(cls, experiment: Experiment) -> ImageEncoder | None:
        """Return the experiment's encoder; None where it names none."""
        spec = experiment.encoders
        if spec.image is None:
            return None
        return cls(spec.image, DTYPES[spec.precision])

    def check(self, height: int, width: int) -> None:
        """Raise UserError for an encoder that cannot be opened, or whose patches do not tile images
        of this size.
        """
        checkpoint = FrozenImageEncoder.check(self.place, None, None)
        patch = checkpoint.config().patch_size
        if height % patch or width % patch:
            raise UserError(
                f"{checkpoint.name} has patches of {patch} pixels, which do not tile the "
                f"{height} x {width} pixels of samples whose quality is measured; draw sizes "
                f"that are multiples of {patch}, or name another encoder."
            )

    def features(
        self, device: torch.device, tick: Callable[[], None], images: Iterable[Tensor]
    ) -> Tensor:
        """Return the last layer's mean over patches, (num, width), of batches of images; calls
        `tick` after each.
        """
        encoder = FrozenImageEncoder(self.place, None, None, device, self.dtype)
        means = []
        for batch in images:
            means.append(encoder.encode(batch).float().mean(1))
            tick()
        return torch.cat(means)
