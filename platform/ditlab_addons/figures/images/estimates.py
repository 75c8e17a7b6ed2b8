"""Figures of generated images on features, each with its 95 % interval: Frechet distance, MMD,
precision and recall, density and coverage, CLIP score.

Features are (num, dim). A figure is an `Interval` whose `mean` is its value and whose `num` counts
generated images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ditlab.errors import UserError
from ditlab.intervals import Interval, paired_interval, student_quantile
from ditlab.quality.features import frechet_of_moments, moments, root

Kernel = Callable[[Tensor, Tensor], Tensor]
"""Maps points (m, dim) and (n, dim), float64, to the kernel's values, (m, n)."""
CONFIDENCE = 0.95
FEWEST = 100
"""Images on either side below which no figure is given."""
GROUPS = 10
"""Groups of generated images, each omitted once, that a Frechet distance's interval rests on."""
K_PRECISION = 3
K_DENSITY = 5
"""Nearest neighbours that decide a ball's radius: of precision and recall, of density and coverage,
as published.
"""
LARGEST_NEIGHBOURS = 5_000
"""Images of either side, the first ones, whose neighbours are searched."""
HALVINGS = 32
"""Random halvings of both sets that the intervals of figures of neighbours rest on."""
CLIP_WEIGHT = 2.5
"""Factor of the CLIP score."""
SIGMA = 10.0
CMMD_SCALE = 1000.0
"""Width of CMMD's Gaussian kernel, and the factor on its value."""
BLOCK = 2048
"""Rows of a kernel's matrix at once."""
PART_VALUES = 2**23
"""Most distances, float64, that are gathered at once for halves and quarters: 64 MiB."""


def check_number(num: int, figure: str, side: str) -> None:
    """Raise UserError for a set of too few images."""
    if num < FEWEST:
        raise UserError(
            f"{figure} needs at least {FEWEST} {side} images, and there are {num}; give more."
        )


def interval(value: float, error: float, df: float, num: int) -> Interval:
    """Student's t interval of a value by its standard error with `df` degrees of freedom."""
    half = float(student_quantile(df, CONFIDENCE)) * error
    return Interval(value, value - half, value + half, num, error * math.sqrt(num), CONFIDENCE)


def frechet(reference: tuple[Tensor, Tensor], generated: Tensor) -> Interval:
    """Frechet distance (FID, Heusel et al. 2017, arXiv:1706.08500, eq. 6) to a reference's mean and
    covariance.

    On DINOv2 features it is FD-DINOv2 (Stein et al. 2023, arXiv:2306.04675). The interval is the
    delete-a-group jackknife's over generated images, the reference taken as it is. It is about the
    mean of the figure over fresh sets of this size, which lies above the distance of the
    distributions (docs/addons/figures.md), not about that distance.
    """
    generated = generated.double()
    m1, s1 = (each.to(generated) for each in reference)
    value = frechet_of_moments(m1, s1, *moments(generated))
    half = root(s1)
    left_out = []
    # shuffled: samples come class by class in turn
    order = torch.randperm(len(generated), generator=torch.Generator().manual_seed(0)).to(
        generated.device
    )
    for number in range(GROUPS):
        m2, s2 = moments(generated[order % GROUPS != number])
        cross = torch.linalg.eigvalsh(half @ s2 @ half).clamp(min=0).sqrt().sum()
        left_out.append((m1 - m2).square().sum() + s1.trace() + s2.trace() - 2 * cross)
    error = (GROUPS - 1) / math.sqrt(GROUPS) * float(torch.stack(left_out).std())
    return interval(value, error, GROUPS - 1, len(generated))


def polynomial(x: Tensor, y: Tensor) -> Tensor:
    """KID's kernel (x.y / dim + 1)^3 (Binkowski et al. 2018, arXiv:1801.01401)."""
    return (x @ y.T / x.shape[1] + 1) ** 3


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    """CMMD's kernel exp(-|x - y|^2 / (2 sigma^2)), sigma 10 (Jayasumana et al. 2024,
    arXiv:2401.09603).
    """
    return (-squared_distances(x, y) / (2 * SIGMA**2)).exp()


