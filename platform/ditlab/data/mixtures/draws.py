"""Keyed draws of a mixture's parts: a function of seed and number alone."""

import hashlib
from collections.abc import Sequence

import numpy as np

_WORDS = 4
"""64-bit words that Philox (Salmon et al. 2011) makes of one count."""
_BITS = 53
"""Bits of a word that count: those of a float64 in [0, 1)."""


class PartDraws:
    """Draws of parts by their shares. Draw n has the n-th raw word of Philox, keyed by the seed, whatever came before.

    Raw words, as NumPy promises their stream for good, and no such thing of `Generator.choice`.
    """

    def __init__(self, seed: int, shares: Sequence[float]):
        """Prepare the draws of parts with these shares, which sum to 1."""
        digest = hashlib.blake2b(f"ditlab.mixture/{seed}".encode(), digest_size=16).digest()
        self._key = np.frombuffer(digest, "<u8")
        self._edges = np.ceil(np.cumsum(shares)[:-1] * 2.0**_BITS).astype(np.uint64)
        """First number in [0, 2**_BITS) of each part but the first."""
        self.num_parts = len(shares)

    def parts(self, first: int, count: int) -> np.ndarray:
        """Return the numbers of the parts of draws `first` to `first + count`, int64 (count,)."""
        skipped = first % _WORDS
        words = np.random.Philox(key=self._key, counter=first // _WORDS).random_raw(skipped + count)[skipped:]
        numbers, parts = words >> np.uint64(64 - _BITS), np.zeros(count, np.int64)
        for edge in self._edges:
            parts += numbers >= edge
        return parts


def part_seed(seed: int, name: str) -> int:
    """Return the seed of a part's own order: another part more or less does not change it."""
    digest = hashlib.blake2b(f"ditlab.part/{seed}/{name}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")
