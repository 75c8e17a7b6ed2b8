"""Random numbers: their distribution functions, and that each row and name has its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from torch import Tensor

from ditlab_addons.check.prove.findings import Findings
from ditlab_addons.check.tensor_digest import tensor_digest
from ditlab_models.processes.specs import uniform_cdf

NORMAL = NormalDist()
ALPHA = 1e-7
"""Chance that a sample of a law is further from it than the bound."""
MOST_BOUND = 0.5
"""Largest bound on the distance of two distributions that tells anything."""
NUM_DRAWN = 16
"""Numbers of each row whose law is compared."""
MOST_DRAWN = 10_000
"""Numbers of a name whose law is compared."""
ALIKE = 8
"""Rows that may share one number with another row by chance: 2,560 numbers of 24 bits have 0.2 such
pairs."""
LEAST_SIZE = 4
"""Numbers of a row that no other row has by chance."""
LONG = 32
"""Numbers of a row that is long enough to look for repeated ones."""
REPEATED = 0.1
"""Share of a row's numbers that others of the row may equal."""


def kolmogorov_distance(values: np.ndarray, cdf: Callable[[float], float]) -> float:
    """Return the largest distance of the distribution of values (n,) from a distribution function;
    one with steps counts at both sides of each."""
    points, counts = np.unique(values.astype(np.float64), return_counts=True)
    upto = np.cumsum(counts) / len(values)
    below = upto - counts / len(values)
    law = np.array([cdf(float(each)) for each in points])
    before = np.array([cdf(float(each)) for each in np.nextafter(points, -np.inf)])
    return float(max(np.abs(upto - law).max(), np.abs(before - below).max()))


def kolmogorov_bound(num: int) -> float:
    """Return the distance that so many independent values exceed with a chance of ALPHA (Massart
    1990, Ann. Probab. 18, 1269: 2 exp(-2 n d^2))."""
    return math.sqrt(math.log(2 / ALPHA) / (2 * num))


@dataclass
class RowDraws:
    """Draws of one name, of many rows."""

    rows: list[str] = field(default_factory=list)
    """Digest of each row's numbers."""
    sample: list[np.ndarray] = field(default_factory=list)
    """Numbers whose law is compared."""
    row_size: int = 0
    """Numbers of a row."""
    repeated: float = 0.0
    """Largest share of the first row's numbers, of any batch, that an earlier one of the row
    equals."""

    def add(self, values: Tensor) -> None:
        """Take in the draws of some rows, (num, ...)."""
        flat = values.reshape(len(values), -1)
        self.rows += [tensor_digest(row) for row in flat]
        self.row_size = flat.shape[1]
        if len(self.rows) * min(NUM_DRAWN, self.row_size) <= MOST_DRAWN:
            self.sample.append(flat[:, :NUM_DRAWN].reshape(-1).numpy())
        self.repeated = max(self.repeated, 1 - len(flat[0].unique()) / self.row_size)

    @property
    def alike(self) -> int:
        """Rows whose numbers are those of another row before."""
        return len(self.rows) - len(set(self.rows))

    @property
    def most_alike(self) -> int:
        """Rows that chance makes alike."""
        if self.row_size < LEAST_SIZE:
            return ALIKE
        return 0


def add_draws(found: dict[str, RowDraws], batch: Mapping[str, Tensor]) -> None:
    """Take in the draws of a batch, by name."""
    for name, values in batch.items():
        found.setdefault(name, RowDraws()).add(values)


def compare_law(
    phase: str,
    what: str,
    name: str,
    values: np.ndarray,
    cdf: Callable[[float], float],
    findings: Findings,
) -> None:
    """Compare the distribution of values (n,) with a distribution function; too few of them tell
    nothing."""
    bound = kolmogorov_bound(len(values))
    if bound >= MOST_BOUND:
        return
    away = kolmogorov_distance(values, cdf)
    note = f"mean {values.mean():.4g} of {len(values):,} values"
    findings.near(phase, what, away, bound, note, name)


def compare_draws(
    phase: str, whose: str, draws: Mapping[str, RowDraws], findings: Findings
) -> None:
    """Compare draws by name with the laws of their kinds; that rows have numbers of their own, and
    within a row each its own; and that names do."""
    names: dict[str, str] = {}
    same = []
    for name, each in draws.items():
        cdf: Callable[[float], float] = uniform_cdf
        if name.startswith("normal"):
            cdf = NORMAL.cdf
        numbers = np.concatenate(each.sample)
        compare_law(phase, f"numbers of {whose}", name, numbers, cdf, findings)
        note = f"{each.alike} of {len(each.rows)} rows have the numbers of another"
        what = f"each row's own in {whose}"
        findings.near(phase, what, each.alike, each.most_alike, note, name)
        if each.row_size >= LONG:
            what = f"numbers of a row alike in {whose}"
            findings.near(phase, what, each.repeated, REPEATED, "", name)
        other = names.setdefault(each.rows[0], name)
        if other != name and each.row_size >= LEAST_SIZE:
            same.append(f"{other} and {name} have the same numbers")
    findings.same(phase, f"each name's own in {whose}", same)
