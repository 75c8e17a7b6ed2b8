"""Rows of `steps.bin`, one for every step that was done: layout, checksums, and the digest of a step's samples."""

import zlib

import numpy as np

ROW = np.dtype([
    ("step", "<u8"), ("attempt", "<u2"), ("flags", "u1"), ("reserved", "u1"), ("spare", "<u4"), ("samples", "<u8"),
    ("loss", "<f4"), ("norm", "<f4"), ("lr", "<f4"), ("crc", "<u4"),
])  # fmt: skip
"""`step` from 1; `attempt` from 1; `samples` as `samples_digest` gives it; `norm` of the gradient before clipping;
`crc`, the CRC-32 of the row before it (its own `crc`) and of this row's other bytes."""
CHECKED = ROW.itemsize - 4
"""Bytes of a row that its checksum covers."""
LEFT_OUT, NOT_APPLIED = 1, 2
"""Flags: the batch was taken from the order and not trained on; the update was left out, as loss or gradient was not
finite."""
SAMPLES_MASK = (1 << 63) - 1
"""Digests of samples have 63 bits: workers exchange them as signed numbers."""


_ALL_BITS = (1 << 64) - 1
_GOLDEN, _FIRST, _SECOND = (
    np.array(number, np.uint64) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_THIRTY, _TWENTY_SEVEN, _THIRTY_ONE = (np.array(number, np.uint64) for number in (30, 27, 31))


def mix64(values: np.ndarray) -> np.ndarray:
    """Mix the bits of 64-bit numbers, one to one (SplitMix64, Steele et al. 2014, doi:10.1145/2660193.2660195)."""
    mixed = np.array(values, np.uint64)
    mix_in_place(mixed, np.empty_like(mixed))
    return mixed


def mix_in_place(values: np.ndarray, spare: np.ndarray) -> None:
    """Do what `mix64` does to `values`, uint64, whose place it takes; `spare` is overwritten.

    Operands that are arrays without dimensions take half the time of NumPy's scalars, and the memory is not asked for.
    """
    np.add(values, _GOLDEN, values)
    np.right_shift(values, _THIRTY, spare)
    np.bitwise_xor(values, spare, values)
    np.multiply(values, _FIRST, values)
    np.right_shift(values, _TWENTY_SEVEN, spare)
    np.bitwise_xor(values, spare, values)
    np.multiply(values, _SECOND, values)
    np.right_shift(values, _THIRTY_ONE, spare)
    np.bitwise_xor(values, spare, values)


def samples_digest(rows: np.ndarray, places: np.ndarray, draws: np.ndarray, step: int, seed: int) -> int:
    """Return a digest of samples and of the random numbers that they were trained with; sums of it modulo 2^63 join.

    Each sample counts by itself, so that the sum over a global batch is the same for every number of workers and every
    cut of micro-batches. A sample that is missing, comes twice, or lies at another place changes it.

    Args:
        rows: the store's row of each sample, (samples,).
        places: its place in the global batch, (samples,).
        draws: place of its random numbers, as `draw_places` gives them, (samples,).
        step: step from 0, as random numbers are keyed.
        seed: seed of the random numbers.
    """
    key = step_key(step, seed)
    mixed = mix64(rows.astype(np.uint64) ^ mix64(places.astype(np.uint64) ^ mix64(draws.astype(np.uint64) ^ key)))
    return int(mixed.sum(dtype=np.uint64)) & SAMPLES_MASK


def step_key(step: int, seed: int) -> np.ndarray:
    """Return the key of a step's digests, mix64(seed ^ mix64(step)), as an array without dimensions."""
    return np.array(_mix_number((seed & _ALL_BITS) ^ _mix_number(step)), np.uint64)


def _mix_number(value: int) -> int:
    """Mix one number as `mix64` does, in a tenth of the time that NumPy takes for one."""
    value = (value + 0x9E3779B97F4A7C15) & _ALL_BITS
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _ALL_BITS
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _ALL_BITS
    return value ^ value >> 31


def draw_places(micro_index: int, start: int, count: int) -> np.ndarray:
    """Return the places of the random numbers of `count` samples from place `start` of a micro-batch on, (count,)."""
    return np.arange(start, start + count, dtype=np.uint64) + np.uint64(micro_index << 32)


def joined_digest(digests: list[int]) -> int:
    """Join the digests of parts of a batch."""
    return sum(digests) & SAMPLES_MASK


def checksum(row: bytes, before: int) -> int:
    """Return the CRC-32 of a row's checked bytes after a row of checksum `before` (0 for the first)."""
    return zlib.crc32(row[:CHECKED], before)


def intact_rows(content: bytes) -> np.ndarray:
    """Return the rows of a file's content up to the first that is torn or altered, as an array of ROW."""
    before, num, view = 0, 0, memoryview(content)
    for start in range(0, len(content) - ROW.itemsize + 1, ROW.itemsize):
        before = zlib.crc32(view[start : start + CHECKED], before)
        if before != int.from_bytes(view[start + CHECKED : start + ROW.itemsize], "little"):
            break
        num += 1
    return np.frombuffer(content, ROW, num).copy()
