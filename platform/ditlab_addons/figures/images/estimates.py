"""Figures of generated images on features, each with its 95 % interval: Frechet distance, MMD,
precision and recall, density and coverage, CLIP score.

Features are (num, dim). A figure is an `Estimate`, whose degrees of freedom say how well its
interval's width is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ditlab.errors import UserError
from ditlab.quality.features import frechet_of_moments, moments, root
from ditlab_models.intervals import Estimate, mean_estimate, student_quantile, variance_df

Kernel = Callable[[Tensor, Tensor], Tensor]
"""Maps points (m, dim) and (n, dim), float64, to the kernel's values, (m, n)."""
FEWEST = 100
"""Images on either side below which no figure is given."""
GROUPS = 10
"""Groups of generated images, each omitted once, that a Frechet distance's interval rests on."""
MOST_EXPONENT = 50.0
"""Most half width of a logarithm's interval: a distance of 0 has no logarithm."""
SMALLEST_VARIANCE = 1e-9
"""Least variance of a direction that images reach, in parts of the largest."""
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
SPREAD_POINTS = 1000
"""Points, the first ones, that the spread of a set in a kernel's feature space is taken from."""
LARGEST_WEIGHT = 0.5
"""Weight, in standard errors of an estimate of 0, of the largest variance that is possible: by
`benchmarks/quality/coverage_by_law.py`."""
TINY = 1e-300
BLOCK = 2048
"""Rows of a kernel's matrix at once."""
HALVES_DF = 16
"""Degrees of freedom of a variance between halves: those of one set are not independent. Of 100 and
200 images by five laws they were 7 to 29."""
PART_VALUES = 2**23
"""Most distances, float64, that are gathered at once for halves and quarters: 64 MiB."""


def check_number(num: int, figure: str, side: str) -> None:
    """Raise UserError for a set of too few images."""
    if num < FEWEST:
        raise UserError(
            f"{figure} needs at least {FEWEST} {side} images, and there are {num}; give more."
        )


def frechet(reference: tuple[Tensor, Tensor], generated: Tensor) -> Estimate:
    """Frechet distance (FID, Heusel et al. 2017, arXiv:1706.08500, eq. 6) to a reference's mean and
    covariance.

    On DINOv2 features it is FD-DINOv2 (Stein et al. 2023, arXiv:2306.04675). The interval is the
    delete-a-group jackknife's of the logarithm over generated images, or that of their influences
    where it is wider, the reference taken as it is. It is about the mean of the figure over fresh
    sets of this size, which lies above the distance of the distributions (docs/addons/figures.md),
    not about that distance.
    """
    generated = generated.double()
    m1, s1 = (each.to(generated) for each in reference)
    m2, s2 = moments(generated)
    value = frechet_of_moments(m1, s1, m2, s2)
    half = root(s1)
    left_out = []
    # shuffled: samples come class by class in turn
    order = torch.randperm(len(generated), generator=torch.Generator().manual_seed(0)).to(
        generated.device
    )
    for number in range(GROUPS):
        mean, covariance = moments(generated[order % GROUPS != number])
        cross = torch.linalg.eigvalsh(half @ covariance @ half).clamp(min=0).sqrt().sum()
        left_out.append((m1 - mean).square().sum() + s1.trace() + covariance.trace() - 2 * cross)
    centred = generated - m2
    influences = 2 * centred @ (m2 - m1) + centred.square().sum(1)
    influences -= ((centred @ _transport(half, s2)) * centred).sum(1)
    error = max(
        (GROUPS - 1) / math.sqrt(GROUPS) * float(torch.stack(left_out).std()),
        float(influences.std()) / math.sqrt(len(generated)),
    )
    ratio = math.exp(min(student_quantile(GROUPS - 1) * error / max(value, TINY), MOST_EXPONENT))
    return Estimate(value, value / ratio, value * ratio, _df(influences))