def mmd(
    real: Tensor, generated: Tensor, kernel: Kernel = polynomial, scale: float = 1.0
) -> Interval:
    """Squared maximum mean discrepancy of all points, unbiased (MMD_u^2, Gretton et al. 2012, eq.
    3), times `scale`.

    The variance is that of the two-sample U-statistic: its second order, from the squares of the
    doubly centred kernel, and its first, 4 v_x / m + 4 v_y / n of the points' own shares less what
    the second adds to these. The first order grows in proportion to the discrepancy and is 0 where
    distributions are equal, so that the interval holds each value whose own variance makes the
    estimate likely (as Wilson's of a share does), which is not symmetric.
    """
    x = real.double()
    y = generated.double()
    m = len(x)
    n = len(y)
    rows_x, _, squares_x = _sums(kernel, x, x)
    rows_y, _, squares_y = _sums(kernel, y, y)
    rows, columns, squares = _sums(kernel, x, y)
    value = rows_x.sum() / (m * (m - 1)) + rows_y.sum() / (n * (n - 1)) - 2 * rows.sum() / (m * n)
    first = (
        4 * (rows_x / (m - 1) - rows / n).var() / m + 4 * (rows_y / (n - 1) - columns / m).var() / n
    )

    def within(rows: Tensor, squares: Tensor, num: int) -> Tensor:
        """Variance of the doubly centred kernel between points of one set."""
        variance = squares / (num * (num - 1)) - (rows.sum() / (num * (num - 1))) ** 2
        return (variance - 2 * (rows / (num - 1)).var()) / (1 - 2 / (num - 1))

    between = squares / (m * n) - (rows.sum() / (m * n)) ** 2
    between = (between - (rows / n).var() - (columns / m).var()) / (1 - 1 / m - 1 / n)
    second = 2 * within(rows_x, squares_x, m) / (m * (m - 1)) + 2 * within(rows_y, squares_y, n) / (
        n * (n - 1)
    )
    noise = float((second + 4 * between / (m * n)).clamp(min=0))
    estimate = float(value)
    slope = max(0.0, float(first) - 2 * noise) / max(estimate, math.sqrt(noise), 1e-300)
    t2 = float(student_quantile(min(m, n) - 1, CONFIDENCE)) ** 2
    centre = estimate + t2 * slope / 2
    half = math.sqrt(max(0.0, t2 * slope * estimate + (t2 * slope) ** 2 / 4 + t2 * noise))
    low = scale * (centre - half)
    high = scale * (centre + half)
    return Interval(scale * estimate, low, high, n, scale * half * math.sqrt(n / t2), CONFIDENCE)


