"""Permutations that are a function of a text alone."""

import hashlib

import numpy as np


def keyed_permutation(key: str, length: int) -> np.ndarray:
    """Return the permutation of `length` items, int64 (length,), that belongs to a text.

    Sorts `length` raw 64-bit words of Philox (Salmon et al. 2011), keyed by BLAKE2b of the text. NumPy promises its bit
    generators' raw streams for good, and promises no such thing of `Generator.permutation`.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    words = np.random.Philox(key=np.frombuffer(digest, "<u8")).random_raw(length)
    # The low bits give way to the item's number: sorting such words is a tenth of the time of argsort, and as no two
    # are equal, every sorting algorithm gives the same order. 64 - log2(length) random bits are left to each.
    low = np.uint64((1 << length.bit_length()) - 1)
    words &= ~low
    words |= np.arange(length, dtype=np.uint64)
    words.sort()
    words &= low
    return words.view(np.int64)