def _transport(half: Tensor, covariance: Tensor) -> Tensor:
    """Map of optimal transport from generated to real features, where generated ones reach; `half`
    is the root of the real features' covariance.
    """
    values, vectors = torch.linalg.eigh(half @ covariance @ half)
    is_reached = values > SMALLEST_VARIANCE * values[-1]
    reached = vectors[:, is_reached]
    return half @ (reached / values[is_reached].sqrt()) @ reached.T @ half


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
) -> Estimate:
    """Squared maximum mean discrepancy of all points, unbiased (MMD_u^2, Gretton et al. 2012, eq.
    3), times `scale`.

    The variance is that of the two-sample U-statistic: its second order, from the squares of the
    doubly centred kernel, and its first, 4 v_x / m + 4 v_y / n of the points' own shares less what
    the second adds to these. The first order grows in proportion to the discrepancy and is 0 where
    distributions are equal, so that the interval holds each value whose own variance makes the
    estimate likely (as Wilson's of a share does), which is not symmetric. Where the estimate is of
    the size of its error, the proportion is not known, and drawn towards its largest possible
    value (`_Spread.largest`). Student's t has the degrees of freedom of the order whose variance is
    known worse.
    """
    x = real.double()
    y = generated.double()
    m = len(x)
    n = len(y)
    rows_x, _, squares_x = _sums(kernel, x, x)
    rows_y, _, squares_y = _sums(kernel, y, y)
    rows, columns, squares = _sums(kernel, x, y)
    value = rows_x.sum() / (m * (m - 1)) + rows_y.sum() / (n * (n - 1)) - 2 * rows.sum() / (m * n)
    shares_x = rows_x / (m - 1) - rows / n
    shares_y = rows_y / (n - 1) - columns / m
    first_x = float(4 * shares_x.var() / m)
    first_y = float(4 * shares_y.var() / n)

    def within(rows: Tensor, squares: Tensor, num: int) -> Tensor:
        """Variance of the doubly centred kernel between points of one set."""
        variance = squares / (num * (num - 1)) - (rows.sum() / (num * (num - 1))) ** 2
        return (variance - 2 * (rows / (num - 1)).var()) / (1 - 2 / (num - 1))

    between = squares / (m * n) - (rows.sum() / (m * n)) ** 2
    between = (between - (rows / n).var() - (columns / m).var()) / (1 - 1 / m - 1 / n)
    between = 4 * between / (m * n)
    second_x = float(2 * within(rows_x, squares_x, m) / (m * (m - 1)) + between / 2)
    second_y = float(2 * within(rows_y, squares_y, n) / (n * (n - 1)) + between / 2)
    spread_x = _spread(kernel, x)
    spread_y = _spread(kernel, y)
    df = min(
        m - 1.0,
        n - 1.0,
        _pooled_df((first_x, _df(shares_x)), (first_y, _df(shares_y))),
        _pooled_df((second_x, spread_x.df), (second_y, spread_y.df)),
    )
    estimate = float(value)
    noise = max(0.0, second_x + second_y)
    error = math.sqrt(noise)
    first = max(0.0, first_x + first_y - 2 * noise)
    largest = spread_x.largest + spread_y.largest
    slope = (first + LARGEST_WEIGHT * error * largest) / max(
        max(0.0, estimate) + LARGEST_WEIGHT * error, TINY
    )
    slope = min(slope, largest)
    low, high = _discrepancy_ends(estimate, slope, noise, student_quantile(df))
    return Estimate(scale * estimate, scale * low, scale * high, df)


def _discrepancy_ends(
    estimate: float, slope: float, noise: float, quantile: float
) -> tuple[float, float]:
    """Ends of the values v of which the estimate is at most `quantile` deviations away; their
    variance is slope v + noise, below 0 that of 0.
    """
    of_equal = quantile * math.sqrt(noise)
    rise = quantile**2 * slope
    centre = estimate + rise / 2
    half = math.sqrt(max(0.0, rise * estimate + rise**2 / 4 + of_equal**2))
    low = estimate - of_equal
    high = estimate + of_equal
    if low > 0:
        low = centre - half
    if high > 0:
        high = centre + half
    return low, high


class _Spread(NamedTuple):
    """Facts on the covariance of a set of points in a kernel's feature space."""

    largest: float
    """Variance of the first order of MMD_u^2 for each unit of it, where the distributions differ
    along the direction of the largest variance."""
    df: float
    """Degrees of freedom of the second order's variance."""


def _spread(kernel: Kernel, points: Tensor) -> _Spread:
    """Find the spread of points (num, dim) by the first SPREAD_POINTS of them."""
    num = len(points)
    some = points[:SPREAD_POINTS]
    values = kernel(some, some)
    values = values - values.mean(0) - values.mean(1)[:, None] + values.mean()
    largest = float(torch.linalg.eigvalsh(values)[-1]) / len(some)
    values.fill_diagonal_(0)
    squares = values.square().sum(1)
    variation = float(squares.var() / squares.mean() ** 2)
    df = num / (2 * variation) if variation > 0 else math.inf
    return _Spread(4 * largest / num, df)