def _sums(kernel: Kernel, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of a kernel's matrix over rows and columns, and of its squares; no point with itself
    where `x` is `y`.
    """
    rows = []
    columns = torch.zeros(len(y)).to(y)
    squares = torch.zeros(()).to(y)
    for start in range(0, len(x), BLOCK):
        values = kernel(x[start : start + BLOCK], y)
        if x is y:
            values.diagonal(start).zero_()
        rows.append(values.sum(1))
        columns += values.sum(0)
        squares += values.square().sum()
    return torch.cat(rows), columns, squares


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Squared Euclidean distances of points (..., m, dim) and (..., n, dim), float64, (..., m,
    n).
    """
    x = x.double()
    y = y.double()
    return (x.square().sum(-1)[..., None] + y.square().sum(-1)[..., None, :] - 2 * x @ y.mT).clamp_(
        min=0
    )


def neighbour_figures(real: Tensor, generated: Tensor) -> dict[str, Interval]:
    """Precision and recall (Kynkaanniemi et al. 2019, arXiv:1904.06991, k = 3), density and
    coverage (Naeem et al. 2020, arXiv:2002.09797, k = 5), of the first 5,000 images of either side.

    All depend on the sizes of both sets, and their intervals are about the mean over fresh sets of
    these sizes. The variance of a half's figure is that between the halves of both sets, over
    random halvings, and so of a quarter's; the whole set's follows from these two as a power of the
    size. A share's is taken relative to p (1 - p), and Wilson's interval keeps it within [0, 1].
    """
    x = real[:LARGEST_NEIGHBOURS]
    y = generated[:LARGEST_NEIGHBOURS]
    xx, yy, xy = _distances(x, y)
    values = _neighbours(xx, yy, xy)
    of_parts = {num: _of_parts(xx, yy, xy, num) for num in (2, 4)}  # (halvings, parts, figures)
    results = {}
    for place, name in enumerate(("precision", "recall", "density", "coverage")):
        value = float(values[place])
        spreads = []
        for each in of_parts.values():
            variance = float(each[..., place].var(1).mean())
            mean = float(each[..., place].mean())
            if name != "density":
                variance /= max(mean * (1 - mean), 1e-12)
            spreads.append(variance)
        spread = spreads[0] * min(1.0, spreads[0] / spreads[1]) if spreads[1] else 0.0
        if name == "density":
            results[name] = interval(value, math.sqrt(spread), HALVINGS, len(y))
        else:
            shared = y if name == "precision" else x
            num_shared = len(shared)  # images that the share is of
            results[name] = _wilson(value, max(spread, 1 / num_shared), len(y))
    return results


def _of_parts(xx: Tensor, yy: Tensor, xy: Tensor, num: int) -> Tensor:
    """Figures of `num` parts of both sets, (halvings, num, 4), in random orders that are the same
    for any `num`.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = [each // num for each in xy.shape]
    orders = [
        [torch.randperm(each, generator=generator) for each in xy.shape] for _ in range(HALVINGS)
    ]
    rows, columns = (
        torch.cat([order[side][: size * num].view(num, size) for order in orders]).to(xy.device)
        for side, size in enumerate(sizes)
    )
    found = []
    for part in torch.arange(len(rows)).split(max(1, PART_VALUES // max(sizes) ** 2)):
        a = rows[part]
        b = columns[part]
        pairs = ((xx, a, a), (yy, b, b), (xy, a, b))
        found.append(_neighbours(*(matrix[i[:, :, None], j[:, None]] for matrix, i, j in pairs)))
    return torch.cat(found).view(HALVINGS, num, -1)


def _distances(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    xx = squared_distances(x, x)
    yy = squared_distances(y, y)
    for each in (xx, yy):
        each.diagonal(dim1=-2, dim2=-1).zero_()
    return xx, yy, squared_distances(x, y)


def _neighbours(xx: Tensor, yy: Tensor, xy: Tensor) -> Tensor:
    """Precision, recall, density and coverage, (..., 4), of squared distances within the real
    images, within generated ones, and from real to generated ones."""
    # the nearest one is the point itself
    radii = xx.topk(1 + max(K_PRECISION, K_DENSITY), largest=False).values
    of_generated = yy.kthvalue(1 + K_PRECISION).values
    within = xy <= radii[..., K_DENSITY, None]
    figures = (
        (xy <= radii[..., K_PRECISION, None]).any(-2).double().mean(-1),
        (xy <= of_generated[..., None, :]).any(-1).double().mean(-1),
        within.double().sum(-2).mean(-1) / K_DENSITY,
        within.any(-1).double().mean(-1),
    )
    return torch.stack(figures, -1)


def _wilson(share: float, spread: float, num: int) -> Interval:
    """Wilson's score interval (1927) of a share whose variance is `spread` times share (1 -
    share).
    """
    t = float(student_quantile(HALVINGS, CONFIDENCE))
    spread = spread * t**2
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * share * (1 - share) + spread**2 / 4) / (1 + spread)
    std = half / t * math.sqrt(num)
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half), num, std, CONFIDENCE)


def clip_score(images: Tensor, captions: Tensor) -> Interval:
    """Mean of 2.5 max(cos, 0) over images and their captions (Hessel et al. 2021, arXiv:2104.08718,
    eq. 1), by CLIP's embeddings (num, dim) of both; the interval is Student's t over images."""
    if len(images) != len(captions):
        raise UserError(
            f"quality/clip_score needs a caption for each image, and there are {len(captions)} "
            f"captions for {len(images)} images; measure samples of a model that draws from "
            "captions."
        )
    cosines = torch.nn.functional.cosine_similarity(images.double(), captions.double())
    scores: Sequence[float] = (CLIP_WEIGHT * cosines.clamp(min=0)).tolist()
    return paired_interval(scores, CONFIDENCE)
