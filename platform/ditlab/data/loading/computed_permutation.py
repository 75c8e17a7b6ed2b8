"""Permutations that are computed place by place, in no memory: a function of a key and a length alone."""

import hashlib
from typing import Any

import numpy as np

ROUNDS = 8
"""Rounds of the network."""
SMALL = 32
"""Lengths below which a second network follows the first: eight rounds leave pairs in fewer places correlated."""
_SLICE = 2**14
"""Places that are permuted at once: their numbers fit a core's cache."""
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def key_of(text: str) -> int:
    """Return the 64-bit key that belongs to a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(words: np.ndarray) -> np.ndarray:
    """Return hashes of 64-bit words, uint64: SplitMix64's finaliser (Steele et al. 2014), Stafford's variant 13."""
    shifted = words >> np.uint64(30)
    x = words ^ shifted
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= np.right_shift(x, np.uint64(27), out=shifted)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= np.right_shift(x, np.uint64(31), out=shifted)
    return x


def hashed_keys(key: int, numbers: np.ndarray) -> np.ndarray:
    """Return a key of its own for each number, uint64, from one key."""
    return mix(numbers.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))


def scaled(words: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return numbers below `sizes` (at most 2**31, uint64) in proportion to 64-bit words."""
    found = words >> np.uint64(32)
    found = found * sizes
    found >>= np.uint64(32)
    return found


def permuted(places: np.ndarray, length: Any, key: Any) -> np.ndarray:
    """Return where permutations take the given places, int64 of their shape.

    `length` (at most 2**62) and `key` (64 bits) of each place's permutation: numbers, or arrays that broadcast.

    A Feistel network over Z_a x Z_b, the least near-square rectangle with a * b >= length, whose rounds add a hash of
    one half to the other, modulo a or b; a place taken beyond the length is taken on until it falls inside (Black and
    Rogaway 2002, cycle walking: fewer than a in a * b of them).
    """
    places = np.asarray(places, np.int64)
    lengths = np.broadcast_to(np.asarray(length, np.int64), places.shape).reshape(-1)
    if len(lengths) and lengths.min() == lengths.max():
        lengths = lengths[:1]  # for all: roots and quotients cost as much as two rounds
    keys = np.broadcast_to(np.asarray(key, np.uint64), places.shape).reshape(-1)
    found = places.reshape(-1).copy()
    for begin in range(0, len(found), _SLICE):
        here = slice(begin, begin + _SLICE)
        of_here = lengths if len(lengths) == 1 else lengths[here]
        found[here] = _walk(found[here], of_here, keys[here])
        if (small := np.broadcast_to(of_here < SMALL, found[here].shape)).any():
            again = _walk(found[here][small], np.broadcast_to(of_here, small.shape)[small], mix(keys[here][small]))
            found[here][small] = again
    return found.reshape(places.shape)


def _walk(places: np.ndarray, lengths: np.ndarray, keys: np.ndarray) -> np.ndarray:
    found = _network(places, lengths, keys)
    while len(outside := np.flatnonzero(found >= lengths)):
        of_outside = lengths if len(lengths) == 1 else lengths[outside]
        found[outside] = _network(found[outside], of_outside, keys[outside])
    return found


def _network(places: np.ndarray, lengths: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Take places in [0, a * b) through all rounds."""
    a = np.ceil(np.sqrt(lengths)).astype(np.int64)
    a += a * a < lengths  # the root of a large length is rounded
    b = -(-lengths // np.maximum(a, 1))
    left, right = (half.astype(np.uint64) for half in np.divmod(places, np.maximum(b, 1)))
    a, b = a.astype(np.uint64), b.astype(np.uint64)
    for number in range(1, ROUNDS + 1):
        left += scaled(mix(right + (keys + np.uint64(number * _GOLDEN & _MASK))), a)
        np.minimum(left, left - a, out=left)  # modulo a: the difference of a smaller number wraps to a huge one
        left, right, a, b = right, left, b, a
    # after an even number of rounds the halves stand where they began
    return (left * b + right).astype(np.int64)