def _df(values: Tensor) -> float:
    return variance_df((values - values.mean()).cpu().numpy())


def _pooled_df(*parts: tuple[float, float]) -> float:
    """Degrees of freedom of a sum of independent variances, each given with its own (Satterthwaite
    1946)."""
    total = sum(variance for variance, _ in parts)
    spread = sum(variance**2 / df for variance, df in parts)
    return max(1.0, total**2 / spread) if spread > 0 else math.inf


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


def neighbour_figures(real: Tensor, generated: Tensor) -> dict[str, Estimate]:
    """Precision and recall (Kynkaanniemi et al. 2019, arXiv:1904.06991, k = 3), density and
    coverage (Naeem et al. 2020, arXiv:2002.09797, k = 5), of the first 5,000 images of either side.

    All depend on the sizes of both sets, and their intervals are about the mean over fresh sets of
    these sizes, real and generated. The variance of a half's figure is that between the halves of
    both sets, over random halvings, and so of a quarter's; the whole set's is half of a half's or
    follows from these two as a power of the size, whichever is larger. A share's is taken relative
    to p (1 - p), and Wilson's interval keeps it within [0, 1].
    """
    x = real[:LARGEST_NEIGHBOURS]
    y = generated[:LARGEST_NEIGHBOURS]
    xx, yy, xy = _distances(x, y)
    values = _neighbours(xx, yy, xy)
    dfs = _decisive_df(xx, yy, xy)
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
        spread = spreads[0] * max(0.5, min(1.0, spreads[0] / max(spreads[1], TINY)))
        if name == "density":
            half = student_quantile(HALVES_DF) * math.sqrt(spread)
            results[name] = Estimate(value, value - half, value + half, dfs[name])
        else:
            shared = y if name == "precision" else x
            num_shared = len(shared)  # images that the share is of
            low, high = _wilson(value, max(spread, 1 / num_shared))
            results[name] = Estimate(value, low, high, dfs[name])
    return results


def _decisive_df(xx: Tensor, yy: Tensor, xy: Tensor) -> dict[str, float]:
    """Degrees of freedom of each figure's variance: few where one or two images decide it.

    A share varies with the images that it is of, and with those whose balls hold some of them that
    no other ball holds.
    """
    radii = xx.topk(1 + max(K_PRECISION, K_DENSITY), largest=False).values
    of_generated = yy.kthvalue(1 + K_PRECISION).values
    within = (xy <= radii[:, K_DENSITY, None]).double()
    covers = {
        "precision": (xy <= radii[:, K_PRECISION, None]).double(),
        "recall": (xy <= of_generated[None]).double().T,
        "coverage": within.T,
    }  # (balls, images that the share is of)
    of_reals = within.mean(1)
    of_samples = within.mean(0)
    most = min(xy.shape) - 1.0
    found = {"density": min(most, _pooled_df(_part(of_reals), _part(of_samples)))}
    for name, each in covers.items():
        times = each.sum(0)
        share = float((times > 0).double().mean())
        only = (each * (times == 1)).sum(1) * len(each) / len(times)  # mean: share held by one ball
        own = (share * (1 - share) / len(times), len(times) - 1.0)
        found[name] = min(most, _pooled_df(own, _part(only)))
    # counts in balls whose union few images decide
    found["density"] = min(found["density"], found["precision"])
    return found


def _part(values: Tensor) -> tuple[float, float]:
    """Variance of a mean, and its degrees of freedom."""
    return float(values.var() / len(values)), _df(values)


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


def _wilson(share: float, spread: float) -> tuple[float, float]:
    """Ends of Wilson's score interval (1927) of a share whose variance is `spread` times share (1 -
    share).
    """
    spread = spread * student_quantile(HALVES_DF) ** 2
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * share * (1 - share) + spread**2 / 4) / (1 + spread)
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def clip_score(images: Tensor, captions: Tensor) -> Estimate:
    """Mean of 2.5 max(cos, 0) over images and their captions (Hessel et al. 2021, arXiv:2104.08718,
    eq. 1), by CLIP's embeddings (num, dim) of both; the interval is that of a mean over images."""
    if len(images) != len(captions):
        raise UserError(
            f"quality/clip_score needs a caption for each image, and there are {len(captions)} "
            f"captions for {len(images)} images; measure samples of a model that draws from "
            "captions."
        )
    cosines = torch.nn.functional.cosine_similarity(images.double(), captions.double())
    return mean_estimate((CLIP_WEIGHT * cosines.clamp(min=0)).cpu().numpy())
